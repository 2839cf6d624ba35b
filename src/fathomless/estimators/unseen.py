"""Rows to which the networks of a fit were not fitted, and their predictions."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.rows import Rows
from fathomless.estimators.predictor import AnyPredictive, Array, Predictor, concatenate_parts
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.ensemble import Ensemble

__all__ = ["UnseenRows", "find_unseen_rows", "held_out_rows", "predict_unseen_rows"]


@dataclass(frozen=True)
class UnseenRows:
    """Out-of-fold rows of cross-fitted networks, or held-out rows of a single network.

    Attributes
    ----------
    rows : Rows
        The N rows, which are not empty.
    part : Tensor of int64, shape (N,)
        Fold of each row, 0, 1, ...; or parts of the held-out rows.
    folds : (ndarray, ndarray), optional
        Folds of all training rows and of these rows, for cross-fitted networks.
    """

    rows: Rows
    part: Tensor
    folds: tuple[Array, Array] | None = None


def find_unseen_rows(fitted: Fitted, table: Prepared) -> UnseenRows | None:
    """Return the rows to which the networks were not fitted; None if there are none, or if rows are not vectors.

    Parameters
    ----------
    fitted : Fitted
        Networks.
    table : Prepared
        Table of the fit.
    """
    if isinstance(fitted.model, Ensemble) and table.folds is not None:
        folds = without(table.folds.numpy(), fitted.diverged)
        kept = np.flatnonzero(folds.min(0) >= 0)  # rows of networks that diverged have no out-of-fold prediction
        rows = cast(Rows, table.train).take(torch.from_numpy(kept).to(table.device))
        part = torch.from_numpy(folds[0, kept].astype(np.int64))
        return UnseenRows(rows, part, (folds, folds[:, kept])) if len(rows) and rows.x.ndim == 2 else None
    return held_out_rows(table)


def held_out_rows(table: Prepared) -> UnseenRows | None:
    """Return the held-out rows of a table; None if there are none, or if rows are not vectors."""
    valid = table.valid
    if valid is None or not len(valid) or valid.x.ndim != 2:
        return None
    return UnseenRows(valid, assign_parts(len(valid)))


def predict_unseen_rows(fitted: Fitted, table: Prepared, problem: Problem, unseen: UnseenRows) -> AnyPredictive:
    """Predict each row by the networks that were not fitted to it, without a recalibration.

    Parameters
    ----------
    fitted : Fitted
        Networks with their noise.
    table : Prepared
        Table of the fit.
    problem : Problem
        Networks and task of the fit.
    unseen : UnseenRows
        Rows.
    """
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
        fold=None if unseen.folds is None else unseen.folds[0],
    )
    x = unseen.rows.x.cpu().numpy()
    of_row = None if unseen.folds is None else unseen.folds[1]
    return concatenate_parts(predictor.predict_parts(lambda part: x[part], len(x), of_row), len(x))
