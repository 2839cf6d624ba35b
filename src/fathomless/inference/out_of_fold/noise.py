r"""Noise of predictions, fitted to held-out or out-of-fold rows.

A network that fits its training rows closely underestimates the noise. The parameters of the likelihood (a scale,
degrees of freedom, a temperature) are therefore fitted again to held-out or out-of-fold rows, by maximum a posteriori
under the mixture over structures,

.. math:: \sum_i s_i \log \sum_\ell q(\ell)\, p(y_i \mid f_{i\ell}, \phi) + \log p(\phi),

with a normal prior of log scales, and of log distances of the thresholds of ordered classes, around their trained
values with standard deviation κ, log (ν − 2) ~ N(log 8, 1) for the degrees of freedom, and log T ~ N(0, 0.2²) for the
temperature of classes. For a target on a coarse lattice, p(y | f) is the probability of the cell around the target
(:func:`choose_cells`). No scale is below step / sqrt(12) of the lattice of its target, which is the standard deviation
of the rounding error.
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
from fathomless.posterior.likelihoods import (
    ClassLikelihood,
    CumulativeLogit,
    Gaussian,
    LearnedNoise,
    Likelihood,
    LocationScale,
    StudentT,
    log_score,
)

__all__ = [
    "KAPPA",
    "KAPPA_ALONE",
    "average_noise_factor",
    "choose_cells",
    "choose_noise",
    "cross_validate_score",
    "estimate_disagreement",
    "fit_noise",
    "log_densities_by_structure",
    "mixture_log_density",
    "sum_log_density",
    "to_student_t",
]

KAPPA = 0.5  #: prior standard deviation of log scales if all rows are out of fold
KAPPA_ALONE = 0.35  #: prior standard deviation of log scales for the few held-out rows of a single network
_NARROWEST = 0.1  # smallest factor of the noise variance for an average of networks
_COARSE = 0.3  # step of a lattice in root mean squared errors above which its target is discrete
_TEMPERATURE = 0.2  # prior standard deviation of log T
_LEAST_GAIN = 2.0  # standard errors by which Student's t must be better than Gaussian noise
_MOST_OF_A_ROW = 3.0  # nats at which the gain of one row is clipped in this comparison


def mixture_log_density(out_of_fold: OutOfFold, likelihood: Likelihood) -> Tensor:
    """Return the log density of each row under the mixture over structures, (N,)."""
    log_p = log_score(likelihood, out_of_fold.f, out_of_fold.y)
    return torch.logsumexp(out_of_fold.log_weight[:, None].to(log_p.device) + log_p.double(), 0)


@torch.no_grad()
def sum_log_density(out_of_fold: OutOfFold, likelihood: Likelihood) -> tuple[float, float]:
    """Return the weighted sum of the log densities of the rows, and the sum of their sample weights."""
    rows = mixture_log_density(out_of_fold, likelihood)
    weight = torch.ones_like(rows) if out_of_fold.weight is None else out_of_fold.weight.double()
    return float((weight * rows).sum()), float(weight.sum())


@torch.no_grad()
def log_densities_by_structure(out_of_fold: OutOfFold, likelihood: Likelihood) -> LogDensities:
    """Return the log density of each row under each structure, averaged over draws and networks of equal weight."""
    log_p = log_score(likelihood, out_of_fold.f, out_of_fold.y).double()  # (S, N)
    numbers = sorted(set(out_of_fold.structure.tolist()))
    by_structure = [log_p[out_of_fold.structure == number] for number in numbers]
    columns = [torch.logsumexp(draws, 0) - math.log(len(draws)) for draws in by_structure]
    weight = None if out_of_fold.weight is None else out_of_fold.weight.double().cpu()
    return LogDensities(tuple(numbers), torch.stack(columns, 1).cpu(), out_of_fold.rows, weight)


def to_student_t(likelihood: LocationScale) -> StudentT:
    """Return Student's t noise with the scale of another law and degrees of freedom to be fitted."""
    heavy = StudentT(likelihood.targets, df="learned").to(_dtype_of(likelihood))
    heavy.noise = copy.deepcopy(likelihood.noise)
    heavy.steps, heavy.cell = likelihood.steps, likelihood.cell
    return heavy.to(next(likelihood.parameters()).device)


def fit_noise(out_of_fold: OutOfFold, likelihood: Likelihood, kappa: float = KAPPA) -> Likelihood:
    """Fit the parameters of a likelihood to out-of-fold rows by maximum a posteriori; return a copy.

    Parameters
    ----------
    out_of_fold : OutOfFold
        Held-out or out-of-fold predictions.
    likelihood : Likelihood
        Trained likelihood, whose scales are the centre of the prior.
    kappa : float
        Prior standard deviation of log scales.
    """
    fitted = copy.deepcopy(likelihood).double().requires_grad_()
    parameters = list(fitted.parameters())
    out_of_fold = replace(
        out_of_fold,
        f=out_of_fold.f.double(),
        y=out_of_fold.y.double() if out_of_fold.y.is_floating_point() else out_of_fold.y,
    )
    if not parameters or not len(out_of_fold.rows):
        return fitted.to(_dtype_of(likelihood)).eval()
    centre = [scale.detach().clone() for scale in _log_scales(fitted)]
    optimizer = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-10)

    def loss() -> Tensor:
        optimizer.zero_grad()
        rows = mixture_log_density(out_of_fold, fitted)
        value = -(rows if out_of_fold.weight is None else rows * out_of_fold.weight).sum()
        for scale, start in zip(_log_scales(fitted), centre, strict=True):
            value = value + 0.5 * ((scale - start) / kappa).square().sum()
        if isinstance(fitted, StudentT) and fitted.raw_df is not None:
            value = value + 0.5 * ((fitted.df() - 2.0).log() - math.log(8.0)).square().sum()
        if isinstance(fitted, ClassLikelihood) and fitted.log_temperature is not None:
            value = value + 0.5 * (fitted.log_temperature / _TEMPERATURE).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    optimizer.zero_grad()
    if not all(bool(p.isfinite().all()) for p in parameters):
        return likelihood
    fitted = fitted.to(_dtype_of(likelihood)).eval()
    if isinstance(fitted, LocationScale):
        fitted.raise_scale()
    return fitted


@torch.no_grad()
def choose_cells(out_of_fold: OutOfFold, likelihood: Likelihood) -> Likelihood:
    """Return a copy of a likelihood that scores rows by probability if its target lies on a coarse lattice.

    A lattice is coarse if its step is larger than 0.3 root mean squared errors of the average prediction. Then the
    likelihood gets cells of the width of a step. Likelihoods of several targets have none: the joint probability of
    cells of some columns and density of others has no common unit.

    Parameters
    ----------
    out_of_fold : OutOfFold
        Held-out or out-of-fold predictions.
    likelihood : Likelihood
        Trained likelihood, with the step of the lattice.
    """
    chosen = copy.deepcopy(likelihood)
    if not isinstance(chosen, LocationScale):
        return chosen
    chosen.cell = None
    if chosen.targets != 1 or not any(chosen.steps) or not len(out_of_fold.rows):
        return chosen
    weight = out_of_fold.log_weight.double().exp().to(out_of_fold.f.device)
    mean = torch.einsum("s,snt->nt", weight, out_of_fold.f[..., :1].double())
    square = (out_of_fold.y.double() - mean).square()[:, 0]
    rows = torch.ones_like(square) if out_of_fold.weight is None else out_of_fold.weight.double()
    error = float(((rows * square).sum() / rows.sum()).sqrt())
    if chosen.steps[0] > _COARSE * error:
        chosen.cell = torch.tensor(chosen.steps, dtype=_dtype_of(chosen), device=out_of_fold.f.device)
    return chosen


def choose_noise(out_of_fold: OutOfFold, likelihood: Likelihood, kappa: float = KAPPA) -> Likelihood:
    """Fit Gaussian noise, or Student's t if its log-likelihood is higher by more than two standard errors.

    The gain of a row is clipped at 3 nats. Without the limit, a single outlier can dominate both the sum and its
    standard error, and their ratio is then close to one.

    Parameters
    ----------
    out_of_fold : OutOfFold
        Held-out or out-of-fold predictions.
    likelihood : Gaussian
        Trained likelihood with learned scales.
    kappa : float
        As in :func:`fit_noise`.
    """
    plain = fit_noise(out_of_fold, likelihood, kappa)
    if not isinstance(likelihood, Gaussian) or not isinstance(likelihood.noise, LearnedNoise):
        return plain
    heavy = fit_noise(out_of_fold, to_student_t(likelihood), kappa)
    with torch.no_grad():
        gain = (mixture_log_density(out_of_fold, heavy) - mixture_log_density(out_of_fold, plain)).clamp(
            max=_MOST_OF_A_ROW
        )
    weight = torch.ones_like(gain) if out_of_fold.weight is None else out_of_fold.weight.double()
    gained = float((weight * gain).sum())
    spread = float((weight * (gain - gained / float(weight.sum())).square()).sum()) ** 0.5
    return heavy if gained > _LEAST_GAIN * spread else plain


def cross_validate_score(
    out_of_fold: OutOfFold,
    likelihood: Likelihood,
    folds: Tensor,
    log_prior: Tensor | None,
    numbers: Sequence[int],
    law: Law | None = None,
    kappa: float | None = KAPPA,
) -> float:
    """Cross-validate the posterior and the noise: fit both without a fold, and score that fold.

    Parameters
    ----------
    out_of_fold : OutOfFold
        Held-out or out-of-fold predictions.
    likelihood : Likelihood
        Trained likelihood, of the chosen kind.
    folds : Tensor of int64, shape (N,)
        Fold of each row.
    log_prior : Tensor, shape (L,), optional
        Log prior over the structures; None if the posterior is not fitted.
    numbers : sequence of L int
        Structures.
    law : callable, optional
        Fits a named law; categorical weights by default.
    kappa : float, optional
        As in :func:`fit_noise`; None leaves the noise unchanged.

    Returns
    -------
    float
        Mean log density in nats per row.
    """
    total = 0.0
    count = 0.0
    structure = out_of_fold.structure.cpu()
    for k in folds.unique().tolist():
        rest = out_of_fold.take(folds != k)
        fold = out_of_fold.take(folds == k)
        if log_prior is not None and len(rest.rows):
            with torch.no_grad():
                log_p = log_score(likelihood, rest.f, rest.y).double().cpu()  # (S, N)
            columns = [torch.logsumexp(log_p[structure == number], 0) for number in numbers]
            weight = None if rest.weight is None else rest.weight.double().cpu()
            table = torch.stack(columns, 1), log_prior, weight
            q = stacking.refit(*table) if law is None else law(numbers, *table)
            place = {number: i for i, number in enumerate(numbers)}
            times = int((structure == numbers[0]).sum())  # draws of each structure, which share its mass
            log_weight = (q[[place[number] for number in structure.tolist()]] / times).clamp(min=1e-300).log()
            rest, fold = (replace(part, log_weight=log_weight.to(part.f.device)) for part in (rest, fold))
        fitted = likelihood if kappa is None else fit_noise(rest, likelihood, kappa)
        fold_total, fold_count = sum_log_density(fold, fitted)
        total += fold_total
        count += fold_count
    return total / count


@torch.no_grad()
def estimate_disagreement(f: Tensor, y: Tensor, unseen: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Estimate the share of the squared error of single networks that is disagreement between them.

    Network k was not fitted to row i and predicts it with the error e = y − f_k. The average prediction of the networks
    that were fitted to the row differs from that of network k by g = f̄ − f_k. Let networks scatter around a common
    prediction with variance V, and let the rest of the error have the mean square T (noise, and errors common to all
    networks). Let fitting a row move its prediction towards the target by the share h of that error. Then, with
    a = 1 + 1/m for m networks that were fitted to a row,

    .. math:: S = E e^2 = T + V, \quad C = E\, g e = h T + V, \quad D = E g^2 = h^2 T + a V ,

    so that V is a root of :math:`(a - 1) V^2 + (2 C - a S - D) V + D S - C^2 = 0`. Networks that differ only by fitting
    different rows have :math:`D = C^2 / S`, and V = 0; the mean of g² alone would count that as disagreement.

    Parameters
    ----------
    f : Tensor, shape (F, N, T)
        Predicted means of F networks.
    y : Tensor, shape (N, T)
        Targets.
    unseen : bool Tensor, shape (F, N)
        True if the network was not fitted to the row.
    weight : Tensor, shape (N,), optional
        Sample weights.

    Returns
    -------
    V, S : Tensors, shape (T,)
        Between 0 and S; and S.
    """
    f, y = f.double(), y.double()
    out = unseen.double()
    seen = 1.0 - out
    m = seen.sum(0)
    rest = (seen[..., None] * f).sum(0) / m[:, None].clamp(min=1.0)  # (N, T)
    s = out * (m > 0.0) * (1.0 if weight is None else weight.double())
    s = s / s.sum()
    e, g = y - f, rest - f
    S, C, D = (torch.einsum("kn,knt->t", s, product) for product in (e * e, g * e, g * g))
    a = 1.0 + (s.sum(0) / m.clamp(min=1.0)).sum()
    half = 0.5 * (a * S + D - 2.0 * C)
    root = (half.square() - (a - 1.0) * (D * S - C * C)).clamp(min=0.0).sqrt()
    V = (D * S - C * C) / (half + root).clamp(min=torch.finfo(torch.float64).tiny)  # the smaller root
    return torch.minimum(V.clamp(min=0.0), S), S


def average_noise_factor(V: Tensor, S: Tensor, beside: int, networks: int) -> Tensor:
    r"""Return the factor of the noise scale for an average of networks, for a scale fitted to single ones, (T,).

    For single networks, :math:`\sigma^2` estimates T + V. The mean squared error of an average of M networks is
    T + V/M. Their mixture already has the variance V (1 − 1/M) between networks, so its noise is T + (2/M − 1) V. If
    each row is out of fold for R networks, σ was fitted to their mixture and estimates this with M = R.

    Parameters
    ----------
    V, S : Tensors, shape (T,)
        See :func:`estimate_disagreement`.
    beside, networks : int
        R and M.
    """
    V, S = V.double(), S.double()
    fitted, average = (S - V + (2.0 / count - 1.0) * V for count in (beside, networks))
    return (average / fitted.clamp(min=torch.finfo(torch.float64).tiny)).clamp(_NARROWEST, 1.0).sqrt()


def _dtype_of(likelihood: nn.Module) -> torch.dtype:
    """Return the floating-point type of the parameters of a likelihood; double if it has none."""
    return next((p.dtype for p in likelihood.parameters()), torch.float64)


def _log_scales(likelihood: Likelihood) -> list[Tensor]:
    """Return the learned log scales of a likelihood, or log distances of thresholds, if it has any."""
    if isinstance(likelihood, CumulativeLogit) and likelihood.log_gaps is not None:
        return [likelihood.log_gaps]
    learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
    return [likelihood.noise.log_scale()] if learned else []  # type: ignore[union-attr, operator]
