"""Targets with atoms: networks of a fit are trained on the other values, and networks of the atoms on all rows."""

import warnings
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from fathomless.data.rows import Rows, concatenate
from fathomless.data.targets import TargetScale
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.hurdle import AtomRows, fit_atoms
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.likelihoods import cell_of
from fathomless.system.errors import DataWarning
from fathomless.system.rng import fold_in

__all__ = ["add_atoms", "leave_out_atoms"]


def leave_out_atoms(table: Prepared) -> Prepared:
    """Return the table without the rows at atoms; the table itself if there are none.

    The folds stay the same.

    Parameters
    ----------
    table : Prepared
        Table of a fit.

    Warns
    -----
    DataWarning
        If a fold has only atoms. The table is then returned with all rows.
    """
    if table.atom is None:
        return table
    train = cast(Rows, table.train)
    kept = torch.nonzero(table.atom == 0).flatten()
    folds = table.folds
    if folds is not None:
        number, folds = int(folds.max()) + 1, folds[:, kept]
        if any(len(part[part >= 0].unique()) < number for part in folds):
            warnings.warn(
                f"y is one of {list(cast(TargetScale, table.target).hurdle)} in all rows of a fold; the networks are "
                "therefore trained on all rows, and not only on other values. Use folds with other values",
                DataWarning,
                stacklevel=2,
            )
            return table
    valid, mass, seen = table.valid, table.mass, kept
    if valid is not None and table.atom_held_out is not None:
        seen = torch.nonzero(table.atom_held_out == 0).flatten()
        valid = valid.take(seen.to(valid.x.device))
        valid = valid if len(valid) else None
    return replace(
        table,
        train=train.take(kept.to(train.x.device)),
        valid=valid,
        folds=folds,
        group=None if table.group is None else table.group[kept],
        mass=None if mass is None else mass[seen],
    )


def add_atoms(fitted: Fitted, table: Prepared) -> Fitted:
    """Fit the probabilities of the atoms, if the target has any that were left out.

    The validation score becomes that of all rows: log probabilities of the atoms, and log densities of other values.

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
    if table.valid is not None and table.atom_held_out is not None:
        train, number = concatenate([train, table.valid]), torch.cat([number, table.atom_held_out])
    x = train.x.double().cpu()
    rows = AtomRows(
        x=x,
        number=number,
        fold=assign_parts(len(x)) if table.folds is None else table.folds[0],
        weight=torch.ones_like(x[:, 0]) if train.weight is None else train.weight.double().cpu(),
    )
    target = cast(TargetScale, table.target)
    networks, fit = fit_atoms(rows, target.hurdle, fold_in(table.seed, "hurdle"))
    score = fitted.score
    if score is not None:
        others = 1.0 - float(np.sum(fit.shares))
        unit = 0.0 if cell_of(fitted.likelihood) is not None else target.log_unit  # is subtracted from the result
        score = others * score + fit.log_probability + (1.0 - others) * unit
    diagnostics = replace(fitted.diagnostics, hurdle=fit)
    return replace(fitted, hurdle=networks, diagnostics=diagnostics, score=score)
