"""Steps after a training: posteriors that are drawn around a trained network."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators.preparation import Prepared
from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.baselines.laplace import doubted, laplace_posterior
from fathomless.families.baselines.trajectories import CHAINS, constant_rate, iterates, subspace_draws, swag_draws
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import calibrate
from fathomless.nn.flat import flatten
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["AlongTrajectory", "DrawNetworks", "LaplaceDraws", "SWAGDraws", "SubspaceDraws"]

_BATCH = 32  # rows of a step at a constant rate


@dataclass(frozen=True)
class DrawNetworks:
    """Step that draws networks around each trained one, and fits the noise anew.

    The noise of the training held a part of the doubt about weights.

    Attributes
    ----------
    posterior : callable
        Finds the posterior of a trained network, and draws from it, given p(y | f), rows and a seed.
    calibrate : bool
        True if the noise is fitted anew.
    """

    posterior: Callable[[DrawnNetworks, Likelihood, Rows, int], None]
    calibrate: bool

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Draw the networks."""
        if not isinstance(table.train, Rows):
            raise DataError("a posterior around what is trained was asked for of a stream; it needs all rows at once")
        for k, model in enumerate(list_members(fitted.model)):
            seed = fold_in(table.seed, "drawn", k)
            self.posterior(cast(DrawnNetworks, model), fitted.likelihood, table.train, seed)
        valid = table.valid
        if valid is None or not len(valid):
            return fitted
        score = calibrate(fitted.model, fitted.likelihood, valid, 1, fitted.seed, move=self.calibrate)
        return replace(fitted, score=score)


@dataclass(frozen=True)
class LaplaceDraws:
    """Draws from Laplace's approximation.

    Attributes
    ----------
    networks : int
        Number of draws.
    """

    networks: int

    def __call__(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        """Draw networks."""
        posterior = laplace_posterior(model.network, likelihood, rows, model.prior_scale())
        generator = torch.Generator().manual_seed(seed)
        told = doubted(likelihood)
        part = told if told < likelihood.outputs else None
        model.take(posterior.deviations(self.networks, generator), posterior.precision, part)


@dataclass(frozen=True)
class AlongTrajectory:
    """Draws given the iterates of a descent at a constant rate.

    Attributes
    ----------
    draws : callable
        Draws weights (n, P), given a network, p(y | f), rows, iterates (T, P) and a generator; returns beside them how
        many are of one chain, if chains drew them.
    passes : int
        As the option of estimators.
    """

    draws: Callable[[DrawnNetworks, Likelihood, Rows, Tensor, torch.Generator], tuple[Tensor, int | None]]
    passes: int

    def __call__(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        """Descend, and draw networks."""
        held, network, scale = copy.deepcopy(likelihood).requires_grad_(False), model.network, model.prior_scale()
        batch = min(_BATCH, len(rows))
        rate = constant_rate(network, held, rows, scale, batch, fold_in(seed, "rate"))
        points = iterates(
            network, held, rows, scale, rate=rate, batch=batch, passes=self.passes, seed=fold_in(seed, "batches")
        )
        generator = torch.Generator().manual_seed(fold_in(seed, "draws"))
        apart, stretch = self.draws(model, held, rows, points, generator)
        model.take(apart - flatten(network), stretch=stretch)


@dataclass(frozen=True)
class SWAGDraws:
    """Draws from the normal law with the moments of iterates.

    Attributes
    ----------
    rank, networks : int
        As the options of estimators.
    """

    rank: int
    networks: int

    def __call__(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        """Draw weights (n, P), given iterates (T, P)."""
        return swag_draws(points, self.rank, self.networks, generator), None


@dataclass(frozen=True)
class SubspaceDraws:
    """Draws from the posterior in the plane of the leading directions of iterates.

    Attributes
    ----------
    dimension, networks : int
        As the options `subspace_dimension` and `networks` of estimators.
    """

    dimension: int
    networks: int

    def __call__(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        """Draw weights (n, P), given iterates (T, P)."""
        scale = model.prior_scale()
        drawn = subspace_draws(model.network, likelihood, rows, scale, points, self.dimension, self.networks, generator)
        return drawn, math.ceil(self.networks / CHAINS)
