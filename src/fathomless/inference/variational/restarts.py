"""Restarts: several trainings from different seeds in one batch, combined as the best one or as an ensemble."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.batched import BatchedRuns, fit_batched
from fathomless.inference.variational.svi import calibrate
from fathomless.inference.variational.training import Training
from fathomless.posterior.ensemble import Ensemble, check_no_shared_parameters
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.progress import Progress
from fathomless.system.rng import fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["fit_restarts"]


@enable_gradients()
def fit_restarts(
    starts: Sequence[tuple[Model, Likelihood]],
    train: Rows,
    valid: Rows | None,
    combine: str,
    *,
    training: Training,
    seed: int,
    callbacks: Sequence[Callable[[BatchedRuns], None]] = (),
    progress: Progress | None = None,
    resume: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> Fitted:
    """Train all starts on the same rows, each with its own order of the rows; return one fit.

    Parameters
    ----------
    starts : sequence of (Model, Likelihood)
        Untrained models that differ in their seeds only.
    train, valid : Rows
        As in :func:`~fathomless.inference.variational.svi.fit`.
    combine : {"best", "average"}
        Return the fit with the best validation score (without validation rows, the best evidence lower bound); or an
        :class:`~fathomless.posterior.ensemble.Ensemble` of all, whose noise is calibrated again.
    training, seed, callbacks, progress, resume
        As in :func:`~fathomless.inference.variational.batched.fit_batched`.

    Raises
    ------
    DataError
        If `combine` has another value, or as in :func:`~fathomless.inference.variational.batched.fit_batched`.
    DivergenceError
        If all starts failed; single ones that fail are left out.
    """
    checks.choice("combine", combine, ("best", "average"))
    if not isinstance(train, Rows):
        raise DataError(f"n_restarts={len(starts)} was given with data that are read in batches; set it to 1")
    check_no_shared_parameters([model for model, _ in starts])
    results = fit_batched(
        [model for model, _ in starts],
        [likelihood for _, likelihood in starts],
        train,
        valid,
        training=training,
        seeds=[seed if i == 0 else fold_in(seed, "restart", i) for i in range(len(starts))],
        callbacks=callbacks,
        progress=progress,
        resume=resume,
    )
    members = [member for member in results if not member.error]
    if combine == "best":
        return max(members, key=_comparison_score)
    likelihood = _average_likelihoods(members)
    ensemble = Ensemble([member.model for member in members]).eval()
    score = None
    if valid is not None and len(valid):
        score = calibrate(ensemble, likelihood, valid, training.draws, seed, move=training.calibrate)
    return Fitted(
        ensemble,
        likelihood,
        _average_histories(results),
        max(member.n_iter for member in results),
        score,
        seed,
        training=training,
        stopped=all(member.stopped for member in members),
        planned=members[0].planned,
    )


def _comparison_score(member: Fitted) -> float:
    """Return the validation score of a fit, or its last evidence lower bound without one."""
    if member.score is not None:
        return member.score
    return member.history[-1]["elbo"] if member.history else -math.inf


def _average_histories(members: Sequence[Fitted]) -> list[dict[str, float]]:
    """Average the histories of members, row by row, over those that were still being trained."""
    rows: dict[int, list[dict[str, float]]] = {}
    for member in members:
        for row in member.history:
            rows.setdefault(int(row["epoch"]), []).append(row)
    return [
        {
            **{name: math.fsum(row[name] for row in of_epoch) / len(of_epoch) for name in of_epoch[0]},
            "epoch": epoch,
            "step": int(of_epoch[0]["step"]),
        }
        for epoch, of_epoch in sorted(rows.items())
    ]


@torch.no_grad()
def _average_likelihoods(members: Sequence[Fitted]) -> Likelihood:
    """Return a likelihood with the averages of the members' parameters."""
    likelihood = copy.deepcopy(members[0].likelihood)
    learned = [dict(member.likelihood.named_parameters()) for member in members]
    for name, p in likelihood.named_parameters():
        p.copy_(torch.stack([parameters[name] for parameters in learned]).mean(0))
    return likelihood.eval()
