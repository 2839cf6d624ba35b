r"""Candidate architectures, weighted by stacking on out-of-fold rows.

Every candidate is cross-fitted separately on the same folds, with its own posterior over structure. With
:math:`p_c(y_i)` the out-of-fold density of row i under candidate c, the weights maximise

.. math:: F(w) = \sum_i s_i \log \sum_c w_c\, p_c(y_i) - \mathrm{KL}(w \,\|\, \text{even})

(:mod:`fathomless.inference.out_of_fold.stacking`). Single networks cannot be weighted in this way: two networks of one
partition have no common row that is out-of-fold for both.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fathomless.estimators.finalize import fit_likelihood
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import OutOfFold, StackedLikelihood
from fathomless.inference.out_of_fold.noise import KAPPA, choose_cells, fit_noise, mixture_log_density, sum_log_density
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import Candidate, CrossFitDiagnostics, StructureWeights
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError

__all__ = ["VARIED", "average_weights", "combine", "expand_candidates"]

VARIED = ("architecture", "activation", "width", "numbers", "weight_prior")  #: options in which candidates may differ
_ENCODINGS = ("plain", "binned")
_FEW = 200  # rows below which candidates have equal weights
_LEAST = 1e-6  # minimum weight of a candidate


def expand_candidates(candidates: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """Return the options of every candidate: all combinations of the values; one empty dict for None.

    Raises
    ------
    DataError
        If an option cannot be varied, or its list of values is empty or has duplicates.

    Examples
    --------
    >>> expand_candidates({"activation": ("relu", "tanh")})
    [{'activation': 'relu'}, {'activation': 'tanh'}]
    >>> expand_candidates(None)
    [{}]
    """
    if candidates is None:
        return [{}]
    if not isinstance(candidates, Mapping) or not set(candidates) <= set(VARIED):
        allowed = ", ".join(map(repr, VARIED))
        raise DataError(f"candidates={candidates!r} was given; a dict with some of the keys {allowed} is allowed")
    for name, values in candidates.items():
        plain = isinstance(values, list | tuple) and all(isinstance(value, str | int | float) for value in values)
        if not plain or not values or len(set(values)) < len(values):
            raise DataError(
                f"candidates[{name!r}]={values!r} was given; a list of different names or numbers, at least one, is "
                "allowed"
            )
    if not set(candidates.get("numbers", ())) <= set(_ENCODINGS):
        raise DataError(
            f"candidates['numbers']={candidates['numbers']!r} was given; allowed are {' and '.join(_ENCODINGS)}"
        )
    return [dict(zip(candidates, values, strict=True)) for values in itertools.product(*candidates.values())]


def combine(
    candidates: Sequence[tuple[Fitted, OutOfFold]],
    options: Sequence[Mapping[str, Any]],
    folds: Tensor,
    *,
    calibrate: bool,
    free_noise: bool,
) -> Fitted:
    """Combine cross-fitted candidates into one weighted ensemble with one noise.

    Parameters
    ----------
    candidates : sequence of C (Fitted, OutOfFold)
        Ensembles with the noise of their training, and the out-of-fold predictions.
    options : sequence of C mappings
        Options of each candidate.
    folds : Tensor of int64, shape (N,)
        Fold of every row of the table.
    calibrate, free_noise : bool
        As in :func:`~fathomless.estimators.finalize.finalize`.

    Returns
    -------
    Fitted
        The ensemble, with the history of the candidate with the largest weight. For its score, the noise and the
        weights of the candidates are fitted without the fold of each row.
    """
    # if networks diverged, some rows are out-of-fold for fewer candidates, and cannot be compared
    times = torch.cat([seen.rows for _, seen in candidates]).bincount(minlength=len(folds))
    common = times == len(candidates)  # rows that are out-of-fold for at least one network of every candidate
    fits = [fitted for fitted, _ in candidates]
    helds = [seen.take(common[seen.rows]) for _, seen in candidates]
    even = torch.full((len(candidates),), 1.0 / len(candidates), dtype=torch.float64)
    together = _merge(helds, even)  # one choice for all candidates, whose scores are compared
    fits = [replace(fitted, likelihood=choose_cells(together, fitted.likelihood)) for fitted in fits]
    first = helds[0]
    columns = []
    for h, f in zip(helds, fits, strict=True):
        noise = fit_likelihood(h, f.likelihood, KAPPA, free_noise=free_noise)[1] if calibrate else f.likelihood
        columns.append(mixture_log_density(h, noise).cpu())
    log_density = torch.stack(columns, 1)  # (N, C)
    weight = None if first.weight is None else first.weight.double().cpu()
    count = float(len(first.rows) if weight is None else weight.sum())
    w = even if count < _FEW else _weights(log_density, weight)
    merged = _merge(helds, w)
    likelihood = trained = StackedLikelihood([f.likelihood for f in fits]).mean(fits[0].likelihood)
    if calibrate:
        trained, likelihood = fit_likelihood(merged, trained, KAPPA, free_noise=free_noise)
    fixed = even if count < _FEW else None
    score = _score_out_of_fold(helds, log_density, fixed, trained, folds[merged.rows], KAPPA if calibrate else None)
    members: list[Model] = []
    weights: list[float] = []
    for f, share in zip(fits, w.tolist(), strict=True):
        assert isinstance(f.model, Ensemble)
        members += [member for member in f.model.members if isinstance(member, Model)]
        weights += [share * of_member for of_member in f.model.weights]
    records = tuple(
        Candidate(options=dict(of_candidate), weight=share, networks=len(f.model.weights))
        for of_candidate, share, f in zip(options, w.tolist(), fits, strict=True)
        if isinstance(f.model, Ensemble)
    )
    structures = [cast(CrossFitDiagnostics, f.diagnostics).structure for f in fits]
    heaviest = fits[int(w.argmax())]
    return replace(
        heaviest,
        model=Ensemble(members, weights).eval(),
        likelihood=likelihood,
        score=score,
        diverged=tuple(number for f in fits for number in f.diverged),
        diagnostics=CrossFitDiagnostics(structure=average_weights(structures, w.tolist()), kinds=records),
    )


def _weights(log_density: Tensor, weight: Tensor | None) -> Tensor:
    """Compute stacking weights from log densities (N, C) of rows, with a minimum for every candidate."""
    even = torch.full_like(log_density[0], 1.0 / log_density.shape[1])
    w = stacking.refit(log_density, even.log(), weight).clamp(min=_LEAST)  # log weights must be finite
    return w / w.sum()


def _merge(helds: Sequence[OutOfFold], w: Tensor) -> OutOfFold:
    """Return the out-of-fold predictions of all candidates, with these weights."""
    first, log_w = helds[0], w.log().to(helds[0].f.device)
    return replace(
        first,
        f=torch.cat([h.f for h in helds]),
        log_weight=torch.cat([h.log_weight + share for h, share in zip(helds, log_w, strict=True)]),
        structure=torch.cat([h.structure for h in helds]),
    )


def _score_out_of_fold(
    helds: Sequence[OutOfFold],
    log_density: Tensor,
    fixed: Tensor | None,
    trained: Likelihood,
    folds: Tensor,
    kappa: float | None,
) -> float:
    """Return the mean log density of rows, each with noise and weights that were fitted without its fold.

    Weights are fitted unless `fixed` gives them.
    """
    summed = count = 0.0
    weight = None if helds[0].weight is None else helds[0].weight.double().cpu()
    for k in folds.unique().tolist():
        rest = folds != k
        w = _weights(log_density[rest], None if weight is None else weight[rest]) if fixed is None else fixed
        merged = _merge(helds, w)
        law = trained if kappa is None else fit_noise(merged.take(rest), trained, kappa)
        of_fold, rows = sum_log_density(merged.take(~rest), law)
        summed += of_fold
        count += rows
    return summed / count


def average_weights(posteriors: Sequence[StructureWeights | None], w: Sequence[float]) -> StructureWeights | None:
    """Average the posteriors over structure of several candidates, with weights that sum to 1.

    Standard errors are averaged too. This is the error for perfectly correlated candidates, an upper bound. Return None
    if a candidate has no posterior over structure.
    """
    known = [posterior for posterior in posteriors if posterior is not None]
    if len(known) < len(posteriors):
        return None
    numbers = sorted({number for posterior in known for number in posterior.numbers})

    def average(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
        columns = [
            dict(zip(p.numbers, of_structure, strict=True)) for p, of_structure in zip(known, values, strict=True)
        ]
        return tuple(sum(a * column.get(k, 0.0) for a, column in zip(w, columns, strict=True)) for k in numbers)

    def mean(values: Sequence[float]) -> float:
        return sum(a * value for a, value in zip(w, values, strict=True))

    columns = [dict(zip(p.numbers, p.log_density, strict=True)) for p in known]
    log_density = []
    for k in numbers:  # averaged over the candidates that have this structure
        densities = [(a, column[k]) for a, column in zip(w, columns, strict=True) if k in column]
        log_density.append(sum(a * value for a, value in densities) / sum(a for a, _ in densities))
    return StructureWeights(
        numbers=tuple(numbers),
        weights=average([p.weights for p in known]),
        errors=average([p.errors for p in known]),
        mean=mean([p.mean for p in known]),
        mean_error=mean([p.mean_error for p in known]),
        single=average([p.single for p in known]),
        poisson=average([p.poisson for p in known]),
        poisson_rate=mean([p.poisson_rate for p in known]),
        poisson_loss=mean([p.poisson_loss for p in known]),
        log_density=tuple(log_density),
        rows=known[0].rows,
        members=sum(p.members for p in known),
    )
