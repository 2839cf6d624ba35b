"""Nearest training rows for the recalibration of a fit: option `neighbors`."""

from dataclasses import replace

import torch
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.rows import Rows
from fathomless.estimators.encoding import NumberTask, Task
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.recalibration import FEWEST_ROWS
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.neighbors import NEIGHBORS, Neighborhoods, NeighborRows
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["check_neighbors", "find_neighbors", "warn_unused"]


def check_neighbors(task: Task) -> None:
    """Check that the option `neighbors` can have an effect.

    Raises
    ------
    DataError
        If it is set, and other options prevent a recalibration.
    """
    if not isinstance(task, NumberTask) or not task.neighbors or task.is_recalibrated:
        return
    if task.density:
        raise DataError("neighbors=True was given, but a density has no features; set it to False")
    raise DataError(
        f"neighbors=True was given, but this fit is not recalibrated (likelihood={task.law!r}, noise={task.noise!r}); "
        "it needs likelihood='auto', noise='learned' or 'input', recalibrate=True and calibrate=True: set these, or "
        "neighbors=False"
    )


def warn_unused(fitted: Fitted) -> Fitted:
    """Return a fit with the warning that neighbours could not be used."""
    text = (
        f"neighbors=True has no effect on this fit: it needs at least {FEWEST_ROWS} out-of-fold or held-out rows of a "
        f"table in memory, and for each of them {NEIGHBORS} training rows outside its group. Give more rows or smaller "
        "groups, or set neighbors=False"
    )
    return replace(fitted, warnings=(*fitted.warnings, text))


def find_neighbors(fitted: Fitted, table: Prepared, x: Tensor) -> tuple[NeighborRows, Neighborhoods] | None:
    """Return the training rows, and the nearest of them to each out-of-fold or held-out row; None if there are too few.

    Neighbours of an out-of-fold row are all other training rows, as they are for new rows, except those of its group:
    given groups, copies of the row, or the whole fold if folds depend on the order of the rows. A held-out row is not
    a training row, and no training row is in its group.

    Parameters
    ----------
    fitted : Fitted
        Result of the inference.
    table : Prepared
        Table of the fit.
    x : Tensor, shape (N, D)
        Encoded out-of-fold rows, which are the training rows of all networks that did not diverge, or held-out rows; or
        all training rows, with leave-one-out laws, and then held-out rows.
    """
    train = table.train
    if not isinstance(train, Rows) or len(train) <= NEIGHBORS:
        return None
    count = len(train)
    unit = torch.arange(count, device="cpu") if table.group is None else table.group
    fold = torch.full((count,), -1, dtype=torch.int64, device="cpu")
    kept = torch.zeros(count, dtype=torch.bool, device="cpu")
    if table.folds is not None and isinstance(fitted.model, Ensemble):
        folds = torch.from_numpy(without(table.folds.numpy(), fitted.diverged))
        fold, kept = folds[0], folds.amin(0) >= 0
        unit = table.folds[0] if table.ordered else unit
    unit = unit.unique(return_inverse=True)[1]
    own = unit[kept]
    if fitted.left_out is not None:  # held-out rows have no group among the training rows
        own = torch.cat([unit, int(unit.max()) + 1 + torch.arange(len(x) - count, device="cpu")])
    # in random order, so that ties of distances are broken at random
    order = torch.randperm(count, generator=as_generator(fold_in(table.seed, "neighbors")), device="cpu")
    rows = NeighborRows(train.x.cpu()[order], train.y.double().cpu()[order], fold[order], unit[order])
    near = rows.find_others(x, own) if len(own) else rows.find(x)
    return None if near is None else (rows, near)
