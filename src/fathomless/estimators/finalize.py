"""Final steps of cross-fitting: noise, structure weights and validation score from out-of-fold predictions."""

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
    average_temperature_factor,
    choose_cells,
    choose_noise,
    cross_validate_score,
    estimate_class_disagreement,
    estimate_disagreement,
    fit_noise,
    free_likelihood,
    sum_log_density,
    to_student_t,
    weigh_without_folds,
)
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch, log_prior_of
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.capabilities import LinearHeads, ListedStructure
from fathomless.posterior.censoring import impute
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, StructureWeights
from fathomless.posterior.likelihoods import ClassLikelihood, Likelihood, LocationScale, StudentT, is_censored
from fathomless.posterior.mixtures import Classes
from fathomless.posterior.model import Model
from fathomless.posterior.noise import InputNoise, LearnedNoise
from fathomless.system.rng import as_generator, fold_in

__all__ = ["automatic_members", "finalize", "fit_likelihood", "fit_structure_weights", "keep_best", "shrink_noise"]

_CHUNK = 16384  # rows evaluated at once
_DRAWS = 16  # weight draws of each network
_QUANTILES = 32  # values in place of a censored target
_LEAST = 4  # rows below which a single network is trained on all rows
_PER_FOLD = 3  # minimum number of rows of a fold; two if there are fewer than six rows
_UNTIL_TEN, _UNTIL_FIVE = 5_000, 50_000  # rows up to which there are ten networks, or five
_WEIGHTS = 10**6  # weights of a network above which there is a single one
_WORK = 1e13  # multiplications of all networks above which there is a single one: about ten minutes on two cores


def automatic_members(count: float, weights: float, passes: float) -> int:
    """Return the default number of cross-fitted networks.

    Parameters
    ----------
    count : float
        Number of rows, or the sum of the sample weights.
    weights : float
        Approximate number of weights of a network, or of multiplications per row if weights are used more than once.
    passes : float
        Approximate number of passes over the rows.
    """
    if count < _LEAST or count > _UNTIL_FIVE or weights > _WEIGHTS:
        return 1
    members = min(10, max(2, int(count // _PER_FOLD))) if count <= _UNTIL_TEN else 5
    # a training step costs about three forward passes
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
    """Fit the noise to out-of-fold predictions, and compute the validation score.

    For the fit of the noise, the weights of the structures at each row are fitted to the other folds. The mathematics
    is in :mod:`fathomless.inference.out_of_fold.noise`.

    Parameters
    ----------
    fitted : Fitted
        Networks with their law over structure; the likelihood is that of training.
    held : OutOfFold
        Out-of-fold predictions.
    folds : Tensor of int64, shape (N,), optional
        Fold of each of these rows. None for the held-out rows of a single network, which are then divided into parts
        for the score.
    search : StructureSearch, optional
        Search that fitted the law over structure to these rows, if there was one.
    calibrate : bool
        True to fit the scale of the noise, or the temperature of class probabilities.
    free_noise : bool
        True if Student's t may replace Gaussian noise.
    """
    likelihood = trained = choose_cells(held, fitted.likelihood)
    kappa = KAPPA_ALONE if folds is None else KAPPA
    if folds is None:
        folds = assign_parts(len(held.rows))
    model = _first_listed(fitted.model) if search is not None else None
    numbers = sorted(set(held.structure.tolist()))
    prior = None if model is None else log_prior_of(model, numbers)
    law = None if search is None else search.law
    weighing = trained  # its noise is that of the densities to which the search fitted the weights
    if calibrate and search is not None and search.widened:
        weighing = fit_likelihood(held, trained, kappa, free_noise=free_noise)[1]
    if calibrate:
        fair = held if prior is None else weigh_without_folds(held, weighing, folds, prior, numbers, law)
        trained, likelihood = fit_likelihood(fair, trained, kappa, free_noise=free_noise)
    score = cross_validate_score(
        held, trained, folds, prior, numbers, law, kappa if calibrate else None, weighing=weighing
    )
    return replace(fitted, likelihood=likelihood, score=score)


def fit_likelihood(
    held: OutOfFold, trained: Likelihood, kappa: float, *, free_noise: bool
) -> tuple[Likelihood, Likelihood]:
    """Fit the noise, a factor of predicted noise, or the temperature of class probabilities, to held-out rows.

    Return the likelihood that every such fit starts from, and the fitted likelihood.
    """
    trained = free_likelihood(trained, held.f)
    likelihood = choose_noise(held, trained, kappa) if free_noise else fit_noise(held, trained, kappa)
    # refits without a fold start from Student's t if it was chosen, so that they do not choose again
    if isinstance(likelihood, StudentT) and isinstance(trained, LocationScale) and not isinstance(trained, StudentT):
        trained = to_student_t(trained)
    return trained, likelihood


@torch.no_grad()
def shrink_noise(fitted: Fitted, table: Rows, folds: Tensor) -> Fitted:
    """Reduce a fitted noise scale, or a temperature, from that of single networks to that of their average.

    An average has smaller errors than its members. The posterior variance of the heads is part of the error, but not of
    the noise. The factor is one for all rows of a target, also if the networks predict the scale of each row. A
    censored target is replaced by quantiles between its bounds, under the law of the networks that were not fitted to
    the row.

    Parameters
    ----------
    fitted : Fitted
        Ensemble of cross-fitted networks with its noise.
    table : Rows
        All rows.
    folds : Tensor of int64, shape (R, N)
        As ``fold_`` of an estimator.
    """
    model, likelihood = fitted.model, copy.deepcopy(fitted.likelihood)
    if not isinstance(model, Ensemble):
        return fitted
    sizes = folds.max(1).values + 1  # number of networks of each partition
    numbers = torch.arange(int(sizes.max()), device=folds.device)[:, None]
    parts = [line == numbers[:size] for line, size in zip(folds, sizes.tolist(), strict=True)]
    unseen = torch.cat(parts).to(table.y.device)
    if isinstance(likelihood, ClassLikelihood) and likelihood.log_temperature is not None:
        cooling = _cool_classes(model, likelihood, table, unseen, len(folds), fitted.seed)
        return _with_factor(fitted, likelihood.widen(cooling).eval(), (cooling,))
    noise = likelihood.noise if isinstance(likelihood, LocationScale) else None
    if not isinstance(noise, LearnedNoise | InputNoise):
        return fitted
    f, log_scale, doubt = _evaluate_networks(model, cast(LocationScale, likelihood), table, fitted.seed)
    y, weight = table.y, table.weight
    if is_censored(likelihood, y):
        y, index = _impute(cast(LocationScale, likelihood), y, f, log_scale, unseen)
        f, log_scale, unseen, doubt = f[:, index], log_scale[:, index], unseen[:, index], doubt[index]
        weight = (doubt.new_ones(len(y) // _QUANTILES) if weight is None else weight).to(doubt)[index] / _QUANTILES
    weight = doubt.new_ones(len(doubt)) if weight is None else weight.to(doubt)
    out = unseen.to(log_scale)[..., None]  # (F, N, 1)
    scale = ((out * log_scale).sum(0) / out.sum(0).clamp(min=1.0)).exp()  # (N, T)
    of_noise = weight @ (1.0 + doubt / scale.square()).reciprocal() / weight.sum()  # (T,)
    share = estimate_disagreement(y - f, unseen, weight) / of_noise
    factor = average_noise_factor(share.clamp(max=1.0), len(folds), len(unseen))
    if isinstance(noise, LearnedNoise):
        factor = _rescale_above_rounding(cast(LocationScale, likelihood), noise, factor)
    else:
        noise.rescale(factor)
    return _with_factor(fitted, likelihood, tuple(factor.tolist()))


def _with_factor(fitted: Fitted, likelihood: Likelihood, factor: tuple[float, ...]) -> Fitted:
    """Return a fit with the likelihood of the average of its networks."""
    diagnostics = replace(cast(CrossFitDiagnostics, fitted.diagnostics), narrowing=factor)
    return replace(fitted, likelihood=likelihood, diagnostics=diagnostics)


def _cool_classes(
    model: Ensemble, likelihood: ClassLikelihood, table: Rows, unseen: Tensor, beside: int, seed: int
) -> float:
    """Return the factor of the temperature for the average of the networks of an ensemble.

    `unseen`, (F, N), is true if a network was not fitted to a row; each row is out of fold for `beside` networks.
    """
    of_parts = []
    fresh: list[tuple[Tensor, Tensor, Tensor]] = []  # outputs (S, n, K), weights (S,) and sample weights (n,)
    counts = table.counts
    for start, part in zip(range(0, len(table), _CHUNK), table.parts(_CHUNK), strict=True):
        rows = slice(start, start + len(part))
        probabilities = []
        for member, out in zip(list_members(model), unseen[:, rows], strict=True):
            drawn = member.draw(part.x, _DRAWS, as_generator(fold_in(seed, "mean")))
            weight = drawn.log_weight.double().cpu().exp()
            probabilities.append(_mix(likelihood, drawn.f, weight))
            fresh.append((drawn.f[:, out], weight, counts[rows][out.cpu()]))
        of_parts.append(torch.stack(probabilities))
    each = torch.cat(of_parts, 1)  # (F, N, C)
    target = torch.nn.functional.one_hot(table.y.cpu(), each.shape[-1])
    V, S = estimate_class_disagreement(target - each, unseen.cpu(), counts)

    total = sum(float(count.sum()) for *_, count in fresh)

    def brier(factor: float) -> float:
        cooled = cast(ClassLikelihood, likelihood.widen(factor))
        mixed = ((_mix(cooled, f, weight), count) for f, weight, count in fresh)
        return sum(float(count @ (p * (1.0 - p)).sum(-1)) for p, count in mixed) / total

    return average_temperature_factor(brier, V, S, beside, len(unseen))


def _mix(likelihood: ClassLikelihood, f: Tensor, weight: Tensor) -> Tensor:
    """Return the probabilities of classes of a mixture of draws (S, N, K) with weights (S,), shape (N, C)."""
    return torch.einsum("s,snc->nc", weight, cast(Classes, likelihood.components(f)).log_probs.exp())


def _impute(
    likelihood: LocationScale, y: Tensor, f: Tensor, log_scale: Tensor, unseen: Tensor
) -> tuple[Tensor, Tensor]:
    """Replace the bounds (N, 2 T) of censored targets by quantiles between them.

    Return the quantiles as targets (Q N, T), and the index (Q N,) of their rows.
    """
    out = unseen.to(f)[..., None]
    loc, spread = ((out * part).sum(0) / out.sum(0).clamp(min=1.0) for part in (f, log_scale))  # (N, T)
    law, shape = likelihood.law()
    low, high = (bound.cpu() for bound in y.split(likelihood.targets, 1))
    quantiles = impute(law(loc, spread.exp(), *shape), low, high, _QUANTILES).to(y)
    return quantiles.flatten(0, 1), torch.arange(len(y), device=y.device).repeat(_QUANTILES)


def _rescale_above_rounding(likelihood: LocationScale, noise: LearnedNoise, factor: Tensor) -> Tensor:
    """Rescale a learned noise, but not below the rounding error of the target; return the factor that was used."""
    before = noise.log_scale()
    noise.rescale(factor)
    rescaled = noise.log_scale()
    likelihood.raise_scale()
    raised = noise.log_scale() > rescaled
    return torch.where(raised, (noise.log_scale() - before).exp().to(factor), factor)


def _evaluate_networks(
    model: Ensemble, likelihood: LocationScale, table: Rows, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate the networks of an ensemble, averaged over structures, with the means of their heads.

    Returns
    -------
    means, log_scales : Tensors, shape (F, N, T)
        Centres and log scales of each network.
    doubt : float64 Tensor, shape (N, T)
        Variance of the centres due to the posterior of the heads, averaged over networks.
    """
    points = copy.deepcopy(model)
    replace_heads_by_means(points)
    of_parts = []
    targets, noise = likelihood.targets, likelihood.noise
    for part in table.parts(_CHUNK):
        means, log_scales = [], []
        doubt = torch.zeros(len(part), targets, dtype=torch.float64, device=table.y.device)
        for point, member in zip(points.members, model.members, strict=True):
            assert isinstance(point, Model)
            assert isinstance(member, Model)
            drawn = point.draw(part.x, _DRAWS, as_generator(fold_in(seed, "mean")))
            if member.stochastic and isinstance(member, LinearHeads):
                doubt += head_variance(member, part.x)[:, :targets] / len(model.members)
            loc, log_scale = noise.split(drawn.f)[:2]
            weight = drawn.log_weight.exp().to(drawn.f)
            means.append(torch.einsum("s,snt->nt", weight, loc))
            log_scales.append(torch.einsum("s,snt->nt", weight, log_scale.expand_as(loc)))
        of_parts.append((torch.stack(means), torch.stack(log_scales), doubt))
    means_of, scales_of, doubt_of = zip(*of_parts, strict=True)
    return torch.cat(means_of, 1), torch.cat(scales_of, 1), torch.cat(doubt_of)


def fit_structure_weights(
    model: Model, found: LogDensities, q: Tensor, folds: Tensor | None, groups: Tensor | None, seed: int
) -> StructureWeights:
    """Compute the standard errors of the posterior over structures, and alternatives to it.

    Parameters
    ----------
    model : Model
        Networks, for their prior over structures.
    found : LogDensities
        Held-out log densities of L structures.
    q : Tensor, shape (L,)
        Posterior over structures.
    folds, groups : Tensors of int64, shape (N,), optional
        Folds and groups of the rows.
    seed : int
        Seed of the bootstraps.
    """
    listed = _first_listed(model)
    log_prior = log_prior_of(listed, found.numbers)
    numbers = torch.tensor(found.numbers, dtype=torch.float64)
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
    """Select the network with the best score on the held-out rows, and fit its own law over structure."""
    assert isinstance(fitted.model, Ensemble)
    size = len(held.f) // len(fitted.model.members)
    likelihood = fitted.likelihood
    if search is not None and search.widened:
        likelihood = fit_likelihood(held, likelihood, KAPPA_ALONE, free_noise=False)[1]
    totals = [sum_log_density(_select_network(held, i, size), likelihood) for i in range(len(fitted.model.members))]
    scores = [summed / count for summed, count in totals]
    best = max(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else -math.inf)
    model = fitted.model.members[best]
    seen = _select_network(held, best, size)
    assert isinstance(model, Model)
    if search is None:
        return replace(fitted, model=model, score=scores[best]), seen
    with torch.no_grad():
        log_density = likelihood.log_prob(seen.f, seen.y).double().cpu().T  # (N, L), one draw per structure
    weight = None if seen.weight is None else seen.weight.double().cpu()
    listed = _first_listed(model)
    found = search.adopt(listed, LogDensities(tuple(seen.structure.tolist()), log_density, seen.rows, weight))
    q = torch.tensor([search.q.get(number, 0.0) for number in seen.structure.tolist()], dtype=torch.float64)
    seen = replace(seen, log_weight=q.clamp(min=1e-300).log().to(seen.f.device))
    return replace(fitted, model=model, score=found.score(q[q > 0.0]), log_densities=found), seen


def _select_network(held: OutOfFold, i: int, size: int) -> OutOfFold:
    draws = slice(i * size, (i + 1) * size)
    log_weight = held.log_weight[draws] - torch.logsumexp(held.log_weight[draws], 0)
    return replace(held, f=held.f[draws], log_weight=log_weight, structure=held.structure[draws])


def _first_listed(model: Model) -> ListedStructure:
    member = list_members(model)[0]
    assert isinstance(member, ListedStructure)
    return member
