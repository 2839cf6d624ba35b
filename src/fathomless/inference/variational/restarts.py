"""Several trainings from different starts, side by side: the best of them, or all of them as an ensemble."""

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

__all__ = ["restarted"]


@enable_gradients()
def restarted(
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
    """Train every start on the same rows, each with its own order of them; return one fit.

    Parameters
    ----------
    starts : sequence of (Model, Likelihood)
        Untrained, alike but for their seeds.
    train, valid : Rows
        As in :func:`~fathomless.inference.variational.svi.fit`.
    combine : {"best", "average"}
        The fit with the best validation score (without validation rows, the best evidence bound); or an
        :class:`~fathomless.posterior.ensemble.Ensemble` of all, whose noise is calibrated anew.
    training, seed, callbacks, progress, resume
        As in :func:`~fathomless.inference.variational.batched.fit_batched`.

    Raises
    ------
    DataError
        For another `combine`, and whatever :func:`~fathomless.inference.variational.batched.fit_batched` refuses.
    DivergenceError
        If every start failed; those that fail alone are left out.
    """
    checks.choice("combine", combine, ("best", "average"))
    if not isinstance(train, Rows):
        raise DataError(f"n_restarts={len(starts)} was given with data that are read in parts; set it to 1")
    check_no_shared_parameters([model for model, _ in starts])
    every = fit_batched(
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
    members = [member for member in every if not member.error]
    if combine == "best":
        return max(members, key=_standing)
    likelihood, score = _mean(members), None
    whole = Ensemble([member.model for member in members]).eval()
    if valid is not None and len(valid):
        score = calibrate(whole, likelihood, valid, training.draws, seed, move=training.calibrate)
    return Fitted(
        whole,
        likelihood,
        _mean_history(every),
        max(member.n_iter for member in every),
        score,
        seed,
        training=training,
        stopped=all(member.stopped for member in members),
    )


def _standing(member: Fitted) -> float:
    if member.score is not None:
        return member.score
    return member.history[-1]["elbo"] if member.history else -math.inf


def _mean_history(every: Sequence[Fitted]) -> list[dict[str, float]]:
    """Average the members' histories, row by row, over those that were still being trained."""
    rows: dict[int, list[dict[str, float]]] = {}
    for member in every:
        for row in member.history:
            rows.setdefault(int(row["epoch"]), []).append(row)
    return [
        {
            **{name: math.fsum(row[name] for row in together) / len(together) for name in together[0]},
            "epoch": epoch,
            "step": int(together[0]["step"]),
        }
        for epoch, together in sorted(rows.items())
    ]


@torch.no_grad()
def _mean(members: Sequence[Fitted]) -> Likelihood:
    """Average what the members' likelihoods have learned."""
    likelihood = copy.deepcopy(members[0].likelihood)
    each = [dict(member.likelihood.named_parameters()) for member in members]
    for name, p in likelihood.named_parameters():
        p.copy_(torch.stack([parameters[name] for parameters in each]).mean(0))
    return likelihood.eval()
