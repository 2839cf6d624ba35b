r"""Kinds of network, such as several architectures, weighed by rows that they were not fitted to.

Every kind is cross-fitted by itself, on the same folds, with a posterior over structure of its own. With
:math:`p_c(y_i)` the density of row i under the networks of kind c that have not seen it, the weights maximise

.. math:: F(w) = \sum_i s_i \log \sum_c w_c\, p_c(y_i) - \mathrm{KL}(w \,\|\, \text{even})

(:mod:`fathomless.inference.out_of_fold.stacking`). Single networks are never weighed: two networks of one partition
have no row in common that neither has seen.
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
from fathomless.inference.out_of_fold.noise import KAPPA, fit_noise, mixture_log_density, sum_log_density
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import Candidate, CrossFitDiagnostics, StructureWeights
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError

__all__ = ["VARIED", "average_weights", "combine", "expand_candidates"]

VARIED = ("architecture", "activation", "weight_prior")  #: options in which kinds may differ
_FEW = 200  # rows below which kinds count alike
_LEAST = 1e-6  # weight of a kind that no row wants


def expand_candidates(candidates: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """Return the options of every kind: all combinations of what is varied; one without options for None.

    Raises
    ------
    DataError
        If something else is varied, or has no values or equal ones.

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
        raise DataError(
            f"candidates={candidates!r} was given; a dict with some of the keys {', '.join(VARIED)} is allowed"
        )
    for name, values in candidates.items():
        plain = isinstance(values, list | tuple) and all(isinstance(value, str | int | float) for value in values)
        if not plain or not values or len(set(values)) < len(values):
            raise DataError(
                f"candidates[{name!r}]={values!r} was given; a list of different names or numbers, at least one, is "
                "allowed"
            )
    return [dict(zip(candidates, one, strict=True)) for one in itertools.product(*candidates.values())]


def combine(
    each: Sequence[tuple[Fitted, OutOfFold]],
    options: Sequence[Mapping[str, Any]],
    folds: Tensor,
    *,
    calibrate: bool,
    free_noise: bool,
) -> Fitted:
    """Weigh cross-fitted kinds, and make one ensemble with one noise of them.

    Parameters
    ----------
    each : sequence of C (Fitted, Held)
        Ensembles, with the noise of their training, and the rows under the networks that have not seen them.
    options : sequence of C mappings
        What makes each kind.
    folds : Tensor of int64, shape (N,)
        The fold of every row of the table.
    calibrate, free_noise : bool
        As in :func:`~fathomless.estimators.finalize.finalize`.

    Returns
    -------
    Fitted
        With the history of the heaviest kind; its score refits the noise and the weights of the kinds without each
        row's fold.
    """
    times = torch.cat([seen.rows for _, seen in each]).bincount(minlength=len(folds))
    common = times == len(each)  # rows that some networks of every kind have not seen
    fits, helds = [fitted for fitted, _ in each], [seen.take(common[seen.rows]) for _, seen in each]
    first, columns = helds[0], []
    for h, f in zip(helds, fits, strict=True):
        own = fit_likelihood(h, f.likelihood, KAPPA, free_noise=free_noise)[1] if calibrate else f.likelihood
        columns.append(mixture_log_density(h, own).cpu())
    log_density = torch.stack(columns, 1)  # (N, C)
    weight = None if first.weight is None else first.weight.double().cpu()
    even = torch.full((len(each),), 1.0 / len(each), dtype=torch.float64)
    count = float(len(first.rows) if weight is None else weight.sum())
    w = even if count < _FEW else _weights(log_density, weight)
    both = _together(helds, w)
    likelihood = trained = StackedLikelihood([f.likelihood for f in fits]).mean(fits[0].likelihood)
    if calibrate:
        trained, likelihood = fit_likelihood(both, trained, KAPPA, free_noise=free_noise)
    given = even if count < _FEW else None
    score = _left_out(helds, log_density, given, trained, folds[both.rows], KAPPA if calibrate else None)
    members: list[Model] = []
    weights: list[float] = []
    for f, one in zip(fits, w.tolist(), strict=True):
        assert isinstance(f.model, Ensemble)
        members += [member for member in f.model.members if isinstance(member, Model)]
        weights += [one * share for share in f.model.weights]
    told = tuple(
        Candidate(options=dict(own_options), weight=one, networks=len(f.model.weights))
        for own_options, one, f in zip(options, w.tolist(), fits, strict=True)
        if isinstance(f.model, Ensemble)
    )
    structures = [cast(CrossFitDiagnostics, f.diagnostics).structure for f in fits]
    heaviest = fits[int(w.argmax())]
    return replace(
        heaviest,
        model=Ensemble(members, weights).eval(),
        likelihood=likelihood,
        score=score,
        diagnostics=CrossFitDiagnostics(structure=average_weights(structures, w.tolist()), kinds=told),
    )


def _weights(log_density: Tensor, weight: Tensor | None) -> Tensor:
    """Weigh kinds by the log densities (N, C) of rows; every kind keeps a little."""
    even = torch.full_like(log_density[0], 1.0 / log_density.shape[1])
    w = stacking.refit(log_density, even.log(), weight).clamp(min=_LEAST)
    return w / w.sum()


def _together(helds: Sequence[OutOfFold], w: Tensor) -> OutOfFold:
    """Return the rows under the networks of all kinds, with these weights."""
    first, log_w = helds[0], w.log().to(helds[0].f.device)
    return replace(
        first,
        f=torch.cat([h.f for h in helds]),
        log_weight=torch.cat([h.log_weight + one for h, one in zip(helds, log_w, strict=True)]),
        structure=torch.cat([h.structure for h in helds]),
    )


def _left_out(
    helds: Sequence[OutOfFold],
    log_density: Tensor,
    given: Tensor | None,
    trained: Likelihood,
    folds: Tensor,
    kappa: float | None,
) -> float:
    """Mean log density of a row under a noise, and weights unless they are given, that were fitted without its fold."""
    summed = count = 0.0
    weight = None if helds[0].weight is None else helds[0].weight.double().cpu()
    for k in folds.unique().tolist():
        rest = folds != k
        w = _weights(log_density[rest], None if weight is None else weight[rest]) if given is None else given
        both = _together(helds, w)
        law = trained if kappa is None else fit_noise(both.take(rest), trained, kappa)
        of_fold, rows = sum_log_density(both.take(~rest), law)
        summed, count = summed + of_fold, count + rows
    return summed / count


def average_weights(each: Sequence[StructureWeights | None], w: Sequence[float]) -> StructureWeights | None:
    """Average the posteriors over structure of several kinds, by weights that sum to 1.

    Standard errors are averaged too: that is the error if those of all kinds go together, and the largest it can be.
    None if a kind has none.
    """
    given = [one for one in each if one is not None]
    if len(given) < len(each):
        return None
    numbers = sorted({number for one in given for number in one.numbers})

    def listed(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
        columns = [dict(zip(one.numbers, own, strict=True)) for one, own in zip(given, values, strict=True)]
        return tuple(sum(a * column.get(k, 0.0) for a, column in zip(w, columns, strict=True)) for k in numbers)

    def mean(values: Sequence[float]) -> float:
        return sum(a * value for a, value in zip(w, values, strict=True))

    columns = [dict(zip(one.numbers, one.log_density, strict=True)) for one in given]
    log_density = []
    for k in numbers:  # of the kinds that kept it
        own = [(a, column[k]) for a, column in zip(w, columns, strict=True) if k in column]
        log_density.append(sum(a * value for a, value in own) / sum(a for a, _ in own))
    return StructureWeights(
        numbers=tuple(numbers),
        weights=listed([one.weights for one in given]),
        errors=listed([one.errors for one in given]),
        mean=mean([one.mean for one in given]),
        mean_error=mean([one.mean_error for one in given]),
        single=listed([one.single for one in given]),
        poisson=listed([one.poisson for one in given]),
        poisson_rate=mean([one.poisson_rate for one in given]),
        poisson_loss=mean([one.poisson_loss for one in given]),
        log_density=tuple(log_density),
        rows=given[0].rows,
        members=sum(one.members for one in given),
    )
