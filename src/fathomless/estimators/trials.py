"""Trials: a choice between options of the networks by a short training.

The networks of every trial are cross-fitted on the same folds for 500 steps, or half of the epochs if they are fewer,
with four structures. The trial with the largest mean log-likelihood of out-of-fold rows is chosen if its gain over the
first trial exceeds 0.01 nats per row and two standard errors of the paired difference. Otherwise the first trial is
chosen. The smallest gain is needed because trials with other seeds differ by more than the errors of rows suggest.
Further trials eliminate columns (:mod:`fathomless.estimators.selection`).

There are no trials, and the first options are used, if the networks of a trial would have fewer than 250 steps. With
200 steps, the choice of the prior is wrong on one of the published tables (``benchmarks/results/priors.txt``).

The rows also score the fit, so that its out-of-fold scores are optimistic by the effect of one choice among few trials.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fathomless.inference.variational.training import Training
from fathomless.posterior.fit_diagnostics import Trial
from fathomless.posterior.model import Model

__all__ = ["STRUCTURES", "Attempt", "RowScores", "choose", "describe", "join_folds", "measure_gain", "shorten"]

STRUCTURES = 4  #: number of structures of a trial

_FOLDS = 5  # largest number of networks of a trial
_ERRORS = 2.0  # number of standard errors that the gain of a trial over the first one must exceed
_LEAST = 0.01  # smallest such gain, in nats per row
_SHARE, _STEPS = 0.5, 500  # length of a trial: largest share of the epochs, and largest number of steps
_FEWEST_STEPS = 250  # of a trial


@dataclass(frozen=True)
class RowScores:
    """Log-likelihoods of out-of-fold rows.

    Attributes
    ----------
    rows : Tensor of int64, shape (N,)
        Indices of the rows in the table, ascending.
    log_density : float64 Tensor, shape (N,)
        In nats.
    weight : float64 Tensor, shape (N,), optional
        Sample weights.
    """

    rows: Tensor
    log_density: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Attempt:
    """Cross-fitted networks of one trial, and their scores.

    Attributes
    ----------
    options : mapping
        Options of the networks.
    scores : RowScores, optional
        Scores of the out-of-fold rows; None if the training diverged.
    networks : sequence of F Model
        Networks, in the order of the folds; empty if one of them diverged.
    kept : Tensor of bool, shape (F, columns), optional
        Columns that each network uses; all by default.
    """

    options: Mapping[str, Any]
    scores: RowScores | None
    networks: Sequence[Model] = ()
    kept: Tensor | None = None

    @property
    def columns(self) -> int:
        """Number of columns that each network uses; 0 for all."""
        return 0 if self.kept is None else int(self.kept[0].sum())


def choose(attempts: Sequence[Attempt], group: Tensor | None = None) -> Attempt:
    """Return the trial with the largest clear gain over the first one, which has not diverged; else the first one."""
    gains = _measure_gains(attempts, group)
    clear = [gain if gain > max(_ERRORS * error, _LEAST) else 0.0 for gain, error in gains]
    return attempts[clear.index(max(clear))]


def describe(attempts: Sequence[Attempt], chosen: Attempt, group: Tensor | None = None) -> tuple[Trial, ...]:
    """Describe trials by their gains on the rows that they have in common with the first one.

    Parameters
    ----------
    attempts : sequence of Attempt
        Networks of each trial. The first one has the default options and has not diverged.
    chosen : Attempt
        The chosen one.
    group : Tensor of int64, shape (rows of the table,), optional
        Group of each row of the table. The standard error is that of independent groups.

    Returns
    -------
    tuple of Trial
        One for each trial that did not diverge, in order.

    Examples
    --------
    >>> rows = torch.arange(4, device="cpu")
    >>> first = RowScores(rows, torch.tensor([-1.0, -2.0, -1.0, -2.0], device="cpu").double())
    >>> other = RowScores(rows, first.log_density + torch.tensor([0.4, 0.5, 0.6, 0.5], device="cpu"))
    >>> attempts = [Attempt({"width": 4}, first), Attempt({"width": 8}, other)]
    >>> [(trial.gain, trial.chosen) for trial in describe(attempts, choose(attempts))]
    [(0.0, False), (0.5..., True)]
    """
    gains = _measure_gains(attempts, group)
    return tuple(
        Trial(options=dict(tried.options), gain=gain, error=error, chosen=tried is chosen, columns=tried.columns)
        for tried, (gain, error) in zip(attempts, gains, strict=True)
        if tried.scores is not None
    )


def _measure_gains(attempts: Sequence[Attempt], group: Tensor | None) -> list[tuple[float, float]]:
    """Return the gain of each trial over the first one, and its standard error."""
    first, *others = (attempt.scores for attempt in attempts)
    assert first is not None
    return [(0.0, 0.0), *((0.0, math.inf) if other is None else measure_gain(first, other, group) for other in others)]


def measure_gain(first: RowScores, other: RowScores, group: Tensor | None = None) -> tuple[float, float]:
    """Return the mean difference of the log-likelihoods of common rows, and its standard error."""
    common = torch.isin(first.rows, other.rows)
    difference = other.log_density[torch.isin(other.rows, first.rows)] - first.log_density[common]
    weight = torch.ones_like(difference) if first.weight is None else first.weight[common]
    total = float(weight.sum())
    if not total > 0.0:
        return 0.0, math.inf
    mean = float(weight @ difference) / total
    deviation = weight * (difference - mean)
    if group is not None:
        of_row = group[first.rows[common]].unique(return_inverse=True)[1]
        deviation = torch.zeros(int(of_row.max()) + 1, dtype=torch.float64, device="cpu").index_add(
            0, of_row, deviation
        )
    error = float(deviation.square().sum().sqrt()) / total
    return (mean, error) if math.isfinite(mean) and math.isfinite(error) else (0.0, math.inf)


def join_folds(folds: Tensor) -> Tensor:
    """Merge neighbouring folds (R, N) until there are five at most; −1 stays −1."""
    count = int(folds.max()) + 1
    return folds if count <= _FOLDS else torch.where(folds < 0, folds, folds * _FOLDS // count)


def shorten(training: Training, rows: int) -> Training | None:
    """Return the training of a trial, with networks of a number of training rows; None if it has too few steps."""
    steps = max(1, math.ceil(rows / training.batch_size))
    epochs = max(1, min(round(_SHARE * training.epochs), math.ceil(_STEPS / steps)))
    if epochs * steps < _FEWEST_STEPS:
        return None
    return replace(
        training, epochs=epochs, evaluate_every=min(training.evaluate_every, epochs), patience=None, calibrate=False
    )
