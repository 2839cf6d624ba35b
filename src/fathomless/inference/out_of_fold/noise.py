r"""The noise of a prediction, from rows that its networks were not fitted to.

A network that fits its training rows takes the noise for too small. So what a likelihood itself learns (a scale,
degrees of freedom, a temperature) is fitted anew, by maximum a posteriori, to the mixture over structures of rows that
were held out or are out of fold,

.. math:: \sum_i s_i \log \sum_\ell q(\ell)\, p(y_i \mid f_{i\ell}, \phi) + \log p(\phi),

with log scales normal around those of the training with standard deviation κ, log (ν − 2) ~ N(log 8, 1) for the degrees
of freedom, and log T ~ N(0, 0.2²) for the temperature of classes.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.search import Law, LogDensities
from fathomless.posterior.likelihoods import Categorical, Gaussian, LearnedNoise, Likelihood, LocationScale, StudentT

__all__ = [
    "KAPPA",
    "KAPPA_ALONE",
    "average_noise_factor",
    "by_structure",
    "choose_noise",
    "density",
    "disagreement",
    "fit_noise",
    "heavy_tailed",
    "left_out_score",
    "total",
]

KAPPA = 0.5  #: how far log scales may go from those of the training, for rows that are all out of fold
KAPPA_ALONE = 0.35  #: the same for the few held-out rows of one network
_NARROWEST = 0.1  # least share of the variance of the noise that an average keeps
_TEMPERATURE = 0.2  # standard deviation of log T
_LEAST_GAIN = 2.0  # standard errors by which Student's law must be better than Gauss's
_MOST_OF_A_ROW = 3.0  # nats that one row counts for in this at most


def density(held: OutOfFold, likelihood: Likelihood) -> Tensor:
    """Log density of each row under the mixture over structures, (N,)."""
    log_p = likelihood.log_prob(held.f, held.y)
    return torch.logsumexp(held.log_weight[:, None].to(log_p.device) + log_p.double(), 0)


@torch.no_grad()
def total(held: OutOfFold, likelihood: Likelihood) -> tuple[float, float]:
    """Return the sum of the log densities of the rows, each as often as it counts, and how many they are."""
    rows = density(held, likelihood)
    weight = torch.ones_like(rows) if held.weight is None else held.weight.double()
    return float((weight * rows).sum()), float(weight.sum())


@torch.no_grad()
def by_structure(held: OutOfFold, likelihood: Likelihood) -> LogDensities:
    """Return the log density of each row under each structure: the mean over draws, and networks, of equal weight."""
    log_p = likelihood.log_prob(held.f, held.y).double()  # (S, N)
    numbers = sorted(set(held.structure.tolist()))
    own = [log_p[held.structure == number] for number in numbers]
    columns = [torch.logsumexp(one, 0) - math.log(len(one)) for one in own]
    weight = None if held.weight is None else held.weight.double().cpu()
    return LogDensities(tuple(numbers), torch.stack(columns, 1).cpu(), held.rows, weight)


def heavy_tailed(likelihood: LocationScale) -> StudentT:
    """Return Student's noise, with degrees of freedom to be fitted, and the scale of another law."""
    heavy = StudentT(likelihood.targets, df="learned").to(_dtype_of(likelihood))
    heavy.noise = copy.deepcopy(likelihood.noise)
    return heavy.to(next(likelihood.parameters()).device)


def fit_noise(held: OutOfFold, likelihood: Likelihood, kappa: float = KAPPA) -> Likelihood:
    """Return a copy of a likelihood whose parameters are those of greatest posterior density.

    Parameters
    ----------
    held : Held
        Rows under networks that have not seen them.
    likelihood : Likelihood
        Its scales are the centre of the prior.
    kappa : float
        Standard deviation of the prior of log scales.
    """
    fitted = copy.deepcopy(likelihood).double().requires_grad_()
    parameters = list(fitted.parameters())
    held = replace(held, f=held.f.double(), y=held.y.double() if held.y.is_floating_point() else held.y)
    if not parameters or not len(held.rows):
        return fitted.to(_dtype_of(likelihood)).eval()
    centre = [scale.detach().clone() for scale in _log_scales(fitted)]
    optimizer = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-10)

    def loss() -> Tensor:
        optimizer.zero_grad()
        rows = density(held, fitted)
        value = -(rows if held.weight is None else rows * held.weight).sum()
        for scale, start in zip(_log_scales(fitted), centre, strict=True):
            value = value + 0.5 * ((scale - start) / kappa).square().sum()
        if isinstance(fitted, StudentT) and fitted.raw_df is not None:
            value = value + 0.5 * ((fitted.df() - 2.0).log() - math.log(8.0)).square().sum()
        if isinstance(fitted, Categorical) and fitted.log_temperature is not None:
            value = value + 0.5 * (fitted.log_temperature / _TEMPERATURE).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    optimizer.zero_grad()
    if not all(bool(p.isfinite().all()) for p in parameters):
        return likelihood
    return fitted.to(_dtype_of(likelihood)).eval()


def choose_noise(held: OutOfFold, likelihood: Likelihood, kappa: float = KAPPA) -> Likelihood:
    """Fit Gaussian noise, and take Student's in its place if its density of the rows is higher by two standard errors.

    The gain of a row counts as 3 nats at most: one row far out can make up most of the sum and of its standard error,
    whose ratio then comes close to one.

    Parameters
    ----------
    held : Held
        Rows under networks that have not seen them.
    likelihood : Gaussian
        With learned scales, as the training left them.
    kappa : float
        As in :func:`fit_noise`.
    """
    plain = fit_noise(held, likelihood, kappa)
    if not isinstance(likelihood, Gaussian) or not isinstance(likelihood.noise, LearnedNoise):
        return plain
    heavy = fit_noise(held, heavy_tailed(likelihood), kappa)
    with torch.no_grad():
        gain = (density(held, heavy) - density(held, plain)).clamp(max=_MOST_OF_A_ROW)
    weight = torch.ones_like(gain) if held.weight is None else held.weight.double()
    gained = float((weight * gain).sum())
    spread = float((weight * (gain - gained / float(weight.sum())).square()).sum()) ** 0.5
    return heavy if gained > _LEAST_GAIN * spread else plain


def left_out_score(
    held: OutOfFold,
    likelihood: Likelihood,
    folds: Tensor,
    log_prior: Tensor | None,
    numbers: Sequence[int],
    law: Law | None = None,
    kappa: float | None = KAPPA,
) -> float:
    """Mean log density of a row under a posterior and a noise that were fitted without its fold, in nats.

    Parameters
    ----------
    held : Held
        Rows, each under the networks that have not seen it.
    likelihood : Likelihood
        As the training left it, of the kind that was chosen.
    folds : Tensor of int64, shape (N,)
        The fold of each row.
    log_prior : Tensor, shape (L,), optional
        Log prior over the structures; None if the posterior is not fitted.
    numbers : sequence of L int
        The structures.
    law : callable, optional
        How a named law is fitted; categorical weights by default.
    kappa : float, optional
        As in :func:`fit_noise`; None leaves the noise as it is.
    """
    summed = count = 0.0
    every = held.structure.cpu()
    for k in folds.unique().tolist():
        rest, own = held.take(folds != k), held.take(folds == k)
        if log_prior is not None and len(rest.rows):
            with torch.no_grad():
                each = likelihood.log_prob(rest.f, rest.y).double().cpu()  # (S, N)
            columns = [torch.logsumexp(each[every == number], 0) for number in numbers]
            weight = None if rest.weight is None else rest.weight.double().cpu()
            found = torch.stack(columns, 1), log_prior, weight
            q = stacking.refit(*found) if law is None else law(numbers, *found)
            place = {number: i for i, number in enumerate(numbers)}
            times = int((every == numbers[0]).sum())
            log_weight = (q[[place[number] for number in every.tolist()]] / times).clamp(min=1e-300).log()
            rest, own = (replace(h, log_weight=log_weight.to(h.f.device)) for h in (rest, own))
        of_fold, rows = total(own, likelihood if kappa is None else fit_noise(rest, likelihood, kappa))
        summed, count = summed + of_fold, count + rows
    return summed / count


@torch.no_grad()
def disagreement(f: Tensor, y: Tensor, unseen: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Estimate how much of the squared error of single networks is disagreement between them.

    Network k predicts row i, which it has not seen, with the error e = y − f_k, and the average of those that have seen
    it is g = f̄ − f_k away. Let networks scatter around a common prediction with variance V, let what is left of the
    error have the mean square T (noise, and what all networks miss), and let seeing a row move a prediction towards it
    by the share h of that error. Then, with a = 1 + 1/m for m networks that have seen a row,

    .. math:: S = E e^2 = T + V, \quad C = E\, g e = h T + V, \quad D = E g^2 = h^2 T + a V ,

    so that V is a root of :math:`(a - 1) V^2 + (2 C - a S - D) V + D S - C^2 = 0`. Networks that only follow the rows
    that they see have :math:`D = C^2 / S`, and V = 0; a plain mean of g² would take that for disagreement.

    Parameters
    ----------
    f : Tensor, shape (F, N, T)
        Predicted means of F networks.
    y : Tensor, shape (N, T)
        Targets.
    unseen : bool Tensor, shape (F, N)
        Which network has not seen which row.
    weight : Tensor, shape (N,), optional
        How often each row counts.

    Returns
    -------
    V, S : Tensors, shape (T,)
        Between 0 and S; and S.
    """
    f, y, out = f.double(), y.double(), unseen.double()
    seen = 1.0 - out
    m = seen.sum(0)
    rest = (seen[..., None] * f).sum(0) / m[:, None].clamp(min=1.0)  # (N, T)
    s = out * (m > 0.0) * (1.0 if weight is None else weight.double())
    s = s / s.sum()
    e, g = y - f, rest - f
    S, C, D = (torch.einsum("kn,knt->t", s, one) for one in (e * e, g * e, g * g))
    a = 1.0 + (s.sum(0) / m.clamp(min=1.0)).sum()
    half = 0.5 * (a * S + D - 2.0 * C)
    root = (half.square() - (a - 1.0) * (D * S - C * C)).clamp(min=0.0).sqrt()
    V = (D * S - C * C) / (half + root).clamp(min=torch.finfo(torch.float64).tiny)  # the smaller root
    return torch.minimum(V.clamp(min=0.0), S), S


def average_noise_factor(V: Tensor, S: Tensor, beside: int, networks: int) -> Tensor:
    r"""Return by what factor a scale that was fitted to single networks is too large for their average, (T,).

    With the scale σ of single networks, :math:`\sigma^2` stands for T + V. The error of an average of M is T + V/M, and
    its mixture spreads by V (1 − 1/M) of itself, so the noise of the mixture is T + (2/M − 1) V. Where a row is unseen
    by R networks, σ was fitted to their mixture, and M = R gives what it stands for.

    Parameters
    ----------
    V, S : Tensors, shape (T,)
        See :func:`disagreement`.
    beside, networks : int
        R and M.
    """
    V, S = V.double(), S.double()
    fitted, average = (S - V + (2.0 / count - 1.0) * V for count in (beside, networks))
    return (average / fitted.clamp(min=torch.finfo(torch.float64).tiny)).clamp(_NARROWEST, 1.0).sqrt()


def _dtype_of(likelihood: nn.Module) -> torch.dtype:
    """Return the floating-point type of what a likelihood has learned; double if nothing."""
    return next((p.dtype for p in likelihood.parameters()), torch.float64)


def _log_scales(likelihood: Likelihood) -> list[Tensor]:
    learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
    return [likelihood.noise.log_scale()] if learned else []  # type: ignore[union-attr, operator]
