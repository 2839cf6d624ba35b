"""Recalibration of a fit: the laws of the standardised residual, from rows to which it was not fitted."""

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.neighbors import find_neighbors, warn_unused
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.estimators.trees import grow_trees_of_numbers, warn_without_trees
from fathomless.estimators.unseen import UnseenRows, find_unseen_rows, held_out_rows, predict_unseen_rows
from fathomless.inference.mcmc.psis import MOST_UNRELIABLE
from fathomless.inference.out_of_fold.recalibration import FEWEST_ROWS, OutOfFoldLaws, fit_recalibration
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.censoring import log_probability
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.fit_diagnostics import RecalibrationFit
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.left_out import LeftOutLaws
from fathomless.posterior.mixtures import Mixture
from fathomless.system.rng import as_generator, fold_in

__all__ = ["recalibrate"]


def recalibrate(fitted: Fitted, table: Prepared, problem: Problem) -> Fitted:
    """Learn the laws of the standardised residual, if the task asks for it and there are rows to learn from.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.recalibration`. The networks stay unchanged. The
    validation score increases by the cross-validated gain, the mean over all rows that are used.

    Parameters
    ----------
    fitted : Fitted
        Networks with their noise.
    table : Prepared
        Table of the fit. Cross-fitted networks use their out-of-fold rows, and a single network its held-out rows.
        Sampled networks use the leave-one-out laws of their training rows, and held-out rows if there are any. If more
        than a quarter of the leave-one-out laws are unreliable, only held-out rows are used.
    problem : Problem
        Networks and task of the fit.
    """
    task = problem.task
    if not isinstance(task, NumberTask) or not task.is_recalibrated:
        return fitted
    unreliable = 0.0 if fitted.left_out is None else _share_of_unreliable(fitted.left_out, cast(Rows, table.train))
    if unreliable > MOST_UNRELIABLE:
        fitted = replace(fitted, left_out=None)
    rows = _predict_unseen_rows(fitted, table, problem)
    if rows is None:
        fitted = warn_unused(fitted) if task.neighbors else fitted
        unreliable = unreliable if unreliable > MOST_UNRELIABLE else 0.0
        fitted = warn_without_trees(fitted, unreliable) if task.trees else fitted
        return _record_unreliable(fitted, table, unreliable) if unreliable else fitted
    neighbors = None
    if task.neighbors:
        found = find_neighbors(fitted, table, rows.x)
        if found is None:
            fitted = warn_unused(fitted)
        else:
            neighbors, near = found
            rows = replace(rows, near=near)
    trees = grow_trees_of_numbers(rows, fitted, table) if task.trees else None
    if task.trees and trees is None:
        fitted = warn_without_trees(fitted)
    step = torch.tensor(cast(TargetScale, table.target).steps, dtype=torch.float64, device="cpu")
    recalibration, fits = fit_recalibration(rows, step, table.seed, neighbors, table.device, trees)
    fits = tuple(replace(fit, unreliable=unreliable) for fit in fits)
    gain = sum(fit.gain for fit in fits if fit.used)
    score = None if fitted.score is None else fitted.score + gain
    diagnostics = replace(fitted.diagnostics, recalibration=fits)
    return replace(fitted, recalibration=recalibration, diagnostics=diagnostics, score=score)


def _share_of_unreliable(left_out: LeftOutLaws, rows: Rows) -> float:
    """Return the share of the training rows whose leave-one-out law is unreliable."""
    weight = rows.counts
    return float(weight @ left_out.unreliable / weight.sum())


def _record_unreliable(fitted: Fitted, table: Prepared, unreliable: float) -> Fitted:
    """Return a fit whose diagnostics contain the reason for which there is no recalibration."""
    record = RecalibrationFit(
        weights={"networks": 1.0}, gain=0.0, error=0.0, rows=len(table.train), steps={}, unreliable=unreliable
    )
    records = (record,) * len(cast(TargetScale, table.target).mean)
    return replace(fitted, diagnostics=replace(fitted.diagnostics, recalibration=records))


def _predict_unseen_rows(fitted: Fitted, table: Prepared, problem: Problem) -> OutOfFoldLaws | None:
    """Return the rows to which the networks were not fitted, with their predictions; None if there are too few."""
    found: OutOfFoldLaws | None = None
    if fitted.left_out is not None:
        found = _leave_out_rows(fitted.left_out, table)
        unseen = held_out_rows(table)
        if unseen is not None:
            found = found.join(_predict_rows(fitted, table, problem, unseen))
    else:
        unseen = find_unseen_rows(fitted, table)
        if unseen is not None and len(unseen.rows) >= FEWEST_ROWS:
            found = _predict_rows(fitted, table, problem, unseen)
    return found if found is None or len(found.y) >= FEWEST_ROWS else None


def _leave_out_rows(left_out: LeftOutLaws, table: Prepared) -> OutOfFoldLaws:
    """Return the training rows with their leave-one-out laws.

    Each row is left out of its own law, so that any partition of the rows is allowed, with the rows of a group and
    copies of a row in one part: the folds of the table, or else random parts.
    """
    rows = cast(Rows, table.train)
    if table.folds is not None and int(table.folds[0].min()) >= 0:
        part = table.folds[0]
    else:
        unit = torch.arange(len(rows), device="cpu") if table.group is None else table.group
        unit = unit.unique(return_inverse=True)[1]
        count = int(unit.max()) + 1
        order = torch.randperm(count, generator=as_generator(fold_in(table.seed, "left out")), device="cpu")
        part = assign_parts(count)[order][unit]
    return OutOfFoldLaws(
        x=rows.x.double().cpu(),
        y=rows.y.double().cpu(),
        mean=left_out.mean,
        std=left_out.std,
        log_density=left_out.log_density,
        fold=part,
        weight=rows.counts,
    )


def _predict_rows(fitted: Fitted, table: Prepared, problem: Problem, unseen: UnseenRows) -> OutOfFoldLaws:
    """Predict rows by networks that were not fitted to them."""
    rows = unseen.rows
    prediction = predict_unseen_rows(fitted, table, problem, unseen)
    law = cast(NumberPredictive, prediction).continuous.network_mixture
    units = problem.task.units(table.target)
    shift, scale = (torch.as_tensor(units[name], dtype=torch.float64, device="cpu") for name in ("shift", "scale"))
    targets = len(cast(TargetScale, table.target).mean)
    y = rows.y.double().cpu()[:, :targets]
    upper = rows.y.double().cpu()[:, targets:] if table.censored else None
    half = None
    if upper is not None:
        log_density = _log_density_of_bounds(law, shift, scale, y, upper)
    elif isinstance(prediction, LatticePredictive):
        log_density = prediction.log_prob((shift + scale * y).reshape(prediction.shape))[:, None]
        half = 0.5 * prediction.step / law.std
    else:
        log_density = law.log_prob(shift + scale * y) + scale.log()
    return OutOfFoldLaws(
        x=rows.x.double().cpu(),
        y=y,
        mean=(law.mean - shift) / scale,
        std=law.std / scale,
        log_density=log_density,
        fold=unseen.part,
        weight=rows.counts,
        half=half,
        upper=upper,
    )


def _log_density_of_bounds(law: Mixture, shift: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return log densities of known targets and log probabilities between the bounds of the others, (N, T)."""
    known = low == high
    density = law.log_prob(shift + scale * torch.where(known, low, 0.0)) + scale.log()
    # the probabilities of known targets are not used
    below, above = torch.where(known, 0.0, low), torch.where(known, math.inf, high)
    between = log_probability(law, shift + scale * below, shift + scale * above, law.log_prob)
    return torch.where(known, density, between)
