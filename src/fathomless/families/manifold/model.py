r"""Posterior over networks on a weight manifold, and stage 3, which fits it.

.. math:: z \sim N(0, I), \qquad \phi \sim p(\phi), \qquad w = g_\phi(z), \qquad y_n \sim p(y \mid f_w(x_n)),

with a mixture q(z) and independent normal distributions q(φ), see :mod:`~fathomless.families.manifold.latent`. The
objective is

.. math:: \mathrm{E}_{q(z) q(\phi)} \Big[\sum_n \log p(y_n \mid f_{g_\phi(z)}(x_n))\Big]
          - \mathrm{KL}(q(z) \,\|\, p(z)) - \mathrm{KL}(q(\phi) \,\|\, p(\phi)),

with an exact expectation over components. The prior over weights is the push-forward of the priors of z and φ, and the
decoder was learned from networks trained on the same data. The bound is therefore conditional on the decoder, and must
not be compared with that of other families. With deterministic φ the posterior of w lies on a surface and has no
density.

The structure of a network is the component of q(z), the mode of the weights, from which it was drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.manifold.autoencoder import Decoder
from fathomless.families.manifold.candidates import BATCH, WHOLE
from fathomless.families.manifold.latent import DecoderLaw, LatentLaw
from fathomless.families.manifold.network import Flat
from fathomless.families.manifold.stages import Stage
from fathomless.inference.variational.objective import elbo
from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import LatentPosterior
from fathomless.system.draws import integers, normal
from fathomless.system.errors import DivergenceError

__all__ = ["LatentStage", "ProjectedNetwork"]

_AT_ONCE = 1 << 24  # values of hidden units evaluated at once


class ProjectedNetwork(Resizable):
    """Posterior over networks decoded from points of a latent space.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        Network of the weights.
    decoder : Decoder
        Map from points to weights.
    law : LatentLaw
        q(z).
    decoder_law : DecoderLaw, optional
        q(φ); without it the decoder is deterministic.
    """

    def __init__(self, network: Flat, decoder: Decoder, law: LatentLaw, decoder_law: DecoderLaw | None = None) -> None:
        super().__init__()
        self.network = network
        self.decoder = decoder
        self.law = law
        self.decoder_law = decoder_law

    @property
    def stochastic(self) -> bool:
        """True: points of the latent space are drawn."""
        return True

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return means and variances (S, P) of the weights given points (S, D); variances are None without q(φ)."""
        decoder = self.decoder
        features = decoder.features(z)
        mean = decoder.mean + decoder.scale * decoder.last(features)
        if self.decoder_law is None:
            return mean, None
        offset, variance = self.decoder_law.moments(features)
        return mean + decoder.scale * offset, decoder.scale.square() * variance

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` points of each component of q(z), and weights given each point.

        In training, weights given a point are drawn separately for each row, which does not change the expectation of a
        sum over rows and reduces the variance. In evaluation one draw is used for all rows.
        """
        drawn = self.law.sample(n, generator)  # (K, n, D)
        z = drawn.flatten(0, 1)
        mean, variance = self.moments(z)
        if variance is not None and self.training:
            f = self.network.sample_outputs(mean, variance, x, generator)
        else:
            if variance is not None:
                mean = mean + variance.sqrt() * normal(mean, generator)
            chunk = max(1, _AT_ONCE // max(1, x.shape[0] * self.network.units))  # networks evaluated at once
            f = torch.cat([self.network(part, x) for part in mean.split(chunk)])
        divergence = {"latent": self.law.divergence(drawn)}
        if self.decoder_law is not None:
            divergence["decoder"] = self.decoder_law.divergence()
        return Draws(
            f=f,
            log_weight=(self.law.logits.double().log_softmax(0) - math.log(n)).repeat_interleave(n),
            structure=torch.arange(len(drawn), device=f.device).repeat_interleave(n),
            divergence=divergence,
            tempered=frozenset(),
        )

    def sample_weights(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw `n` vectors of weights of each component, (S, P); return them with their log weights, (S,)."""
        mean, variance = self.moments(self.law.sample(n, generator).flatten(0, 1))
        if variance is not None:
            mean = mean + variance.sqrt() * normal(mean, generator)
        return mean, (self.law.log_weight - math.log(n)).repeat_interleave(n)

    @torch.no_grad()
    def structure(self) -> LatentPosterior:
        """Return q(z): weights, centres and standard deviations of its components."""
        weights = self.law.logits.double().softmax(0)
        modes = float(torch.exp(torch.special.entr(weights).sum()))
        scales = self.law.factors().double().square().sum(-1).sqrt()
        count, dimensions = self.law.means.shape
        return LatentPosterior(
            kind="latent",
            summary=f"{count} component{'s' * (count > 1)} in {dimensions} dimension{'s' * (dimensions > 1)}, the "
            f"largest with {100.0 * float(weights.max()):.0f} %",
            statistics={"modes": modes},
            weights=tuple(weights.tolist()),
            means=tuple(map(tuple, self.law.means.double().tolist())),
            scales=tuple(map(tuple, scales.tolist())),
        )

    def blueprint(self) -> dict[str, Any]:
        """Return the numbers of components, of random columns of the decoder, and of points of chains."""
        columns = 0 if self.decoder_law is None else self.decoder_law.offset.shape[1]
        points = 0 if self.law.points is None else self.law.points.shape[1]
        return {"components": len(self.law.means), "random_columns": columns, "points": points}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Allocate components, points and random part of the decoder as in a blueprint."""
        like = self.law.means
        covariance = "diagonal" if self.law.below is None else "full"
        if self.blueprint()["components"] != blueprint["components"]:
            centres = like.new_zeros(blueprint["components"], like.shape[1])
            self.law = LatentLaw(centres, covariance=covariance).to(like)
        if points := blueprint.get("points", 0):
            self.law.points = like.new_zeros(blueprint["components"], points, like.shape[1])
        if self.blueprint()["random_columns"] != blueprint["random_columns"]:
            random = {0: None, 1: "bias"}.get(blueprint["random_columns"], "last")
            self.decoder_law = None if random is None else DecoderLaw(self.decoder, random).to(like)


class LatentStage(Stage):
    """Stage that maximises the ELBO over q(z), and over q(φ) if there is one.

    Parameters
    ----------
    model : ProjectedNetwork
        Initial model; the maps of its decoder are fixed.
    likelihood : Likelihood
        p(y | f), fixed.
    rows : Rows
        Training rows.
    steps : int
        Steps of Adam.
    draws : int
        Points per step over all components, at least one of each.
    rate, decoder_rate : float
        Learning rates: of q(z) and of all scales; of the means of q(φ).
    """

    def __init__(
        self,
        model: ProjectedNetwork,
        likelihood: Likelihood,
        rows: Rows,
        *,
        steps: int = 800,
        draws: int = 8,
        rate: float = 1e-2,
        decoder_rate: float = 1e-3,
    ) -> None:
        super().__init__(steps, clip_norm=None)
        self.model = model.train()
        self.likelihood = likelihood.requires_grad_(False)
        self.rows = rows
        self.model.decoder.requires_grad_(False)
        self.each = max(1, draws // len(model.law.means))
        self.rates = rate, decoder_rate
        self._last: dict[str, Tensor] = {}

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Return the parameters of q(z) and q(φ), with their learning rates."""
        rate, decoder_rate = self.rates
        decoder_law = self.model.decoder_law
        law: list[Tensor] = [p for p in self.model.law.parameters() if p.requires_grad]
        if decoder_law is None:
            return [(law, rate)]
        return [([*law, decoder_law.log_scale], rate), ([decoder_law.offset], decoder_rate)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Return −ELBO / N, estimated on a minibatch for many rows."""
        rows = self.rows
        count = rows.count
        if len(rows) > WHOLE:
            rows = rows.take(integers(len(rows), (2 * BATCH,), generator, rows.x.device))
        draws = self.model.draw(rows.x, self.each, generator)
        draws = replace(draws, log_weight=draws.log_weight.to(draws.f.dtype))
        bound = elbo(draws, self.likelihood, rows.y, size=len(self.rows), weight=rows.weight)
        self._last = {
            "elbo": bound.value.detach(),
            "log_likelihood": bound.log_likelihood.detach(),
            **{f"divergence_{name}": term.detach() for name, term in bound.divergence.items()},
        }
        return -bound.value / count

    def metrics(self) -> dict[str, float]:
        """Return the ELBO of the last step, its terms, and the statistics of q(z)."""
        metrics = {name: float(value) for name, value in self._last.items()}
        if not all(map(math.isfinite, metrics.values())):
            raise DivergenceError(
                f"the ELBO of the latent posterior is not finite ({metrics}); check the table for extreme values"
            )
        return {**metrics, **self.model.structure().statistics}

    def finish(self) -> dict[str, Tensor]:
        """Return the state of the model."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}
