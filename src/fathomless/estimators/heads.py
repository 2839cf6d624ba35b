"""Heads with a posterior: what is decided anew once they are known.

The scale of the noise says what the posterior of a head is. The noise that was fitted to point estimates holds a part
of the doubt about heads, so with the posterior held, the law over structure and the noise are fitted to unseen rows
anew.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fathomless.data.rows import Rows
from fathomless.estimators.crossfitting import settled
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.crossfit import Held, folded, held, held_apart
from fathomless.inference.out_of_fold.heads import with_posterior
from fathomless.inference.out_of_fold.looks import Looks
from fathomless.inference.out_of_fold.noise import KAPPA, KAPPA_ALONE, by_structure
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import calibrate as calibrated
from fathomless.posterior.capabilities import ListedStructure
from fathomless.posterior.ensemble import members_of

__all__ = ["heads_by_bound", "heads_by_rows"]

_DRAWS = 16  # of the heads of each network
_FEWEST = 4
_NUMBERS = 2**24  # outputs of all draws for all rows, about, beyond which there are fewer draws


def heads_by_rows(
    fitted: Fitted,
    seen: Held,
    looks: Looks | None,
    kind: str,
    prepared: Prepared,
    *,
    calibrate: bool,
    free_noise: bool,
) -> tuple[Fitted, Held]:
    """Give networks that are judged by unseen rows posteriors of their heads; fit the law over structure anew.

    Parameters
    ----------
    fitted : Fitted
        Networks with the noise of their training.
    seen : Held
        Rows under the networks that have not seen them.
    looks : Looks, optional
        What fitted the law over structure, if it is not given.
    kind : {"laplace", "bayes"}
        What the mean of a head is.
    prepared : Prepared
        The table, its held-out rows or its folds.
    calibrate, free_noise : bool
        As in :func:`~fathomless.estimators.crossfitting.concluded`, which the noise is left to.

    Returns
    -------
    fitted, seen
        The same networks, with a law that was fitted to the rows under draws of their heads; and the rows under these.
    """
    likelihood, models = fitted.likelihood, members_of(fitted.model)
    train, folds = prepared.train, prepared.folds
    if calibrate:
        kappa = KAPPA_ALONE if folds is None else KAPPA
        likelihood = settled(seen, likelihood, kappa, free_noise=free_noise)[1]
    draws = max(_FEWEST, min(_DRAWS, _NUMBERS // max(seen.f.numel(), 1)))
    if folds is None:
        assert prepared.valid is not None
        for model in models:
            with_posterior(model, likelihood, train, kind)
        seen = replace(held(fitted.model, prepared.valid, fitted.seed, draws), rows=seen.rows)
    else:
        assert isinstance(train, Rows)
        inside, outside = folded(folds)
        kept = [k for k in range(len(inside)) if k not in fitted.lost]
        for model, k in zip(models, kept, strict=True):
            with_posterior(model, likelihood, train.take(inside[k].to(train.x.device)), kind)
        seen = held_apart(models, train, [outside[k] for k in kept], fitted.seed, draws)
    if looks is None or fitted.found is None:
        return fitted, seen
    found = by_structure(seen, fitted.likelihood)
    shared = ranks().tensor_from_first(found.log_density.to(seen.f.device)).cpu()
    first, *others = [model for model in models if isinstance(model, ListedStructure)]
    found = looks.adopt(first, replace(found, log_density=shared))
    for model in others:
        model.weigh(looks.q, only=True)
    return replace(fitted, found=found), _under(seen, looks.q)


def heads_by_bound(fitted: Fitted, kind: str, prepared: Prepared, *, calibrate: bool) -> Fitted:
    """Give networks that were fitted by the evidence bound posteriors of their heads; fit the noise anew.

    Parameters are those of :func:`heads_by_rows`.
    """
    for model in members_of(fitted.model):
        with_posterior(model, fitted.likelihood, prepared.train, kind)
    valid = prepared.valid
    if valid is None or not len(valid):
        return fitted
    score = calibrated(fitted.model, fitted.likelihood, valid, _DRAWS, fitted.seed, move=calibrate)
    return replace(fitted, score=score)


def _under(seen: Held, q: Mapping[int, float]) -> Held:
    """Return the draws of those structures that have mass, with it."""
    kept = torch.tensor([number in q for number in seen.structure.tolist()], device=seen.f.device)
    structure = seen.structure[kept]
    times = {number: int((structure == number).sum()) for number in q}
    weight = [q[number] / times[number] for number in structure.tolist()]
    log_weight = torch.tensor(weight, dtype=torch.float64, device=seen.f.device).log()
    return replace(seen, f=seen.f[kept], structure=structure, log_weight=log_weight)
