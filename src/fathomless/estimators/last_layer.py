"""Heads with a posterior: what is decided anew once they are known.

The scale of the noise says what the posterior of a head is. The noise that was fitted to point estimates holds a part
of the doubt about heads, so with the posterior held, the law over structure and the noise are fitted to unseen rows
anew.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fathomless.data.rows import Rows
from fathomless.estimators.finalize import fit_likelihood
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.crossfit import OutOfFold, fold_indices, predict_held_out, predict_out_of_fold
from fathomless.inference.out_of_fold.heads import set_head_posterior
from fathomless.inference.out_of_fold.noise import KAPPA, KAPPA_ALONE, log_densities_by_structure
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import calibrate as calibrated
from fathomless.posterior.capabilities import ListedStructure
from fathomless.posterior.ensemble import list_members

__all__ = ["fit_heads_in_sample", "fit_heads_out_of_fold"]

_DRAWS = 16  # of the heads of each network
_FEWEST = 4
_NUMBERS = 2**24  # outputs of all draws for all rows, about, beyond which there are fewer draws


def fit_heads_out_of_fold(
    fitted: Fitted,
    seen: OutOfFold,
    search: StructureSearch | None,
    kind: str,
    prepared: Prepared,
    *,
    calibrate: bool,
    free_noise: bool,
) -> tuple[Fitted, OutOfFold]:
    """Give networks that are judged by unseen rows posteriors of their heads; fit the law over structure anew.

    Parameters
    ----------
    fitted : Fitted
        Networks with the noise of their training.
    seen : Held
        Rows under the networks that have not seen them.
    search : StructureSearch, optional
        What fitted the law over structure, if it is not given.
    kind : {"laplace", "conjugate"}
        What the mean of a head is.
    prepared : Prepared
        The table, its held-out rows or its folds.
    calibrate, free_noise : bool
        As in :func:`~fathomless.estimators.finalize.finalize`, which the noise is left to.

    Returns
    -------
    fitted, seen
        The same networks, with a law that was fitted to the rows under draws of their heads; and the rows under these.
    """
    likelihood, models = fitted.likelihood, list_members(fitted.model)
    train, folds = prepared.train, prepared.folds
    if calibrate:
        kappa = KAPPA_ALONE if folds is None else KAPPA
        likelihood = fit_likelihood(seen, likelihood, kappa, free_noise=free_noise)[1]
    draws = max(_FEWEST, min(_DRAWS, _NUMBERS // max(seen.f.numel(), 1)))
    if folds is None:
        assert prepared.valid is not None
        for model in models:
            set_head_posterior(model, likelihood, train, kind)
        seen = replace(predict_held_out(fitted.model, prepared.valid, fitted.seed, draws), rows=seen.rows)
    else:
        assert isinstance(train, Rows)
        inside, outside = fold_indices(folds)
        kept = [k for k in range(len(inside)) if k not in fitted.diverged]
        for model, k in zip(models, kept, strict=True):
            set_head_posterior(model, likelihood, train.take(inside[k].to(train.x.device)), kind)
        seen = predict_out_of_fold(models, train, [outside[k] for k in kept], fitted.seed, draws)
    if search is None or fitted.log_densities is None:
        return fitted, seen
    found = log_densities_by_structure(seen, fitted.likelihood)
    shared = ranks().broadcast_tensor(found.log_density.to(seen.f.device)).cpu()
    first, *others = [model for model in models if isinstance(model, ListedStructure)]
    found = search.adopt(first, replace(found, log_density=shared))
    for model in others:
        model.weigh(search.q, only=True)
    return replace(fitted, log_densities=found), _under(seen, search.q)


def fit_heads_in_sample(fitted: Fitted, kind: str, prepared: Prepared, *, calibrate: bool) -> Fitted:
    """Give networks that were fitted by the evidence bound posteriors of their heads; fit the noise anew.

    Parameters are those of :func:`fit_heads_out_of_fold`.
    """
    for model in list_members(fitted.model):
        with_posterior(model, fitted.likelihood, prepared.train, kind)
    valid = prepared.valid
    if valid is None or not len(valid):
        return fitted
    score = calibrated(fitted.model, fitted.likelihood, valid, _DRAWS, fitted.seed, move=calibrate)
    return replace(fitted, score=score)


def _under(seen: OutOfFold, q: Mapping[int, float]) -> OutOfFold:
    """Return the draws of those structures that have mass, with it."""
    kept = torch.tensor([number in q for number in seen.structure.tolist()], device=seen.f.device)
    structure = seen.structure[kept]
    times = {number: int((structure == number).sum()) for number in q}
    weight = [q[number] / times[number] for number in structure.tolist()]
    log_weight = torch.tensor(weight, dtype=torch.float64, device=seen.f.device).log()
    return replace(seen, f=seen.f[kept], structure=structure, log_weight=log_weight)
