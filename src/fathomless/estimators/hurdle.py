"""Targets with atoms: networks of a fit are trained on the other values, and networks of the atoms on all rows."""

import warnings
from dataclasses import replace
from typing import cast

import torch

from fathomless.data.folds import without
from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.hurdle import AtomRows, fit_atoms
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.likelihoods import cell_of
from fathomless.system.errors import DataWarning
from fathomless.system.rng import fold_in

__all__ = ["add_atoms", "leave_out_atoms", "require_other_values"]

_PARTS = 10  # parts of the training rows of a single network, for the probabilities of the atoms


def require_other_values(table: Prepared) -> Prepared:
    """Return the table, without the atoms of its target if there are no other values to train on.

    Other values are required in the training rows, and in every fold. Censored targets have no atoms.

    Parameters
    ----------
    table : Prepared
        Table of a fit.

    Warns
    -----
    DataWarning
        If atoms are not predicted apart for this reason.
    """
    target = table.target
    if not isinstance(target, TargetScale) or not target.hurdle:
        return table
    plain = replace(table, target=replace(target, hurdle=()), atom=None, atom_held_out=None)
    if table.atom is None:
        return plain
    others = table.atom == 0
    enough = bool(others.any())
    if table.folds is not None:
        number = int(table.folds.max()) + 1
        enough = enough and all(len(part[others & (part >= 0)].unique()) == number for part in table.folds)
    if enough:
        return table
    where = "all training rows" if table.folds is None else "all rows of a fold"
    warnings.warn(
        f"y is one of {list(target.hurdle)} in {where}; these values are therefore not predicted apart from others. "
        "Give rows, or folds, with other values",
        DataWarning,
        stacklevel=2,
    )
    return plain


def leave_out_atoms(table: Prepared) -> Prepared:
    """Return the table without the rows at atoms, with the same folds; the table itself if there are none.

    Parameters
    ----------
    table : Prepared
        Table of a fit, with other values in every fold.
    """
    if table.atom is None:
        return table
    train = cast(Rows, table.train)
    kept = torch.nonzero(table.atom == 0).flatten()
    valid, mass, seen = table.valid, table.mass, kept
    if valid is not None and table.atom_held_out is not None:
        seen = torch.nonzero(table.atom_held_out == 0).flatten()
        valid = valid.take(seen.to(valid.x.device))
        valid = valid if len(valid) else None
    return replace(
        table,
        train=train.take(kept.to(train.x.device)),
        valid=valid,
        folds=None if table.folds is None else table.folds[:, kept],
        group=None if table.group is None else table.group[kept],
        mass=None if mass is None else mass[seen],
    )


def add_atoms(fitted: Fitted, table: Prepared) -> Fitted:
    """Fit the probabilities of the atoms to the training rows, if the target has any that were left out.

    The validation score becomes that of all out-of-fold or held-out rows: log probabilities of the atoms, and log
    densities of other values. If other values lie on a lattice, the probability of the point of an atom under their law
    is left out.

    Parameters
    ----------
    fitted : Fitted
        Networks of the other values.
    table : Prepared
        Table with all rows.
    """
    if table.atom is None:
        return fitted
    train, number = cast(Rows, table.train), table.atom
    if table.folds is not None:
        fold = torch.from_numpy(without(table.folds.numpy(), fitted.diverged))[0]
    else:
        unit = torch.arange(len(train), device="cpu") if table.group is None else table.group
        unit = unit.unique(return_inverse=True)[1]  # rows of a group share a part
        fold = unit % min(_PARTS, int(unit.max()) + 1)
    rows = AtomRows(train.x.double().cpu(), number, fold, train.counts)
    target = cast(TargetScale, table.target)
    networks, fit = fit_atoms(rows, target.hurdle, fold_in(table.seed, "hurdle"))
    log_p = networks.log_mass(rows.x, fold.clamp_min(0)).gather(0, number[None])[0]
    seen, weight = number, rows.weight * (fold >= 0)
    if table.folds is None and table.valid is not None and table.atom_held_out is not None:
        seen, weight = table.atom_held_out, table.valid.counts
        log_p = networks.log_mass(table.valid.x.double().cpu()).gather(0, seen[None])[0]
    score = fitted.score
    if score is not None:
        weight = weight / weight.sum()
        others = float(weight[seen == 0].sum())
        unit_of_y = 0.0 if cell_of(fitted.likelihood) is not None else target.log_unit  # is subtracted from the result
        score = others * score + float(weight @ log_p) + (1.0 - others) * unit_of_y
    diagnostics = replace(fitted.diagnostics, hurdle=fit)
    return replace(fitted, hurdle=networks, diagnostics=diagnostics, score=score)
