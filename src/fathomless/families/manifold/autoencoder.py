r"""Stage 2: a decoder from a latent space of few dimensions to weights, whose networks predict well.

Weights are standardised over the R candidates, :math:`\tilde w = (w - m)/s`. Encoder e and decoder g minimise

.. math:: \frac{1}{RP} \sum_r \big\lVert \tilde w_r - \tilde g(e(\tilde w_r + \eta \gamma_r)) \big\rVert^2
          - \beta_t \frac{1}{RN} \sum_{r,n} \log p(y_n \mid f_{g(e(\cdot))}(x_n))
          + \rho\, \frac1R \sum_r \lVert z_r \rVert^2, \qquad \gamma \sim N(0, I).

The log-likelihood enters with a minus sign (the paper prints a plus, with which the minimum is −∞); noise is added
where the encoder reads (on the decoder's side it would change the loss by a constant); and all three terms are means,
so that β does not depend on P, N and R. β is 0 in the first half of the steps and rises to its value by 70 %: a decoder
that meets the data with averaged weights switches units off and never finds them again.

Afterwards the codes of the candidates are shifted and scaled to mean 0 and standard deviation 1 in each dimension, so
that N(0, I) is where they are, and the decoder absorbs it. The mean square that it leaves of each weight,
:math:`\psi_p`, is what the manifold does not explain.

The encoder reads a candidate by its principal components, of which there are fewer than R: other directions of
weights tell nothing of which candidate it is, and noise is as large along each of them.

Without hidden layers both maps are affine, and start from the components, the optimum of the first term. A decoder's
last map has hP numbers; for large networks there are smaller ones: see :data:`LAST_MAPS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.families.manifold.candidates import BATCH, WHOLE
from fathomless.families.manifold.network import Flat
from fathomless.families.manifold.stages import Stage
from fathomless.inference.runs.run import under
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks
from fathomless.system.draws import integers, normal, permutation
from fathomless.system.errors import DivergenceError
from fathomless.system.rng import building, fold_in

__all__ = ["LAST_MAPS", "AutoencoderOptions", "AutoencoderStage", "ChunkMap", "Decoder", "Gate", "LayerMap"]

#: Last maps of a decoder: one linear map; a map of each layer, with hidden units of its own, fewer for large layers; or
#: one map for all pieces of 1,024 weights, which it tells apart by a learned vector of each (a hypernetwork).
LAST_MAPS = ("whole", "layers", "chunks")

_LEAST = 1e-3  # of the standard deviation of a weight over candidates
_LEAST_CODE = 1e-6  # of that of a code
_FROM, _RISE = 0.5, 0.2  # where β begins to rise, and for how long, in shares of the steps
_COMPONENT = 1e-6  # singular values, of the largest, that are none
_OF_A_LAYER = 2**20  # numbers of a layer's map, unless that leaves it fewer units than `_FEWEST`
_FEWEST = 4
_CHUNK, _INSIDE = 1024, 64  # weights of a piece, and hidden units of the map of all pieces


@dataclass(frozen=True)
class AutoencoderOptions:
    """How a decoder is learned.

    Attributes
    ----------
    dimensions : int
        Of the latent space.
    hidden : tuple of int
        Hidden units of the decoder, from the latent space upwards; the encoder has them in the other order. None: both
        are affine.
    last : str
        One of :data:`LAST_MAPS`.
    noise, beta, rho : float
        η, β and ρ.
    members : int
        Networks whose predictions are looked at in a step.
    steps : int
        Of Adam.
    rate : float
        Of Adam.
    """

    dimensions: int = 10
    hidden: tuple[int, ...] = (50,)
    last: str = "whole"
    noise: float = 0.05
    beta: float = 1.0
    rho: float = 1e-3
    members: int = 12
    steps: int = 1200
    rate: float = 3e-3


@dataclass(frozen=True)
class Gate:
    """What a decoder keeps of the candidates.

    Attributes
    ----------
    reconstruction : float
        Mean square, in standardised units, of what it leaves of a weight: 1 is all. Beyond 0.3 it has made one function
        of several.
    log_likelihood, of_candidates : float
        Nats per row of the training, mean over networks: decoded, and as they were.
    apart : float
        Root mean square of the difference between their outputs.
    """

    reconstruction: float
    log_likelihood: float
    of_candidates: float
    apart: float


class LayerMap(nn.Module):
    """From features (S, h) to weights (S, P), by a map with hidden units of its own for each layer.

    Parameters
    ----------
    features : int
        h.
    blocks : sequence of int
        Weights of each layer.
    """

    def __init__(self, features: int, blocks: Sequence[int]) -> None:
        super().__init__()
        units = [max(_FEWEST, min(features, _OF_A_LAYER // size)) for size in blocks]
        self.maps = nn.ModuleList(
            nn.Sequential(nn.Linear(features, own), nn.Tanh(), nn.Linear(own, size))
            for own, size in zip(units, blocks, strict=True)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map features."""
        return torch.cat([own(features) for own in self.maps], 1)


class ChunkMap(nn.Module):
    r"""From features (S, h) to weights (S, P), piece by piece: of piece c, :math:`B \tanh(A h + e_c) + b`.

    Parameters
    ----------
    features : int
        h.
    size : int
        P.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.which = nn.Parameter(torch.randn(-(-size // _CHUNK), _INSIDE))  # e
        self.inside, self.out = nn.Linear(features, _INSIDE), nn.Linear(_INSIDE, _CHUNK)

    def forward(self, features: Tensor) -> Tensor:
        """Map features."""
        pieces: Tensor = self.out(torch.tanh(self.inside(features)[:, None] + self.which))  # (S, C, 1024)
        return pieces.flatten(1)[:, : self.size]


class Decoder(nn.Module):
    """From points of the latent space to weights.

    Parameters
    ----------
    dimensions : int
        D of the latent space.
    hidden : tuple of int
        Hidden units, of hyperbolic tangents.
    size : int
        P.
    last : {"whole", "layers", "chunks"}
        The last map.
    blocks : sequence of int, optional
        Weights of each layer, for "layers"; one block by default.

    Attributes
    ----------
    mean, scale : Tensor, shape (P,)
        m and s.
    shift, spread : Tensor, shape (D,)
        Mean and standard deviation of the codes, as the first layer sees them.
    residual : Tensor, shape (P,)
        ψ.
    """

    mean: Tensor
    scale: Tensor
    shift: Tensor
    spread: Tensor
    residual: Tensor

    def __init__(
        self, dimensions: int, hidden: tuple[int, ...], size: int, last: str = "whole", blocks: Sequence[int] = ()
    ) -> None:
        super().__init__()
        checks.choice("last", last, LAST_MAPS)
        self.hidden = _tanh_layers((dimensions, *hidden))
        features = (dimensions, *hidden)[-1]
        self.last: nn.Module
        if last == "whole":
            self.last = nn.Linear(features, size)
        else:
            self.last = LayerMap(features, blocks or (size,)) if last == "layers" else ChunkMap(features, size)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("residual", torch.zeros(size))
        self.register_buffer("shift", torch.zeros(dimensions))
        self.register_buffer("spread", torch.ones(dimensions))

    def features(self, z: Tensor) -> Tensor:
        """Return what the last layer sees of points (S, D): (S, h)."""
        h: Tensor = self.hidden(self.shift + self.spread * z)
        return h

    def forward(self, z: Tensor) -> Tensor:
        """Decode points (S, D) into weights (S, P)."""
        w: Tensor = self.mean + self.scale * self.last(self.features(z))
        return w


class AutoencoderStage(Stage):
    """Learn a decoder of candidates.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        What weights are of.
    likelihood : Likelihood
        p(y | f), held as it is.
    rows : Rows
        The table.
    weights : Tensor, shape (R, P)
        Candidates, their units in one order.
    options : AutoencoderOptions
        How.
    seed : int
        Of the initial maps.
    beside : mapping of str to Tensor, optional
        What was found about the candidates, to be handed on with what is found here.
    """

    def __init__(
        self,
        network: Flat,
        likelihood: Likelihood,
        rows: Rows,
        weights: Tensor,
        options: AutoencoderOptions,
        seed: int,
        beside: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(options.steps, clip_norm=10.0)
        self.network, self.likelihood, self.rows = network, likelihood.requires_grad_(False), rows
        self.options, self.weights, self.beside = options, weights, dict(beside or {})
        sizes = (options.dimensions, *options.hidden)
        with building(seed):
            self.decoder = self._decoder(options, network).to(weights)
        self.decoder.mean.copy_(weights.mean(0))
        self.decoder.scale.copy_(weights.std(0, correction=0).clamp(min=_LEAST))
        self.tilde = (weights - self.decoder.mean) / self.decoder.scale  # (R, P)
        left, values, axes = torch.linalg.svd(self.tilde, full_matrices=False)
        count = int((values > values[0] * _COMPONENT).sum())
        self.unit = (count / network.size) ** 0.5  # of components, so that their mean square is 1
        self.components = left[:, :count] * values[:count] * self.unit  # (R, C)
        with building(fold_in(seed, "encoder")):
            self.code = nn.Linear((*sizes, count)[1], sizes[0]).to(weights)
            self.encoder = nn.Sequential(_tanh_layers((count, *sizes[:0:-1])), self.code).to(weights)
        if not options.hidden:
            self._start_affine(values[:count], axes[:count])

    @staticmethod
    def _decoder(options: AutoencoderOptions, network: Flat) -> Decoder:
        return Decoder(options.dimensions, options.hidden, network.size, options.last, network.blocks)

    @torch.no_grad()
    def _start_affine(self, values: Tensor, axes: Tensor) -> None:
        """Start affine maps where the reconstruction is best, with codes of unit variance."""
        count = min(self.options.dimensions, len(values))
        loads = values[:count] / len(self.tilde) ** 0.5  # (d,)
        nn.init.zeros_(self.code.weight)
        nn.init.zeros_(self.code.bias)
        self.code.weight[:, :count].fill_diagonal_(1.0)
        self.code.weight[:count, :count] /= loads[:, None] * self.unit
        if isinstance(self.decoder.last, nn.Linear):
            nn.init.zeros_(self.decoder.last.weight)
            nn.init.zeros_(self.decoder.last.bias)
            self.decoder.last.weight[:, :count] = (loads[:, None] * axes[:count]).T

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Both maps, at one rate."""
        return [([*self.encoder.parameters(), *self.decoder.parameters()], self.options.rate)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Return the objective at a share t/T of the steps."""
        own = self.components
        noise = normal(own, generator)
        z = self.encoder(own + self.options.noise * self.unit * noise)  # (R, D)
        decoded = self.decoder.last(self.decoder.features(z))  # (R, P)
        value: Tensor = (self.tilde - decoded).square().mean() + self.options.rho * z.square().sum(1).mean()
        beta = self.options.beta * min(max((share - _FROM) / _RISE, 0.0), 1.0)
        if beta == 0.0:
            return value
        chosen = permutation(len(z), generator, z.device)[: self.options.members]
        rows = self.rows
        if len(rows) > WHOLE:
            rows = rows.take(integers(len(rows), (2 * BATCH,), generator, rows.x.device))
        return value - beta * self._log_likelihood(self.decoder.mean + self.decoder.scale * decoded[chosen], rows)

    def _log_likelihood(self, weights: Tensor, rows: Rows) -> Tensor:
        """Return the mean log density of a row under each network, averaged over networks."""
        log_p = self.likelihood.log_prob(self.network(weights, rows.x), rows.y)  # (R, B)
        if rows.weight is None:
            return log_p.mean()
        weight = rows.weight.to(log_p)
        return (log_p @ weight).mean() / weight.sum()

    @torch.no_grad()
    def gate(self) -> Gate:
        """Return what the decoder keeps of the candidates, on at most 1,000 rows."""
        own = self.decoder(self.codes())
        some = self.rows.take(slice(0, WHOLE))
        apart = self.network(own, some.x) - self.network(self.weights, some.x)
        return Gate(
            float((self.tilde - (own - self.decoder.mean) / self.decoder.scale).square().mean()),
            float(self._log_likelihood(own, some)),
            float(self._log_likelihood(self.weights, some)),
            float(apart.square().mean().sqrt()),
        )

    @torch.no_grad()
    def codes(self) -> Tensor:
        """Return the codes of the candidates, (R, D)."""
        z: Tensor = (self.encoder(self.components) - self.decoder.shift) / self.decoder.spread
        return z

    def told(self) -> dict[str, float]:
        """Return the reconstruction error and the log-likelihood; refuse what is not finite."""
        gate = self.gate()
        told = {"reconstruction": gate.reconstruction, "decoded_log_likelihood": gate.log_likelihood}
        if not all(map(math.isfinite, told.values())):
            raise DivergenceError(f"the decoder of weights is not finite ({gate}); lower decoder_rate")
        return told

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Give codes their unit, measure what is left; return the decoder's state, codes and gate."""
        decoder, raw = self.decoder, self.codes()
        decoder.shift.copy_(raw.mean(0))
        decoder.spread.copy_(raw.std(0, correction=0).clamp(min=_LEAST_CODE))
        codes, gate = self.codes(), self.gate()
        decoder.residual.copy_((self.tilde - decoder.last(decoder.features(codes))).square().mean(0))
        each = [gate.reconstruction, gate.log_likelihood, gate.of_candidates, gate.apart]
        told = torch.tensor(each, dtype=torch.float32, device="cpu")
        state = {f"decoder/{name}": value for name, value in decoder.state_dict().items()}
        return {**self.beside, **state, "codes": codes, "gate": told.double()}

    @classmethod
    def decoder_of(cls, found: Mapping[str, Tensor], options: AutoencoderOptions, network: Flat) -> Decoder:
        """Return the decoder that :meth:`finish` returned the state of."""
        state = under("decoder", found)
        with building(0):  # all of it is loaded
            decoder = cls._decoder(options, network).to(state["mean"])
        decoder.load_state_dict(state)
        return decoder


def _tanh_layers(sizes: tuple[int, ...]) -> nn.Sequential:
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*parts)
