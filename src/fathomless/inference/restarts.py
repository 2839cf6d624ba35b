"""Several trainings from different starts, side by side: the best of them, or all of them as an ensemble."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.inference.batched import Member, Runs, fit_many
from fathomless.inference.objective import log_predictive
from fathomless.inference.run import Best
from fathomless.inference.svi import calibrate
from fathomless.inference.training import Training
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, derive

__all__ = ["restarted"]


def restarted(
    starts: Sequence[tuple[Model, Likelihood]],
    train: Rows,
    valid: Rows | None,
    combine: str,
    *,
    training: Training,
    seed: int,
    callbacks: Sequence[Callable[[Runs], None]] = (),
    progress: Progress | None = None,
    resume: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> Member:
    """Train every start on the same rows, each with its own order of them; return one fit.

    Parameters
    ----------
    starts : sequence of (Model, Likelihood)
        Untrained, alike but for their seeds.
    train, valid : Rows
        As in :func:`~fathomless.inference.svi.fit`.
    combine : {"best", "average"}
        The fit with the best validation score (without validation rows, the best evidence bound); or an
        :class:`~fathomless.posterior.ensemble.Ensemble` of all, whose noise is calibrated anew.
    training, seed, callbacks, progress, resume
        As in :func:`~fathomless.inference.batched.fit_many`.

    Raises
    ------
    DataError
        For another `combine`, and whatever :func:`~fathomless.inference.batched.fit_many` refuses.
    DivergenceError
        If every start failed; those that fail alone are left out.
    """
    if combine not in ("best", "average"):
        raise DataError(f"restarts={combine!r} was given; allowed are 'best' and 'average'")
    if not isinstance(train, Rows):
        raise DataError(f"n_restarts={len(starts)} was given with data that are read in parts; set it to 1")
    runs = fit_many(
        [model for model, _ in starts],
        [likelihood for _, likelihood in starts],
        train,
        valid,
        training=training,
        seeds=[seed if i == 0 else derive(seed, "restart", i) for i in range(len(starts))],
        callbacks=callbacks,
        progress=progress,
        resume=resume,
    )
    members = [member for member in runs.members if not member.error]
    if combine == "best":
        return max(members, key=_standing)
    likelihood = _mean(members)
    whole = Ensemble([member.model for member in members]).eval()
    together = Member(whole, likelihood, training, seed, runs.history, Best(), runs.epoch, all(m.stop for m in members))
    if valid is not None and len(valid):
        with torch.no_grad():
            noise = as_generator(derive(seed, "score"), device=valid.x.device)
            density = log_predictive(whole.draw(valid.x, max(training.draws, 8), noise), likelihood, valid.y)
            weighed = density if valid.weight is None else density * valid.weight
            together.best = Best(float(weighed.double().sum()) / valid.count, runs.epoch)
        if training.calibrate:
            calibrate(whole, likelihood, valid, training.draws, seed)
    return together


def _standing(member: Member) -> float:
    if member.best.score is not None:
        return member.best.score
    return member.history[-1]["elbo"] if member.history else -math.inf


@torch.no_grad()
def _mean(members: Sequence[Member]) -> Likelihood:
    """Average what the members' likelihoods have learned."""
    likelihood = copy.deepcopy(members[0].likelihood)
    each = [dict(member.likelihood.named_parameters()) for member in members]
    for name, p in likelihood.named_parameters():
        p.copy_(torch.stack([own[name] for own in each]).mean(0))
    return likelihood.eval()
