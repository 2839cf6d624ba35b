"""What is made of networks that were judged by rows which they were not fitted to: one law, one noise, one score."""

import copy
import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.heads import head_variance, replace_heads_by_means
from fathomless.inference.out_of_fold.noise import (
    KAPPA,
    KAPPA_ALONE,
    average_noise_factor,
    choose_noise,
    cross_validate_score,
    estimate_disagreement,
    fit_noise,
    sum_log_density,
    to_student_t,
)
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch, log_prior_of
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.capabilities import LinearHeads, ListedStructure
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, StructureWeights
from fathomless.posterior.likelihoods import Categorical, LearnedNoise, Likelihood, LocationScale, StudentT
from fathomless.posterior.model import Model
from fathomless.system.rng import as_generator, fold_in

__all__ = ["automatic_members", "finalize", "fit_likelihood", "fit_structure_weights", "keep_best", "shrink_noise"]

_CHUNK = 16384  # rows evaluated at once
_DRAWS = 16  # of each network, where weights are drawn
_LEAST = 4  # rows below which one network sees them all
_PER_FOLD = 3  # rows of a fold, at least; two where there are fewer than six rows
_UNTIL_TEN, _UNTIL_FIVE = 5_000, 50_000
_WEIGHTS = 10**6  # of a network, beyond which there is one
_WORK = 1e13  # multiplications of all networks, beyond which there is one: about ten minutes of two cores


def automatic_members(count: float, weights: float, passes: float) -> int:
    """Return how many networks are cross-fitted by default.

    Parameters
    ----------
    count : float
        Rows, each as often as it counts.
    weights : float
        Of one network, about; or multiplications for a row, if each is used more than once.
    passes : float
        Over the rows, about.
    """
    if count < _LEAST or count > _UNTIL_FIVE or weights > _WEIGHTS:
        return 1
    members = min(10, max(2, int(count // _PER_FOLD))) if count <= _UNTIL_TEN else 5
    return members if 3.0 * count * weights * passes * members <= _WORK else 1


def finalize(
    fitted: Fitted,
    held: OutOfFold,
    *,
    folds: Tensor | None,
    search: StructureSearch | None,
    calibrate: bool,
    free_noise: bool,
) -> Fitted:
    """Fit the noise to rows that the networks have not seen, and score them.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.noise`.

    Parameters
    ----------
    fitted : Fitted
        Networks with their law; likelihood as trained.
    held : Held
        The rows under networks that have not seen them.
    folds : Tensor of int64, shape (N,), optional
        The fold of each of these rows; None if one network was judged by all, which are then divided to score them.
    search : StructureSearch, optional
        If the law was fitted to these rows.
    calibrate : bool
        Whether the noise, or the temperature of classes, is fitted.
    free_noise : bool
        Whether Student's law may take the place of Gauss's.
    """
    likelihood = trained = fitted.likelihood
    kappa = KAPPA_ALONE if folds is None else KAPPA
    if calibrate:
        trained, likelihood = fit_likelihood(held, trained, kappa, free_noise=free_noise)
    if folds is None:
        folds = assign_parts(len(held.rows))
    model = _listed(fitted.model) if search is not None else None
    numbers = sorted(set(held.structure.tolist()))
    prior = None if model is None else log_prior_of(model, numbers)
    law = None if search is None else search.law
    score = cross_validate_score(held, trained, folds, prior, numbers, law, kappa if calibrate else None)
    return replace(fitted, likelihood=likelihood, score=score)


def fit_likelihood(
    held: OutOfFold, trained: Likelihood, kappa: float, *, free_noise: bool
) -> tuple[Likelihood, Likelihood]:
    """Fit the noise, or the temperature of classes, to unseen rows; return where each fit of it begins, and the fit."""
    if isinstance(trained, Categorical):
        trained = Categorical(trained.classes, temperature=True).to(held.f.device, held.f.dtype)
    likelihood = choose_noise(held, trained, kappa) if free_noise else fit_noise(held, trained, kappa)
    if isinstance(likelihood, StudentT) and isinstance(trained, LocationScale) and not isinstance(trained, StudentT):
        trained = to_student_t(trained)
    return trained, likelihood


@torch.no_grad()
def shrink_noise(fitted: Fitted, table: Rows, folds: Tensor) -> Fitted:
    """Narrow the noise that was fitted to single networks to that of their average, if it is a learned scale.

    What is doubt about heads is no noise of a single network, nor of the average.

    Parameters
    ----------
    fitted : Fitted
        An ensemble of cross-fitted networks, with its noise.
    table : Rows
        All rows.
    folds : Tensor of int64, shape (R, N)
        As ``fold_`` of an estimator.
    """
    model, likelihood = fitted.model, copy.deepcopy(fitted.likelihood)
    learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
    if not isinstance(model, Ensemble) or not learned:
        return fitted
    points, each, doubt = copy.deepcopy(model), [], torch.zeros((), dtype=torch.float64, device=table.y.device)
    replace_heads_by_means(points)
    for part in table.parts(_CHUNK):
        means = []
        for member, own in zip(points.members, model.members, strict=True):
            assert isinstance(member, Model)
            assert isinstance(own, Model)
            drawn = member.draw(part.x, _DRAWS, as_generator(fold_in(fitted.seed, "mean")))
            if own.stochastic and isinstance(own, LinearHeads):
                doubt = doubt + head_variance(own, part.x).sum(0) / (len(model.members) * len(table))  # (T,)
            means.append(torch.einsum("s,snt->nt", drawn.log_weight.exp().to(drawn.f), drawn.f))
        each.append(torch.stack(means))
    sizes = folds.max(1).values + 1  # networks of each partition
    numbers = torch.arange(int(sizes.max()), device=folds.device)[:, None]
    unseen = torch.cat([line == numbers[:size] for line, size in zip(folds, sizes.tolist(), strict=True)])
    V, S = estimate_disagreement(torch.cat(each, 1), table.y, unseen.to(table.y.device), table.weight)
    factor = average_noise_factor(V, (S - doubt).maximum(V), len(folds), len(unseen))
    likelihood.noise.rescale(factor)  # type: ignore[union-attr, operator]
    diagnostics = replace(cast(CrossFitDiagnostics, fitted.diagnostics), narrowing=tuple(factor.tolist()))
    return replace(fitted, likelihood=likelihood, diagnostics=diagnostics)


def fit_structure_weights(
    model: Model, found: LogDensities, q: Tensor, folds: Tensor | None, groups: Tensor | None, seed: int
) -> StructureWeights:
    """Return the posterior over structures with its errors and what stands beside it.

    Parameters
    ----------
    model : Model
        The networks, for their prior.
    found : Densities
        Held-out densities of L structures.
    q : Tensor, shape (L,)
        The posterior.
    folds, groups : Tensors of int64, shape (N,), optional
        Of the rows.
    seed : int
        Of bootstraps.
    """
    listed = _listed(model)
    log_prior, numbers = log_prior_of(listed, found.numbers), torch.tensor(found.numbers, dtype=torch.float64)
    table = (found.log_density, log_prior, found.weight)
    bars = stacking.standard_errors(q, *table, fold=folds, group=groups, numbers=numbers, seed=seed)
    first = min(listed.list_structures(1))

    def poisson(rate: float) -> Tensor:
        offset = numbers - first
        return (offset * math.log(rate) - torch.lgamma(offset + 1.0)).softmax(0)

    rate, law, value = stacking.fit_path(*table, poisson, 1e-3, 3.0 * float(numbers[-1] - first + 1.0))
    weight = torch.ones(len(found.rows), dtype=torch.float64) if found.weight is None else found.weight
    return StructureWeights(
        numbers=tuple(found.numbers),
        weights=tuple(q.tolist()),
        errors=tuple(bars.weights.tolist()),
        mean=float(q @ numbers),
        mean_error=bars.mean,
        single=tuple(stacking.pseudo_bma(*table, seed=seed).tolist()),
        poisson=tuple(law.tolist()),
        poisson_rate=rate,
        poisson_loss=stacking.value(q, *table) - value,
        log_density=tuple((weight @ found.log_density / weight.sum()).tolist()),
        rows=len(found.rows),
        members=len(list_members(model)),
    )


def keep_best(fitted: Fitted, held: OutOfFold, search: StructureSearch | None) -> tuple[Fitted, OutOfFold]:
    """Of networks that were judged by the same rows, keep the best one, with a law of its own."""
    assert isinstance(fitted.model, Ensemble)
    size = len(held.f) // len(fitted.model.members)
    each = [sum_log_density(_part(held, i, size), fitted.likelihood) for i in range(len(fitted.model.members))]
    scores = [summed / count for summed, count in each]
    best = max(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else -math.inf)
    model, own = fitted.model.members[best], _part(held, best, size)
    assert isinstance(model, Model)
    if search is None:
        return replace(fitted, model=model, score=scores[best]), own
    with torch.no_grad():
        log_density = fitted.likelihood.log_prob(own.f, own.y).double().cpu().T  # (N, L), a draw for each structure
    weight = None if own.weight is None else own.weight.double().cpu()
    listed = _listed(model)
    found = search.adopt(listed, LogDensities(tuple(own.structure.tolist()), log_density, own.rows, weight))
    q = torch.tensor([search.q.get(number, 0.0) for number in own.structure.tolist()], dtype=torch.float64)
    own = replace(own, log_weight=q.clamp(min=1e-300).log().to(own.f.device))
    return replace(fitted, model=model, score=found.score(q[q > 0.0]), log_densities=found), own


def _part(held: OutOfFold, i: int, size: int) -> OutOfFold:
    own = slice(i * size, (i + 1) * size)
    log_weight = held.log_weight[own] - torch.logsumexp(held.log_weight[own], 0)
    return replace(held, f=held.f[own], log_weight=log_weight, structure=held.structure[own])


def _listed(model: Model) -> ListedStructure:
    one = list_members(model)[0]
    assert isinstance(one, ListedStructure)
    return one
