"""Steps after a training that draw networks from a posterior around the trained one."""

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
from fathomless.families.baselines.laplace import count_uncertain_outputs, laplace_posterior
from fathomless.families.baselines.trajectories import (
    CHAINS,
    choose_constant_rate,
    collect_iterates,
    draw_subspace,
    draw_swag,
)
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import calibrate
from fathomless.nn.flat import flatten
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["DrawNetworks", "LaplaceDraws", "SWAGDraws", "SubspaceDraws", "TrajectoryDraws"]

_BATCH = 32  # minibatch size of gradient descent at a constant rate


@dataclass(frozen=True)
class DrawNetworks:
    """Step that draws networks around each trained one, and refits the noise.

    The noise fitted in training includes a part of the uncertainty of the weights, which the draws represent now.

    Attributes
    ----------
    posterior : callable
        Computes the posterior of a trained network and sets draws from it, given p(y | f), rows and a seed.
    calibrate : bool
        True to refit the noise on the validation rows.
    """

    posterior: Callable[[DrawnNetworks, Likelihood, Rows, int], None]
    calibrate: bool

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Draw the networks."""
        if not isinstance(table.train, Rows):
            raise DataError(
                "a posterior around a trained network was requested for a stream; it needs all rows in memory"
            )
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
    """Draws of networks from Laplace's approximation.

    Attributes
    ----------
    networks : int
        Number of draws.
    """

    networks: int

    def __call__(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        """Compute the posterior and set draws from it."""
        posterior = laplace_posterior(model.network, likelihood, rows, model.prior_scale())
        generator = torch.Generator().manual_seed(seed)
        uncertain = count_uncertain_outputs(likelihood)
        outputs = uncertain if uncertain < likelihood.outputs else None
        model.set_draws(posterior.deviations(self.networks, generator), posterior.precision, outputs)


@dataclass(frozen=True)
class TrajectoryDraws:
    """Draws of networks from a posterior fitted to the iterates of gradient descent at a constant rate.

    Attributes
    ----------
    draws : callable
        Draws weights (n, P) given a network, p(y | f), rows, iterates (T, P) and a generator. It also returns the
        number of consecutive draws from one Markov chain, or None for independent draws.
    passes : int
        Number of passes over the rows, as in the options of estimators.
    """

    draws: Callable[[DrawnNetworks, Likelihood, Rows, Tensor, torch.Generator], tuple[Tensor, int | None]]
    passes: int

    def __call__(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        """Run gradient descent from the trained weights, and set draws."""
        likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        network = model.network
        scale = model.prior_scale()
        batch = min(_BATCH, len(rows))
        rate = choose_constant_rate(network, likelihood, rows, scale, batch, fold_in(seed, "rate"))
        points = collect_iterates(
            network, likelihood, rows, scale, rate=rate, batch=batch, passes=self.passes, seed=fold_in(seed, "batches")
        )
        generator = torch.Generator().manual_seed(fold_in(seed, "draws"))
        weights, chain_length = self.draws(model, likelihood, rows, points, generator)
        model.set_draws(weights - flatten(network), chain_length=chain_length)


@dataclass(frozen=True)
class SWAGDraws:
    """Draws from the Gaussian with the moments of the iterates (SWAG).

    Attributes
    ----------
    rank, networks : int
        As the options `rank` and `networks` of estimators.
    """

    rank: int
    networks: int

    def __call__(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        """Draw weights (n, P), given iterates (T, P)."""
        return draw_swag(points, self.rank, self.networks, generator), None


@dataclass(frozen=True)
class SubspaceDraws:
    """Draws from the posterior in the subspace of the leading principal components of the iterates.

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
        weights = draw_subspace(
            model.network, likelihood, rows, scale, points, self.dimension, self.networks, generator
        )
        return weights, math.ceil(self.networks / CHAINS)
