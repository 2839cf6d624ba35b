"""Boosted trees beside the networks of a fit: option `trees`."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.rows import Rows
from fathomless.data.targets import ClassLabels, Indicators
from fathomless.estimators.encoding import ClassTask, NumberTask, Task
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.estimators.unseen import find_unseen_rows, predict_unseen_rows
from fathomless.inference.out_of_fold.recalibration import FEWEST_ROWS, OutOfFoldLaws
from fathomless.inference.out_of_fold.trees import GrownTrees, TreeRows, grow_trees, pool_trees
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import TreesFit
from fathomless.posterior.trees import TreePool
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["check_trees", "grow_trees_of_numbers", "pool_with_trees", "warn_without_trees"]


def check_trees(task: Task, table: Prepared) -> None:
    """Check that the option `trees` can have an effect.

    Parameters
    ----------
    task : Task
        Task of the fit.
    table : Prepared
        Table of the fit.

    Raises
    ------
    DataError
        If it is set, and other options, the target or the source of the rows do not allow trees.
    """
    if not task.trees:
        return
    if isinstance(task, NumberTask) and task.density:
        raise DataError("trees=True was given, but a density has no features; set it to False")
    if isinstance(task, NumberTask) and not task.is_recalibrated:
        raise DataError(
            f"trees=True was given, but this fit is not recalibrated (likelihood={task.law!r}, noise={task.noise!r}); "
            "it needs likelihood='auto', noise='learned' or 'input', recalibrate=True and calibrate=True: set these, "
            "or trees=False"
        )
    if isinstance(table.target, Indicators):
        raise DataError(
            f"trees=True was given with {len(table.target.counts)} columns of labels; it requires one class for each "
            "row: set it to False"
        )
    if not isinstance(table.train, Rows):
        raise DataError(
            "trees=True was given with a stream; it requires a table in memory: call fit, or set it to False"
        )


def warn_without_trees(fitted: Fitted, unreliable: float = 0.0) -> Fitted:
    """Return a fit with the warning that no trees could be fitted.

    `unreliable` is the share of the training rows with unreliable leave-one-out laws, if this is the reason.
    """
    reason = (
        f"the leave-one-out distributions of {100.0 * unreliable:.0f} % of the training rows are unreliable. Keep more "
        "states"
        if unreliable
        else f"it needs {FEWEST_ROWS} different rows with features to which the networks were not fitted. Give more "
        "rows; cross-fit (cv) or hold out rows (validation_fraction), if the estimator has these options"
    )
    text = f"trees=True has no effect on this fit: {reason}; or set trees=False"
    return replace(fitted, warnings=(*fitted.warnings, text))


def grow_trees_of_numbers(rows: OutOfFoldLaws, fitted: Fitted, table: Prepared) -> GrownTrees | None:
    """Fit trees to numeric targets, with scores of the rows of a recalibration; None if there are no features.

    Parameters
    ----------
    rows : OutOfFoldLaws
        Rows of the recalibration.
    fitted : Fitted
        Networks.
    table : Prepared
        Table of the fit.
    """
    return _grow(_Unseen(rows.x, rows.y, rows.fold, rows.weight), fitted, table, None)


def pool_with_trees(fitted: Fitted, table: Prepared, problem: Problem) -> Fitted:
    """Pool the predictions of classes with boosted trees, if the task asks for it and unseen rows improve.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.trees`. The networks stay unchanged. The validation
    score increases by the cross-validated change of the log-likelihood.

    Parameters
    ----------
    fitted : Fitted
        Networks with their temperature.
    table : Prepared
        Table of the fit. Trees are fitted on the folds of cross-fitted networks, or to the training rows of a single
        network with held-out rows.
    problem : Problem
        Networks and task of the fit.
    """
    task = problem.task
    if not isinstance(task, ClassTask) or not task.trees:
        return fitted
    unseen = find_unseen_rows(fitted, table)
    if unseen is None or len(unseen.rows) < FEWEST_ROWS or len(unseen.part.unique()) < 2:
        return warn_without_trees(fitted)
    rows, classes = unseen.rows, len(cast(ClassLabels, table.target).labels)
    weight, y = rows.counts, rows.y.cpu()
    grown = _grow(_Unseen(rows.x.double().cpu(), y, unseen.part, weight), fitted, table, classes)
    if grown is None:
        return warn_without_trees(fitted)
    prediction = cast(ClassPredictive, predict_unseen_rows(fitted, table, problem, unseen))
    found = pool_trees(prediction.log_p, prediction.log_weight, grown.scores, y, unseen.part, weight)
    a, b = found.powers.tolist()
    record = TreesFit(
        weight=b / (a + b) if b > 0.0 else 0.0,
        gain=found.gain,
        error=found.error,
        iterations=grown.trees.iterations,
        rows=len(rows),
    )
    fitted = replace(fitted, diagnostics=replace(fitted.diagnostics, trees=record))
    if b == 0.0:
        return fitted
    score = None if fitted.score is None else fitted.score + found.change
    return replace(fitted, trees=TreePool(grown.trees, found.powers), score=score)


@dataclass(frozen=True)
class _Unseen:
    """Rows to which the networks were not fitted: features (N, D), targets, parts (N,) and weights (N,)."""

    x: Tensor
    y: Tensor
    part: Tensor
    weight: Tensor


def _grow(unseen: _Unseen, fitted: Fitted, table: Prepared, classes: int | None) -> GrownTrees | None:
    """Fit trees to the training rows, with scores of the unseen rows; None if there are no features.

    The unseen rows are out-of-fold rows, training rows with leave-one-out laws, or held-out rows. No ensemble is
    trained on held-out rows.
    """
    columns = np.array(table.schema.plain_features, dtype=np.int64)
    if not len(columns):
        return None
    train, seed = cast(Rows, table.train), fold_in(table.seed, "trees")
    number = torch.float64 if classes is None else torch.int64
    y = train.y.cpu().to(number)
    if classes is None:
        y = y[:, : unseen.y.shape[1]]
    count = len(train)
    x, weight, index = train.x.double().cpu(), train.counts, torch.arange(count, device="cpu")
    if fitted.left_out is None and isinstance(fitted.model, Ensemble) and table.folds is not None:
        folds = without(table.folds.numpy(), fitted.diverged)
        index = torch.from_numpy(np.flatnonzero(folds.min(0) >= 0))
        part = folds[0]
        inside = [np.flatnonzero(part != k) for k in range(int(part.max()) + 1)]  # with rows that are in every training
    else:
        more = slice(0 if fitted.left_out is None else count, None)  # the held-out rows
        x, y, weight = (
            torch.cat([own, others[more].to(own)])
            for own, others in ((x, unseen.x), (y, unseen.y), (weight, unseen.weight))
        )
        index = torch.arange(len(x) - len(unseen.x), len(x), device="cpu")
        part = np.zeros(len(x), dtype=np.int64)
        inside = [np.arange(count)]
        if fitted.left_out is not None:
            part = unseen.part.numpy()
            inside = [np.flatnonzero(part[:count] != k) for k in range(int(part.max()) + 1)]
    kept = index.numpy()
    outside = [kept[part[kept] == k] for k in range(len(inside))]
    rows = TreeRows(x.numpy(), y.numpy(), weight.numpy(), inside, outside, columns)
    grown = grow_trees(rows, classes, seed)
    return replace(grown, scores=grown.scores[index])
