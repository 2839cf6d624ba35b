r"""Conformal prediction intervals from out-of-fold or held-out scores.

A unit u is a network, or a mixture of networks, that was trained without some of the rows. With the predictive mean
:math:`m_u` and standard deviation :math:`s_u` of unit u, the score of row i is

.. math:: R_i = |y_i - m_{u(i)}(x_i)| \,/\, s_{u(i)}(x_i),

where u(i) was not trained on row i. The interval of a new row x at level :math:`1 - \alpha` is that of CV+ (Barber,
Candès, Ramdas, Tibshirani 2021, Annals of Statistics 49, 486) for these normalised scores: its upper bound is the
smallest v with

.. math:: \sum_i w_i\, 1\{m_{u(i)}(x) + R_i\, s_{u(i)}(x) \le v\} \ge (1 - \alpha) \left(1 + \sum_i w_i\right),

its lower bound is the mirror image. With one unit this is split conformal prediction. A bound is infinite if the scores
are too few for the level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.predictive import predictive
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["ConformalScores", "interval_bounds", "unit_moments"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_HALVINGS = 64  # bisections of a bound
_ROUNDING = 1e-12  # relative error of a bound
_MOST_DRAWS = 10_000  # weight draws of each network


@dataclass(frozen=True, eq=False)
class ConformalScores:
    """Scores of rows under networks that were not trained on them.

    A row has a score for each partition in which it is out of fold.

    Attributes
    ----------
    score : ndarray, shape (P, T)
        Absolute error divided by the predictive standard deviation, for each target. Infinite if a network has no
        finite prediction.
    unit : ndarray of int, shape (P,)
        Unit of each score.
    weight : ndarray, shape (P,)
        Weights of the scores. Their sum is the number of rows, or of groups.
    category : ndarray of int, shape (P, C)
        Category of each row in every column of `columns`.
    networks : tuple of tuples of int
        Numbers of the networks of each unit.
    columns : tuple of str
        Names of the categorical and boolean columns.
    draws : int
        Number of weight draws of each network, for sampled weights.
    """

    score: Floats
    unit: Ints
    weight: Floats
    category: Ints
    networks: tuple[tuple[int, ...], ...]
    columns: tuple[str, ...]
    draws: int

    def column(self, name: str) -> int:
        """Return the index of a column.

        Raises
        ------
        DataError
            If there is no categorical or boolean column of this name.
        """
        if name not in self.columns:
            known = ", ".join(map(repr, self.columns))
            allowed = f"allowed are the columns {known}" if known else "the training table had no such column"
            raise DataError(f"column={name!r} was given; a column of categories or booleans is needed: {allowed}")
        return self.columns.index(name)

    def of_category(self, column: int, code: int) -> "ConformalScores":
        """Return the scores of the rows of one category."""
        chosen = self.category[:, column] == code
        return ConformalScores(
            self.score[chosen],
            self.unit[chosen],
            self.weight[chosen],
            self.category[chosen],
            self.networks,
            self.columns,
            self.draws,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays as tensors, for saving."""
        return {
            "score": torch.as_tensor(self.score, device="cpu"),
            "unit": torch.as_tensor(self.unit.astype(np.int32), device="cpu"),
            "weight": torch.as_tensor(self.weight, device="cpu"),
            "category": torch.as_tensor(self.category.astype(np.int32), device="cpu"),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the other attributes as plain JSON."""
        return {
            "networks": [list(numbers) for numbers in self.networks],
            "columns": list(self.columns),
            "draws": self.draws,
        }

    @staticmethod
    def from_saved(tensors: dict[str, Tensor], meta: Any, targets: int, members: int) -> "ConformalScores":
        """Rebuild scores from :meth:`tensors` and :meth:`to_json`.

        Parameters
        ----------
        tensors : dict of str to Tensor
            Result of :meth:`tensors`.
        meta : object
            Result of :meth:`to_json`.
        targets, members : int
            Number of targets of the estimator, and of its networks.

        Raises
        ------
        DataError
            If they are inconsistent.
        """
        networks = tuple(tuple(numbers) for numbers in meta["networks"])
        columns = tuple(meta["columns"])
        score, weight = (tensors[name].numpy().astype(np.float64) for name in ("score", "weight"))
        unit, category = (tensors[name].numpy().astype(np.int64) for name in ("unit", "category"))
        rows = len(score)
        shapes = score.shape == (rows, targets) and unit.shape == weight.shape == (rows,)
        if not shapes or category.shape != (rows, len(columns)):
            raise DataError("its conformal scores have inconsistent shapes")
        whole = all(type(n) is int and 0 <= n < members for numbers in networks for n in numbers)
        if not whole or not all(networks) or unit.min(initial=0) < 0 or unit.max(initial=-1) >= len(networks):
            raise DataError("its conformal scores name networks that do not exist")
        if np.isnan(score).any() or (score < 0.0).any() or not (np.isfinite(weight) & (weight > 0.0)).all():
            raise DataError("its conformal scores are negative or not numbers, or their weights are not positive")
        if type(meta["draws"]) is not int or not 1 <= meta["draws"] <= _MOST_DRAWS:
            raise DataError("its number of weight draws was altered")
        return ConformalScores(score, unit, weight, category, networks, columns, meta["draws"])


@torch.no_grad()
def unit_moments(
    model: Model,
    networks: Sequence[int],
    likelihood: Likelihood,
    x: Tensor,
    draws: int,
    seed: int,
    shift: Sequence[float] | None = None,
    scale: Sequence[float] | None = None,
) -> tuple[Floats, Floats]:
    """Compute the predictive mean and standard deviation of a unit, (B, T) each.

    The weight draws depend on the unit and the seed only, so that they are equal for all rows.

    Parameters
    ----------
    model : Model
        All networks.
    networks : sequence of int
        Numbers of the networks of the unit.
    likelihood : Likelihood
        Likelihood of a continuous target.
    x : Tensor, shape (B, D)
        Encoded rows.
    draws, seed : int
        Number of weight draws of each network, for sampled weights, and the seed of the fit.
    shift, scale : sequence of T floats, optional
        Change of units, as in :func:`~fathomless.posterior.predictive.predictive`.
    """
    members = list_members(model)
    if len(networks) == len(members):
        unit = model
    elif len(networks) == 1:
        unit = members[networks[0]]
    else:
        weights = model.weights if isinstance(model, Ensemble) else ()
        unit = Ensemble([members[n] for n in networks], [weights[n] for n in networks]).eval()
    drawn = unit.draw(x, draws, as_generator(fold_in(seed, "conformal", *networks[:1])))
    component = predictive(drawn, likelihood, shift=shift, scale=scale)
    mixture = component.mixture  # type: ignore[union-attr]
    return mixture.mean.numpy(), mixture.variance.sqrt().numpy()


def interval_bounds(scores: ConformalScores, mean: Floats, std: Floats, level: float) -> tuple[Floats, Floats]:
    """Compute the bounds of the conformal interval of each row, (B, T) each.

    Parameters
    ----------
    scores : ConformalScores
        Scores of the rows that are compared with the new ones.
    mean, std : ndarrays, shape (U, B, T)
        Predictive mean and standard deviation of every unit for the new rows.
    level : float
        Level of the interval, between 0 and 1.
    """
    needed = level * (1.0 + float(scores.weight.sum()))
    low, high = np.empty_like(mean[0]), np.empty_like(mean[0])
    for t in range(mean.shape[2]):
        units, sorted_scores, masses = [], [], []
        for u in range(len(mean)):
            own = np.flatnonzero((scores.unit == u) & np.isfinite(scores.score[:, t]))
            if len(own):
                order = own[np.argsort(scores.score[own, t], kind="stable")]
                units.append(u)
                sorted_scores.append(scores.score[order, t])
                masses.append(np.concatenate([[0.0], np.cumsum(scores.weight[order])]))
        m, s = mean[units, :, t], std[units, :, t]
        high[:, t] = _upper(m, s, sorted_scores, masses, needed)
        low[:, t] = -_upper(-m, s, sorted_scores, masses, needed)
    # bounds of CV+ can cross if the units disagree; the set is then empty, and the interval between them contains it
    return np.minimum(low, high), np.maximum(low, high)


def _upper(m: Floats, s: Floats, scores: Sequence[Floats], masses: Sequence[Floats], needed: float) -> Floats:
    """Return the smallest v for which the scores with m + R s <= v have the needed mass, (B,); m and s are (U, B).

    The values of a unit are sorted, so that a bisection of v needs one binary search in each unit. The last step
    returns one of the values.
    """
    needed -= _ROUNDING * needed  # a sum of weights may be rounded down
    if sum(mass[-1] for mass in masses) < needed:
        return np.full(m.shape[1], math.inf)
    below = np.min([m[u] + r[0] * s[u] for u, r in enumerate(scores)], 0)
    low = below - s.max(0) - np.abs(below)  # below all values
    high = np.max([m[u] + r[-1] * s[u] for u, r in enumerate(scores)], 0)
    for _ in range(_HALVINGS):
        if (high - low <= 0.1 * _ROUNDING * (np.abs(low) + s.min(0))).all():
            break
        middle = 0.5 * low + 0.5 * high
        found = np.zeros(len(middle))
        for u, (r, mass) in enumerate(zip(scores, masses, strict=True)):
            found += mass[np.searchsorted(r, (middle - m[u]) / s[u], side="right")]
        enough = found >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    low = low - _ROUNDING * (np.abs(low) + s.min(0))
    answer = np.full(m.shape[1], math.inf)
    for u, r in enumerate(scores):
        place = np.searchsorted(r, (low - m[u]) / s[u], side="right")
        inside = place < len(r)
        value = m[u] + r[np.minimum(place, len(r) - 1)] * s[u]
        answer = np.where(inside & (value < answer), value, answer)
    return answer
