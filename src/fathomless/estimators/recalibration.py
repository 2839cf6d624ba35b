"""Recalibration of a fit: the laws of the standardised residual, learned from out-of-fold or held-out rows."""

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.neighbors import find_neighbors, warn_unused
from fathomless.estimators.predictor import Array, Predictor, concatenate_parts
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.inference.out_of_fold.recalibration import FEWEST_ROWS, OutOfFoldLaws, fit_recalibration
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.censoring import log_probability
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Mixture

__all__ = ["recalibrate"]


def recalibrate(fitted: Fitted, table: Prepared, problem: Problem) -> Fitted:
    """Learn the laws of the standardised residual, if the task asks for it and there are rows to learn from.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.recalibration`. The networks stay unchanged. The
    validation score increases by the cross-validated gain.

    Parameters
    ----------
    fitted : Fitted
        Networks with their noise.
    table : Prepared
        Table of the fit. Cross-fitted networks use their out-of-fold rows, and a single network its held-out rows.
    problem : Problem
        Networks and task of the fit.
    """
    task = problem.task
    if not isinstance(task, NumberTask) or not task.is_recalibrated:
        return fitted
    rows = _predict_unseen_rows(fitted, table, problem)
    if rows is None:
        return warn_unused(fitted) if task.neighbors else fitted
    neighbors = None
    if task.neighbors:
        found = find_neighbors(fitted, table, rows.x)
        if found is None:
            fitted = warn_unused(fitted)
        else:
            neighbors, near = found
            rows = replace(rows, near=near)
    step = torch.tensor(cast(TargetScale, table.target).steps, dtype=torch.float64, device="cpu")
    recalibration, fits = fit_recalibration(rows, step, table.seed, neighbors)
    gain = sum(fit.gain for fit in fits if fit.used)
    score = None if fitted.score is None else fitted.score + gain
    diagnostics = replace(fitted.diagnostics, recalibration=fits)
    return replace(fitted, recalibration=recalibration, diagnostics=diagnostics, score=score)


def _predict_unseen_rows(fitted: Fitted, table: Prepared, problem: Problem) -> OutOfFoldLaws | None:
    """Return the rows to which the networks were not fitted, with their predictions; None if there are too few."""
    rows: Rows
    folds: Array | None = None
    if isinstance(fitted.model, Ensemble) and table.folds is not None:
        all_folds = without(table.folds.numpy(), fitted.diverged)
        kept = np.flatnonzero(all_folds.min(0) >= 0)  # rows of networks that diverged have no out-of-fold prediction
        rows = cast(Rows, table.train).take(torch.from_numpy(kept).to(table.device))
        folds = all_folds[:, kept]
        part = torch.from_numpy(folds[0].astype(np.int64))
    elif table.valid is not None and len(table.valid):
        all_folds = None
        rows = table.valid
        part = assign_parts(len(rows))
    else:
        return None
    if len(rows) < FEWEST_ROWS or rows.x.ndim != 2:
        return None
    predictor = Predictor(
        name=type(problem.networks).__name__,
        task=problem.task,
        schema=table.schema,
        target=table.target,
        model=fitted.model.eval(),
        likelihood=fitted.likelihood,
        structure=fitted.model.structure(),
        diagnostics=fitted.diagnostics,
        seed=table.seed,
        weight_draws=problem.networks.weight_draws,
        fold=all_folds,
    )
    x = rows.x.cpu().numpy()
    prediction = concatenate_parts(predictor.predict_parts(lambda part: x[part], len(x), folds), len(x))
    law = cast(NumberPredictive, prediction).continuous.network_mixture
    units = problem.task.units(table.target)
    shift, scale = (torch.as_tensor(units[name], dtype=torch.float64, device="cpu") for name in ("shift", "scale"))
    targets = len(cast(TargetScale, table.target).mean)
    y = rows.y.double().cpu()[:, :targets]
    upper = rows.y.double().cpu()[:, targets:] if table.censored else None
    even = torch.ones(len(y), dtype=torch.float64, device="cpu")
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
        fold=part,
        weight=even if rows.weight is None else rows.weight.double().cpu(),
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
