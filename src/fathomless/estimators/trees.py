"""Boosted trees beside the networks of a fit: option `trees`."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

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


def warn_without_trees(fitted: Fitted) -> Fitted:
    """Return a fit with the warning that no trees could be fitted."""
    text = (
        f"trees=True has no effect on this fit: it needs at least {FEWEST_ROWS} out-of-fold or held-out rows with "
        "features. Give more rows, cross-fit (cv) or hold out rows (validation_fraction), or set trees=False"
    )
    return replace(fitted, warnings=(*fitted.warnings, text))


def grow_trees_of_numbers(rows: OutOfFoldLaws, fitted: Fitted, table: Prepared) -> GrownTrees | None:
    """Fit trees to numeric targets, with scores of the rows of a recalibration; None if there are no features.

    Parameters
    ----------
    rows : OutOfFoldLaws
        Rows of the recalibration. Their folds are those of the trees, unless they were held out of a single network.
    fitted : Fitted
        Networks.
    table : Prepared
        Table of the fit.
    """
    apart = table.folds is None and fitted.left_out is None
    return _grow(rows.x, rows.y, rows.fold, rows.weight, table, None, held_out=apart)


def pool_with_trees(fitted: Fitted, table: Prepared, problem: Problem) -> Fitted:
    """Pool the predictions of classes with boosted trees, if the task asks for it and unseen rows improve.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.trees`. The networks stay unchanged. The validation
    score increases by the cross-validated gain.

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
    weight = rows.counts
    x, y = rows.x.double().cpu(), rows.y.cpu()
    grown = _grow(x, y, unseen.part, weight, table, classes, held_out=unseen.folds is None)
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
    if b == 0.0 and a == 1.0:
        return fitted
    score = None if fitted.score is None else fitted.score + found.gain
    return replace(fitted, trees=TreePool(grown.trees, found.powers), score=score)


def _grow(
    x: Tensor, y: Tensor, fold: Tensor, weight: Tensor, table: Prepared, classes: int | None, *, held_out: bool
) -> GrownTrees | None:
    """Fit trees to the other folds of these rows, or to the training rows if these rows are held out."""
    columns = np.array(table.schema.plain_features, dtype=np.int64)
    if not len(columns):
        return None
    seed = fold_in(table.seed, "trees")
    number = np.float64 if classes is None else np.int64
    rows = x.numpy(), y.numpy().astype(number), weight.numpy()
    if not held_out:
        of_row = fold.numpy()
        folds = range(int(of_row.max()) + 1)
        inside = [np.flatnonzero(of_row != k) for k in folds]
        outside = [np.flatnonzero(of_row == k) for k in folds]
        return grow_trees(TreeRows(*rows, inside, outside, columns), classes, seed)
    train = cast(Rows, table.train)
    trained = train.x.double().cpu().numpy(), train.y.cpu().numpy().astype(number), train.counts.numpy()
    all_x, all_y, all_weight = (np.concatenate(pair) for pair in zip(trained, rows, strict=True))
    count = len(train)
    inside, outside = [np.arange(count)], [count + np.arange(len(x))]
    grown = grow_trees(TreeRows(all_x, all_y, all_weight, inside, outside, columns), classes, seed)
    return replace(grown, scores=grown.scores[torch.arange(count, count + len(x), device="cpu")])
