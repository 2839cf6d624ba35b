"""Posteriors of the heads, and the law over structure and noise that are refitted for them.

The posterior of a head depends on the scale of the noise. Noise that was fitted with point estimates includes a part of
the uncertainty about the heads. With the posterior of the heads fixed, the law over structure and the noise are
therefore fitted to the held-out rows again.
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

_DRAWS = 16  # draws of the heads of each network
_FEWEST = 4  # minimum number of draws
_NUMBERS = 2**24  # approximate number of outputs of all draws for all rows above which there are fewer draws


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
    """Compute posteriors of the heads of cross-fitted networks, and refit the law over structure.

    Parameters
    ----------
    fitted : Fitted
        Networks with the noise of their training.
    seen : OutOfFold
        Out-of-fold predictions of the networks.
    search : StructureSearch, optional
        Search that fitted the law over structure; None if the law is fixed.
    kind : {"laplace", "conjugate"}
        Mean of the posterior of a head.
    prepared : Prepared
        Table with held-out rows or folds.
    calibrate, free_noise : bool
        As in :func:`~fathomless.estimators.finalize.finalize`, which fits the noise afterwards.

    Returns
    -------
    fitted, seen
        The networks with the refitted law over structure, and the out-of-fold predictions of draws of their heads.
    """
    likelihood = fitted.likelihood
    models = list_members(fitted.model)
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
        # the posterior of a head uses the training rows of its network alone, so that predictions stay out-of-fold
        converged = [k for k in range(len(inside)) if k not in fitted.diverged]
        for model, k in zip(models, converged, strict=True):
            set_head_posterior(model, likelihood, train.take(inside[k].to(train.x.device)), kind)
        seen = predict_out_of_fold(models, train, [outside[k] for k in converged], fitted.seed, draws)
    if search is None or fitted.log_densities is None:
        return fitted, seen
    found = log_densities_by_structure(seen, likelihood if search.widened else fitted.likelihood)
    # draws may differ in the last bits between processes; all must use the same densities
    shared = ranks().broadcast_tensor(found.log_density.to(seen.f.device)).cpu()
    first, *others = [model for model in models if isinstance(model, ListedStructure)]
    found = search.adopt(first, replace(found, log_density=shared))
    for model in others:
        model.weigh(search.q, only=True)
    return replace(fitted, log_densities=found), _reweigh(seen, search.q)


def fit_heads_in_sample(fitted: Fitted, kind: str, prepared: Prepared, *, calibrate: bool) -> Fitted:
    """Compute posteriors of the heads of networks fitted by the evidence bound, and refit the noise.

    The parameters are those of :func:`fit_heads_out_of_fold`.
    """
    for model in list_members(fitted.model):
        set_head_posterior(model, fitted.likelihood, prepared.train, kind)
    valid = prepared.valid
    if valid is None or not len(valid):
        return fitted
    score = calibrated(fitted.model, fitted.likelihood, valid, _DRAWS, fitted.seed, move=calibrate)
    return replace(fitted, score=score)


def _reweigh(seen: OutOfFold, q: Mapping[int, float]) -> OutOfFold:
    """Return the draws of the structures with positive probability, weighted by it."""
    positive = torch.tensor([number in q for number in seen.structure.tolist()], device=seen.f.device)
    structure = seen.structure[positive]
    times = {number: int((structure == number).sum()) for number in q}
    weight = [q[number] / times[number] for number in structure.tolist()]
    log_weight = torch.tensor(weight, dtype=torch.float64, device=seen.f.device).log()
    return replace(seen, f=seen.f[positive], structure=structure, log_weight=log_weight)
