"""A logarithmic transform of a skewed target, chosen by out-of-fold rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import Target, TargetScale
from fathomless.estimators.encoding import NumberTask, Task
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.transforms import propose_transform
from fathomless.inference.runs.limits import TimeLimit
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.fit_diagnostics import TransformFit
from fathomless.posterior.likelihoods import cell_of
from fathomless.system.errors import DivergenceError

__all__ = ["is_noise_free", "try_transform"]

_LEAST_GAIN = 2.0  # out-of-fold gain in nats, summed over the rows


def is_noise_free(options: Mapping[str, Any], target: Target) -> bool:
    """Return True if out-of-fold rows may choose the distribution of the noise.

    The noise of a transformed target is Gaussian, so that moments of the target are finite.
    """
    transformed = isinstance(target, TargetScale) and target.transform is not None
    return options.get("likelihood") == "auto" and not transformed


def try_transform(
    table: Prepared,
    fitted: Fitted,
    task: Task,
    fit_again: Callable[[TargetScale], tuple[Prepared, Fitted]],
    *,
    bounds: bool,
    limit: TimeLimit | None = None,
) -> tuple[Prepared, Fitted]:
    """Fit a transformed target too, if the rows suggest it, and return the fit with the higher out-of-fold score.

    The transform is tried for a single target of 30 to 1,000 rows in memory, and if the laws of the residual are
    learned (:attr:`NumberTask.is_recalibrated`). If the fit predicts probabilities of cells of a lattice, the
    transformed target is an interval, the cell of its value.

    Parameters
    ----------
    table : Prepared
        Table of the fit.
    fitted : Fitted
        Fit to the target itself.
    task : Task
        Encoding of the target.
    fit_again : callable
        Function that fits another encoding of the target, and returns its table and the fit.
    bounds : bool
        True if the inference allows targets that are intervals.
    limit : TimeLimit, optional
        Time limit, with less than half of which there is no second fit.
    """
    target = table.target
    if not isinstance(task, NumberTask) or not task.is_recalibrated or not isinstance(target, TargetScale):
        return table, fitted
    in_memory = isinstance(table.train, Rows) and table.train.x.ndim == 2
    if not in_memory or table.censored or len(target.mean) > 1 or target.transform or fitted.score is None:
        return table, fitted
    cells = cell_of(fitted.likelihood) is not None
    if cells and (not bounds or not target.lattice):
        return table, fitted
    if not cells and target.atoms and set(target.atoms[0]) - set(target.hurdle):
        return table, fitted  # a steep transform would raise the density at a value that many rows share
    proposed = _propose(table, target, cells=cells)
    if proposed is None:
        return table, fitted
    other_target, record = proposed
    if limit is not None and not limit.allows(0.5 * limit.seconds):
        text = f"minutes={limit.minutes:g} left out a second fit, to the logarithm of the target, which may be better"
        return table, replace(fitted, warnings=(*fitted.warnings, text))
    try:
        other_table, other = fit_again(other_target)
    except DivergenceError as error:
        text = f"the logarithm of the target was tried, and its training failed ({error}); the target itself is used"
        return table, replace(fitted, warnings=(*fitted.warnings, text))
    if other.score is None or cell_of(other.likelihood) is not None:
        return table, fitted  # only the logarithm lies on a coarse lattice
    unit = 0.0 if cells else target.log_unit
    gain = (other.score - other_target.log_unit) - (fitted.score - unit)
    rows = table.train if table.folds is not None or table.valid is None else table.valid
    record = replace(record, gain=gain, used=gain * rows.count > _LEAST_GAIN)
    chosen_table, chosen = (other_table, other) if record.used else (table, fitted)
    return chosen_table, replace(chosen, diagnostics=replace(chosen.diagnostics, transform=record))


def _propose(table: Prepared, target: TargetScale, *, cells: bool) -> tuple[TargetScale, TransformFit] | None:
    """Return the encoding with the proposed transform, and its record; None if no transform is proposed."""
    x, y, weight = _read_others(target, cast(Rows, table.train), table.atom, table.schema.plain_features)
    proposal = propose_transform(x, y, weight)
    if proposal is None:
        return None
    transform = proposal.transform
    encoding = target.with_transform(transform, y.numpy(), None if weight is None else weight.numpy(), cells=cells)
    if table.folds is None and table.valid is not None:
        _, scored, weight = _read_others(target, table.valid, table.atom_held_out, table.schema.plain_features)
        if len(scored):
            encoding = encoding.with_slope(scored.numpy(), None if weight is None else weight.numpy())
    record = TransformFit(
        threshold=transform.threshold,
        unit=transform.unit,
        sign=transform.sign,
        expected=proposal.gain,
        error=proposal.error,
        gain=0.0,
        used=False,
    )
    return encoding, record


def _read_others(
    target: TargetScale, rows: Rows, atom: Tensor | None, features: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return some features, targets in their units, and weights, without rows at atoms, in double precision."""
    others = slice(None) if atom is None else torch.nonzero(atom == 0).flatten()
    x = rows.x.double().cpu()[others][:, list(features)]
    y = torch.from_numpy(target.decode(rows.y.double().cpu().numpy())).reshape(-1)[others]
    return x, y, None if rows.weight is None else rows.weight.double().cpu()[others]
