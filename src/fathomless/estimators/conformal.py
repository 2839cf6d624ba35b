"""Conformal scores of a fit: errors of the rows under the networks that were not trained on them."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.categories import category_columns, read_categories
from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.estimators.encoding import NumberTask, Task
from fathomless.estimators.preparation import Prepared
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.conformal import ConformalScores, unit_moments
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.system.errors import DataError, DivergenceError

__all__ = ["score_rows"]

_CHUNK = 4096  # rows evaluated at once

#: Rows that a unit was not trained on: numbers of the networks of the unit, and indices of the rows.
Unit = tuple[tuple[int, ...], Tensor]


def score_rows(prepared: Prepared, fitted: Fitted, task: Task, draws: int) -> ConformalScores | None:
    """Compute the conformal scores of the out-of-fold or held-out rows of a regression.

    They take one evaluation of each row by the networks that were not trained on it. None without such rows, for
    classes and densities, and for censored targets, whose errors are unknown.

    Parameters
    ----------
    prepared : Prepared
        Table of the fit.
    fitted : Fitted
        Result of the fit.
    task : Task
        Encoding of rows and targets.
    draws : int
        Number of weight draws of each network, for sampled weights.
    """
    target = prepared.target
    if not isinstance(task, NumberTask) or task.density:
        return None
    if prepared.censored and not cast(TargetScale, target).cells:
        return None
    rows, units = _list_units(prepared, fitted)
    if rows is None or not units:
        return None
    index = torch.cat([of_unit for _, of_unit in units]).numpy()
    times = np.bincount(index, minlength=len(rows))
    mass = prepared.mass if prepared.mass is not None else rows.weight
    weight = np.ones(len(rows)) if mass is None else mass.double().cpu().numpy()
    if cast(TargetScale, target).cells:
        points = cast(TargetScale, target).locate_points(rows.y.double().cpu().numpy())
        rows = replace(rows, y=torch.from_numpy(points).to(rows.y))
    parts = [_score_unit(fitted, numbers, rows, of_unit, draws) for numbers, of_unit in units]
    return ConformalScores(
        score=np.concatenate(parts),
        unit=np.repeat(np.arange(len(units)), [len(of_unit) for _, of_unit in units]),
        weight=(weight / np.maximum(times, 1))[index],
        category=read_categories(prepared.schema, rows.x[index].cpu().numpy()),
        networks=tuple(numbers for numbers, _ in units),
        columns=category_columns(prepared.schema),
        draws=draws,
    )


def _list_units(prepared: Prepared, fitted: Fitted) -> tuple[Rows | None, list[Unit]]:
    """Return the rows that networks were not trained on, and the units that are applied to them."""
    count = len(list_members(fitted.model))
    if prepared.folds is None:
        valid = prepared.valid
        if valid is None or not len(valid):
            return None, []
        return valid, [(tuple(range(count)), torch.arange(len(valid)))]
    if not isinstance(fitted.model, Ensemble) or not isinstance(prepared.train, Rows):
        return None, []  # the posterior was fitted to all rows
    kinds = fitted.diagnostics.kinds if isinstance(fitted.diagnostics, CrossFitDiagnostics) else ()
    repeats = len(prepared.folds) // max(1, len(kinds))  # the partitions are repeated for each candidate
    size = int(prepared.folds.max()) + 1
    trained = [i for i in range(len(prepared.folds) * size) if i not in fitted.diverged]
    if len(trained) != count:
        return None, []
    place = {number: i for i, number in enumerate(trained)}
    units = []
    for r in range(repeats):
        for k in range(size):
            numbers = range(r * size + k, len(prepared.folds) * size, repeats * size)  # one for each candidate
            outside = torch.nonzero(prepared.folds[r] == k).flatten()
            if len(outside) and all(number in place for number in numbers):
                units.append((tuple(place[number] for number in numbers), outside))
    return prepared.train, units


def _score_unit(
    fitted: Fitted, numbers: tuple[int, ...], rows: Rows, index: Tensor, draws: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return the scores of the rows of a unit, (n, T); infinite where a network has no finite prediction."""
    scores = []
    for part in rows.take(index.to(rows.x.device)).parts(_CHUNK):
        y = part.y.double().cpu().numpy()
        x = part.x.to(fitted.model.dtype)  # sampled weights are in single precision
        try:
            mean, std = unit_moments(fitted.model, numbers, fitted.likelihood, x, draws, fitted.seed)
        except (DataError, DivergenceError):
            scores.append(np.full(y.shape, np.inf))
        else:
            scores.append(np.abs(y - mean) / std)
    return np.concatenate(scores)
