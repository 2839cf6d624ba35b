r"""Stage 2: autoencoder of weights, with a decoder from a low-dimensional latent space.

Weights are standardised over the R candidates, :math:`\tilde w = (w - m)/s`. Encoder e and decoder g minimise

.. math:: \frac{1}{RP} \sum_r \big\lVert \tilde w_r - \tilde g(e(\tilde w_r + \eta \gamma_r)) \big\rVert^2
          - \beta_t \frac{1}{RN} \sum_{r,n} \log p(y_n \mid f_{g(e(\cdot))}(x_n))
          + \rho\, \frac1R \sum_r \lVert z_r \rVert^2, \qquad \gamma \sim N(0, I).

The log-likelihood enters with a minus sign (the paper prints a plus, with which the minimum is −∞). Noise is added to
the input of the encoder (in the output of the decoder it would change the loss by a constant). All three terms are
means, so that β does not depend on P, N and R. β is 0 in the first half of the steps and rises to its value by 70 %:
a decoder fitted to the data while it still returns averaged weights switches units off permanently.

Afterwards the codes of the candidates are standardised to mean 0 and standard deviation 1 in each dimension, to match
the prior N(0, I), and the decoder absorbs the transformation. :math:`\psi_p` is the mean squared reconstruction error
of each weight, the variance that the manifold does not explain.

The input of the encoder is the vector of principal components of a candidate, of which there are fewer than R: other
directions do not distinguish the candidates, and would only add noise.

Without hidden layers both maps are affine and initialised from the principal components, the optimum of the first term.
The last map of a decoder has hP parameters; for large networks there are smaller ones, see :data:`LAST_MAPS`.
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

#: Last maps of a decoder: one linear map; one map per layer with its own hidden units, fewer for large layers; or one
#: hypernetwork shared by chunks of 1,024 weights, with a learned embedding of each chunk.
LAST_MAPS = ("whole", "layers", "chunks")

_LEAST = 1e-3  # least standard deviation of a weight over candidates
_LEAST_CODE = 1e-6  # least standard deviation of a code over candidates
_FROM, _RISE = 0.5, 0.2  # start and length of the rise of β, in shares of the steps
_COMPONENT = 1e-6  # singular values below this share of the largest are dropped
_OF_A_LAYER = 2**20  # most parameters of a layer's map, unless it then has fewer than `_FEWEST` hidden units
_FEWEST = 4
_CHUNK, _INSIDE = 1024, 64  # weights of a chunk, and hidden units of the map of chunks


@dataclass(frozen=True)
class AutoencoderOptions:
    """Options of the training of a decoder.

    Attributes
    ----------
    dimensions : int
        Dimensions of the latent space.
    hidden : tuple of int
        Hidden units of the decoder, from the latent space to the weights, and of the encoder in reverse; without hidden
        units both are affine.
    last : str
        Last map of the decoder, one of :data:`LAST_MAPS`.
    noise, beta, rho : float
        η, β and ρ.
    members : int
        Number of networks whose log-likelihood is evaluated in a step.
    steps : int
        Steps of Adam.
    rate : float
        Learning rate of Adam.
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
    """Reconstruction quality of a decoder.

    Attributes
    ----------
    reconstruction : float
        Mean squared reconstruction error of standardised weights, the unexplained share of their variance. Above 0.3
        the decoder maps different candidates to one function.
    log_likelihood, of_candidates : float
        Mean log-likelihood of the decoded networks and of the candidates, in nats per training row.
    apart : float
        Root mean squared difference between the outputs of decoded networks and candidates.
    """

    reconstruction: float
    log_likelihood: float
    of_candidates: float
    apart: float


class LayerMap(nn.Module):
    """Map from features (S, h) to weights (S, P) with separate hidden units for each layer.

    Parameters
    ----------
    features : int
        Number of features h.
    blocks : sequence of int
        Number of weights of each layer.
    """

    def __init__(self, features: int, blocks: Sequence[int]) -> None:
        super().__init__()
        units = [max(_FEWEST, min(features, _OF_A_LAYER // size)) for size in blocks]
        self.maps = nn.ModuleList(
            nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, size))
            for width, size in zip(units, blocks, strict=True)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map features."""
        return torch.cat([layer_map(features) for layer_map in self.maps], 1)


class ChunkMap(nn.Module):
    r"""Map from features (S, h) to weights (S, P) by chunks: chunk c is :math:`B \tanh(A h + e_c) + b`.

    Parameters
    ----------
    features : int
        Number of features h.
    size : int
        Number of weights P.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.which = nn.Parameter(torch.randn(-(-size // _CHUNK), _INSIDE))  # e
        self.inside = nn.Linear(features, _INSIDE)
        self.out = nn.Linear(_INSIDE, _CHUNK)

    def forward(self, features: Tensor) -> Tensor:
        """Map features."""
        chunks: Tensor = self.out(torch.tanh(self.inside(features)[:, None] + self.which))  # (S, C, 1024)
        return chunks.flatten(1)[:, : self.size]


class Decoder(nn.Module):
    """Map from points of the latent space to weights.

    Parameters
    ----------
    dimensions : int
        Dimensions D of the latent space.
    hidden : tuple of int
        Hidden units, with tanh activations.
    size : int
        Number of weights P.
    last : {"whole", "layers", "chunks"}
        Last map.
    blocks : sequence of int, optional
        Number of weights of each layer, for "layers"; one block by default.

    Attributes
    ----------
    mean, scale : Tensor, shape (P,)
        m and s.
    shift, spread : Tensor, shape (D,)
        Mean and standard deviation of the codes in the input of the first layer.
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
        """Return the input of the last map, (S, h), for points (S, D)."""
        h: Tensor = self.hidden(self.shift + self.spread * z)
        return h

    def forward(self, z: Tensor) -> Tensor:
        """Decode points (S, D) into weights (S, P)."""
        w: Tensor = self.mean + self.scale * self.last(self.features(z))
        return w


class AutoencoderStage(Stage):
    """Stage that trains the autoencoder of the candidates.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        Network of the weights.
    likelihood : Likelihood
        p(y | f), fixed.
    rows : Rows
        Training rows.
    weights : Tensor, shape (R, P)
        Candidates with matched hidden units.
    options : AutoencoderOptions
        Options of the training.
    seed : int
        Seed of the initial maps.
    beside : mapping of str to Tensor, optional
        Results about the candidates, which :meth:`finish` returns together with those of this stage.
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
        self.network = network
        self.likelihood = likelihood.requires_grad_(False)
        self.rows = rows
        self.options = options
        self.weights = weights
        self.beside = dict(beside or {})
        sizes = (options.dimensions, *options.hidden)
        with building(seed):
            self.decoder = self._decoder(options, network).to(weights)
        self.decoder.mean.copy_(weights.mean(0))
        self.decoder.scale.copy_(weights.std(0, correction=0).clamp(min=_LEAST))
        self.tilde = (weights - self.decoder.mean) / self.decoder.scale  # (R, P)
        left, values, axes = torch.linalg.svd(self.tilde, full_matrices=False)
        count = int((values > values[0] * _COMPONENT).sum())
        self.unit = (count / network.size) ** 0.5  # scales the components to mean square 1
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
        """Initialise affine maps at the best reconstruction, with codes of unit variance."""
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
        """Return the parameters of encoder and decoder, with one learning rate."""
        return [([*self.encoder.parameters(), *self.decoder.parameters()], self.options.rate)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Return the objective at a share t/T of the steps; β depends on it."""
        noise = normal(self.components, generator)
        z = self.encoder(self.components + self.options.noise * self.unit * noise)  # (R, D)
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
        """Return the mean log-likelihood per row, averaged over networks."""
        log_p = self.likelihood.log_prob(self.network(weights, rows.x), rows.y)  # (R, B)
        if rows.weight is None:
            return log_p.mean()
        weight = rows.weight.to(log_p)
        return (log_p @ weight).mean() / weight.sum()

    @torch.no_grad()
    def gate(self) -> Gate:
        """Return the reconstruction quality, on at most 1,000 rows."""
        decoded = self.decoder(self.codes())
        rows = self.rows.take(slice(0, WHOLE))
        difference = self.network(decoded, rows.x) - self.network(self.weights, rows.x)
        return Gate(
            float((self.tilde - (decoded - self.decoder.mean) / self.decoder.scale).square().mean()),
            float(self._log_likelihood(decoded, rows)),
            float(self._log_likelihood(self.weights, rows)),
            float(difference.square().mean().sqrt()),
        )

    @torch.no_grad()
    def codes(self) -> Tensor:
        """Return the codes of the candidates, (R, D)."""
        z: Tensor = (self.encoder(self.components) - self.decoder.shift) / self.decoder.spread
        return z

    def metrics(self) -> dict[str, float]:
        """Return the reconstruction error and the log-likelihood; raise DivergenceError if one is not finite."""
        gate = self.gate()
        metrics = {"reconstruction": gate.reconstruction, "decoded_log_likelihood": gate.log_likelihood}
        if not all(map(math.isfinite, metrics.values())):
            raise DivergenceError(f"the decoder of weights is not finite ({gate}); lower decoder_rate")
        return metrics

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Standardise the codes, measure the reconstruction error; return the state of the decoder, codes and gate."""
        decoder = self.decoder
        raw = self.codes()
        decoder.shift.copy_(raw.mean(0))
        decoder.spread.copy_(raw.std(0, correction=0).clamp(min=_LEAST_CODE))
        codes = self.codes()
        gate = self.gate()
        decoder.residual.copy_((self.tilde - decoder.last(decoder.features(codes))).square().mean(0))
        values = [gate.reconstruction, gate.log_likelihood, gate.of_candidates, gate.apart]
        saved_gate = torch.tensor(values, dtype=torch.float32, device="cpu")
        state = {f"decoder/{name}": value for name, value in decoder.state_dict().items()}
        return {**self.beside, **state, "codes": codes, "gate": saved_gate.double()}

    @classmethod
    def decoder_of(cls, found: Mapping[str, Tensor], options: AutoencoderOptions, network: Flat) -> Decoder:
        """Return the decoder whose state :meth:`finish` returned."""
        state = under("decoder", found)
        with building(0):  # the initial values are overwritten
            decoder = cls._decoder(options, network).to(state["mean"])
        decoder.load_state_dict(state)
        return decoder


def _tanh_layers(sizes: tuple[int, ...]) -> nn.Sequential:
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*parts)
