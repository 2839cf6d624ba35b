r"""Noise of predictions, fitted to held-out or out-of-fold rows.

A network that fits its training rows closely underestimates the noise. The parameters of the likelihood (a scale,
degrees of freedom, a temperature) are therefore fitted again to held-out or out-of-fold rows, by maximum a posteriori
under the mixture over structures,

.. math:: \sum_i s_i \log \sum_\ell q(\ell)\, p(y_i \mid f_{i\ell}, \phi) + \log p(\phi),

with a normal prior of log scales, and of log distances of the thresholds of ordered classes, around their trained
values with standard deviation κ, log (ν − 2) ~ N(log 8, 1) for the degrees of freedom, and log T ~ N(0, 0.2²) for the
temperature of classes. A scale that the network predicts for each row gets a factor for each target, with the same
prior around 1. For a target on a coarse lattice, p(y | f) is the probability of the cell around the target
(:func:`choose_cells`). No learned scale is below step / sqrt(12) of the lattice of its target, which is the standard
deviation of the rounding error.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.search import Law, LogDensities
from fathomless.posterior.likelihoods import (
    ClassLikelihood,
    CumulativeLogit,
    Gaussian,
    Likelihood,
    LocationScale,
    StudentT,
    is_censored,
    log_score,
)
from fathomless.posterior.noise import InputNoise, LearnedNoise

__all__ = [
    "KAPPA",
    "KAPPA_ALONE",
    "average_noise_factor",
    "average_temperature_factor",
    "choose_cells",
    "choose_noise",
    "cross_validate_score",
    "estimate_class_disagreement",
    "estimate_disagreement",
    "fit_noise",
    "free_likelihood",
    "log_densities_by_structure",
    "mixture_log_density",
    "sum_log_density",
    "to_student_t",
    "weigh_without_folds",
]

KAPPA = 0.5  #: prior standard deviation of log scales if all rows are out of fold
KAPPA_ALONE = 0.35  #: prior standard deviation of log scales for the few held-out rows of a single network
_PRIOR_SHARE, _PRIOR_ROWS = 0.1, 20.0  # prior of the share of disagreement, and its weight in rows
_STEPS = 100  # of the iteration for Tyler's scatter
_LEAST_SCATTER = 1e-12  # ridge of the scatter matrix, whose trace is 2
_COOLEST, _HALVINGS = 0.3, 12  # smallest factor of the temperature, and bisections of its logarithm
_NARROWEST = 0.1  # smallest factor of the noise variance for an average of networks
_COARSE = 0.3  # step of a lattice in root mean squared errors above which its target is discrete
_TEMPERATURE = 0.2  # prior standard deviation of log T
_LOG_TAIL = math.log(8.0)  # prior mean of log (ν − 2), with standard deviation 1


def mixture_log_density(out_of_fold: OutOfFold, likelihood: Likelihood) -> Tensor:
    """Return the log density of each row under the mixture over structures, (N,)."""
    log_p = log_score(likelihood, out_of_fold.f, out_of_fold.y)
    log_weight = out_of_fold.log_weight.to(log_p.device)
    return torch.logsumexp((log_weight if log_weight.ndim == 2 else log_weight[:, None]) + log_p.double(), 0)


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


def free_likelihood(likelihood: Likelihood, like: Tensor) -> Likelihood:
    """Return the likelihood with all parameters that held-out rows can fit.

    Classes get a temperature, and a scale that the network predicts gets a factor for each target. Other likelihoods
    are returned unchanged.

    Parameters
    ----------
    likelihood : Likelihood
        Trained likelihood.
    like : Tensor
        Tensor whose device and floating-point type new parameters have.
    """
    if isinstance(likelihood, ClassLikelihood):
        return likelihood.tempered().to(like.device, like.dtype)
    if isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, InputNoise):
        likelihood = copy.deepcopy(likelihood)
        likelihood.add_factor(like)
    return likelihood


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
    return _maximize(_Posterior.of(out_of_fold, likelihood, kappa), likelihood)


@torch.no_grad()
def choose_cells(out_of_fold: OutOfFold, likelihood: Likelihood) -> Likelihood:
    """Return a copy of a likelihood that scores rows by probability if its target lies on a coarse lattice.

    A lattice is coarse if its step is larger than 0.3 root mean squared errors of the average prediction. Then the
    likelihood gets cells of the width of a step. Likelihoods of several targets have none: the joint probability of
    cells of some columns and density of others has no common unit. Those of censored targets have none either.

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
    if is_censored(chosen, out_of_fold.y):
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
    r"""Fit Gaussian noise, or Student's t if its evidence is higher.

    The evidence of a law is the density of the rows with its parameters φ integrated over their prior. Laplace's
    approximation at the maximum a posteriori is

    .. math:: \log Z = \sum_i s_i \log p(y_i \mid \hat\varphi) + \log p(\hat\varphi)
              + \tfrac{d}{2} \log 2 \pi - \tfrac12 \log \lvert H \rvert ,

    with H the negative second derivative in log scales and log (ν − 2). Both laws have the same prior probability.
    For rows of Gaussian noise the fitted degrees of freedom are high, so that Student's t loses little if it is chosen
    by chance.

    Parameters
    ----------
    out_of_fold : OutOfFold
        Held-out or out-of-fold predictions.
    likelihood : Gaussian
        Trained likelihood with learned scales, or with a factor of predicted ones (:func:`free_likelihood`).
    kappa : float
        As in :func:`fit_noise`.
    """
    plain = _Posterior.of(out_of_fold, likelihood, kappa)
    gaussian = _maximize(plain, likelihood)
    if not isinstance(likelihood, Gaussian) or not _log_scales(likelihood) or not len(out_of_fold.rows):
        return gaussian
    heavy = to_student_t(likelihood)
    tailed = _Posterior.of(out_of_fold, heavy, kappa)
    student = _maximize(tailed, heavy)
    return student if tailed.log_evidence() > plain.log_evidence() else gaussian


@dataclass(frozen=True)
class _Posterior:
    """Posterior of the parameters of a likelihood, given out-of-fold rows.

    Attributes
    ----------
    rows : OutOfFold
        Predictions in double precision.
    likelihood : Likelihood
        Likelihood in double precision, whose parameters are changed in place.
    centre : list of Tensors
        Centres of the normal priors of its log scales.
    kappa : float
        Standard deviation of these priors.
    """

    rows: OutOfFold
    likelihood: Likelihood
    centre: list[Tensor]
    kappa: float

    @classmethod
    def of(cls, rows: OutOfFold, likelihood: Likelihood, kappa: float) -> "_Posterior":
        """Return the posterior of a copy of a likelihood, whose scales are the centre of the prior."""
        copied = copy.deepcopy(likelihood).double().requires_grad_()
        y = rows.y.double() if rows.y.is_floating_point() else rows.y
        centre = [scale.detach().clone() for scale in _log_scales(copied)]
        return cls(replace(rows, f=rows.f.double(), y=y), copied, centre, kappa)

    def energy(self) -> Tensor:
        """Return the negative log density of the rows and parameters, without the constants of normal priors."""
        likelihood = self.likelihood
        rows = mixture_log_density(self.rows, likelihood)
        value = -(rows if self.rows.weight is None else rows * self.rows.weight).sum()
        for scale, start in zip(_log_scales(likelihood), self.centre, strict=True):
            value = value + 0.5 * ((scale - start) / self.kappa).square().sum()
        for log_tail in _log_tails(likelihood):
            value = value + 0.5 * (log_tail - _LOG_TAIL).square().sum()
        if isinstance(likelihood, ClassLikelihood) and likelihood.log_temperature is not None:
            value = value + 0.5 * (likelihood.log_temperature / _TEMPERATURE).square().sum()
        return value

    def log_evidence(self) -> float:
        """Return the log evidence at the present parameters, which must be the maximum a posteriori.

        The constants of normal priors and of the normal approximation cancel, apart from the prior of scales, which
        all laws share.
        """
        parameters = list(self.likelihood.parameters())
        natural = [*_log_scales(self.likelihood), *_log_tails(self.likelihood)]  # one function of each parameter
        slopes = torch.autograd.grad(torch.cat(natural).sum(), parameters)
        slope = torch.cat([part.flatten() for part in slopes])
        energy = self.energy()
        if not bool(energy.isfinite()):
            return -math.inf
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(energy, parameters, create_graph=True)])
        lines = [torch.autograd.grad(g, parameters, retain_graph=True) for g in gradient]
        second = torch.stack([torch.cat([part.flatten() for part in line]) for line in lines])
        second = second / (slope[:, None] * slope)  # derivatives by log scales and log (ν − 2), at a stationary point
        # rows that say nothing about a parameter leave it with the precision of its prior, which is at least 1
        precision = torch.linalg.eigvalsh(0.5 * (second + second.mT)).clamp(min=1.0)
        return float(-energy.detach() - 0.5 * precision.log().sum())


def _maximize(posterior: _Posterior, trained: Likelihood) -> Likelihood:
    """Maximise a posterior in place, and return its likelihood in the type of the trained one."""
    fitted = posterior.likelihood
    parameters = list(fitted.parameters())
    if not parameters or not len(posterior.rows.rows):
        return fitted.to(_dtype_of(trained)).eval()
    optimizer = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-10)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = posterior.energy()
        value.backward()
        return value

    optimizer.step(loss)
    optimizer.zero_grad()
    if not all(bool(p.isfinite().all()) for p in parameters):
        return trained
    chosen = copy.deepcopy(fitted).to(_dtype_of(trained)).eval()
    if isinstance(chosen, LocationScale):
        chosen.raise_scale()
    return chosen


def cross_validate_score(
    out_of_fold: OutOfFold,
    likelihood: Likelihood,
    folds: Tensor,
    log_prior: Tensor | None,
    numbers: Sequence[int],
    law: Law | None = None,
    kappa: float | None = KAPPA,
    weighing: Likelihood | None = None,
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
    weighing : Likelihood, optional
        Likelihood of the densities to which the posterior is fitted, if it is not `likelihood`.

    Returns
    -------
    float
        Mean log density in nats per row.
    """
    total = 0.0
    count = 0.0
    weighing = likelihood if weighing is None else weighing
    for k in folds.unique().tolist():
        rest = out_of_fold.take(folds != k)
        fold = out_of_fold.take(folds == k)
        if log_prior is not None and len(rest.rows):
            log_weight = _refit_weights(rest, weighing, log_prior, numbers, law)
            rest, fold = (replace(part, log_weight=log_weight) for part in (rest, fold))
        fitted = likelihood if kappa is None else fit_noise(rest, likelihood, kappa)
        fold_total, fold_count = sum_log_density(fold, fitted)
        total += fold_total
        count += fold_count
    return total / count


def weigh_without_folds(
    out_of_fold: OutOfFold,
    likelihood: Likelihood,
    folds: Tensor,
    log_prior: Tensor,
    numbers: Sequence[int],
    law: Law | None = None,
) -> OutOfFold:
    """Return the predictions with weights of the structures that are fitted, for each row, to the other folds.

    Weights that are fitted to the rows themselves make the errors of these rows look smaller than those of new rows. A
    scale of the noise that is fitted to them is then too small, by 2 to 4 % at 40 to 100 rows.

    Parameters
    ----------
    out_of_fold, likelihood, folds, log_prior, numbers, law
        As in :func:`cross_validate_score`.

    Returns
    -------
    OutOfFold
        The same predictions with log weights (S, N).
    """
    log_weight = out_of_fold.log_weight[:, None].repeat(1, len(out_of_fold.rows))
    for k in folds.unique().tolist():
        rest = out_of_fold.take(folds != k)
        if len(rest.rows):
            log_weight[:, folds == k] = _refit_weights(rest, likelihood, log_prior, numbers, law)[:, None]
    return replace(out_of_fold, log_weight=log_weight)


def _refit_weights(
    rows: OutOfFold, likelihood: Likelihood, log_prior: Tensor, numbers: Sequence[int], law: Law | None
) -> Tensor:
    """Fit the posterior over structures to rows, and return the log weight of each draw, (S,)."""
    structure = rows.structure.cpu()
    with torch.no_grad():
        log_p = log_score(likelihood, rows.f, rows.y).double().cpu()  # (S, N)
    columns = [torch.logsumexp(log_p[structure == number], 0) for number in numbers]
    table = torch.stack(columns, 1), log_prior, None if rows.weight is None else rows.weight.double().cpu()
    q = stacking.refit(*table) if law is None else law(numbers, *table)
    place = {number: i for i, number in enumerate(numbers)}
    times = int((structure == numbers[0]).sum())  # draws of each structure, which share its mass
    log_weight = (q[[place[number] for number in structure.tolist()]] / times).clamp(min=1e-300).log()
    return log_weight.to(rows.f.device)


@torch.no_grad()
def estimate_disagreement(error: Tensor, unseen: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Estimate the share of the squared error of single networks that is disagreement between them.

    Network k was not fitted to row i and has the error e = y − f_k there. The average prediction of the networks that
    were fitted to the row differs from that of network k by g = f̄ − f_k. Let networks scatter around a common
    prediction with variance V, and let the rest of the error have the variance T (noise, and errors common to all
    networks). Let fitting a row move its prediction towards the target by the share h of that error. Then, with
    a = 1 + 1/m for m networks that were fitted to a row,

    .. math:: S = E e^2 = T + V, \quad C = E\, g e = h T + V, \quad D = E g^2 = h^2 T + a V ,

    so that V is a root of :math:`(a - 1) V^2 + (2 C - a S - D) V + D S - C^2 = 0`. Networks that differ only by fitting
    different rows have :math:`D = C^2 / S`, and V = 0; the mean of g² alone would count that as disagreement.

    T and V differ between rows by a common factor. S, C and D are therefore elements of Tyler's estimator of the
    scatter of (e, g), which does not depend on the factors of the rows. Mean squares are ruled by a few rows in which
    networks disagree strongly, and then overestimate the share of the other rows.

    The estimate is averaged with a prior of 0.1, which has the weight of 20 rows.

    Parameters
    ----------
    error : Tensor, shape (F, N, T)
        Targets less predicted means of F networks.
    unseen : bool Tensor, shape (F, N)
        True if the network was not fitted to the row.
    weight : Tensor, shape (N,), optional
        Sample weights.

    Returns
    -------
    Tensor of float64, shape (T,)
        V / S, between 0 and 1.

    References
    ----------
    Tyler, *A distribution-free M-estimator of multivariate scatter*, Annals of Statistics 15, 1987.
    """
    return _share(*_pairs(error, unseen, weight))


@torch.no_grad()
def estimate_class_disagreement(error: Tensor, unseen: Tensor, weight: Tensor | None = None) -> tuple[float, float]:
    """Estimate the disagreement between the probabilities of single networks, and their Brier score.

    The errors are one-hot classes less probabilities. Scores are sums over classes. The disagreement is the smaller one
    of two estimates: by the shares of :func:`estimate_disagreement`, and by mean squares in place of Tyler's scatter.
    Both tend to be too large, the former if networks agree in many rows and err in few, the latter if they were fitted
    closely to their rows.

    Parameters
    ----------
    error : Tensor, shape (F, N, C)
        Errors of F networks.
    unseen, weight
        As in :func:`estimate_disagreement`.

    Returns
    -------
    disagreement, score : float
        V and S, V <= S.
    """
    pairs, weight, more = _pairs(error, unseen, weight)
    rows = float(weight.sum())
    if rows == 0.0:
        return 0.0, 0.0
    e, g = pairs.unbind(-1)
    S, C, D = (weight @ product / rows for product in (e * e, g * e, g * g))  # (C,) each
    by_squares = rows / (rows + _PRIOR_ROWS) * _smaller_root(S.sum(), C.sum(), D.sum(), more)
    return min(float(by_squares), float(_share(pairs, weight, more) @ S)), float(S.sum())


def _pairs(error: Tensor, unseen: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs (e, g) of networks and rows to which they were not fitted, (P, T, 2), weights (P,) and a - 1."""
    error, out = error.double(), unseen.double()
    m = (1.0 - out).sum(0)  # number of networks that were fitted to each row
    fitted = ((1.0 - out)[..., None] * error).sum(0) / m[:, None].clamp(min=1.0)  # (N, T)
    network, row = torch.nonzero(unseen & (m > 0.0), as_tuple=True)
    e = error[network, row]  # (P, T)
    weight = error.new_ones(len(m)) if weight is None else weight.double()
    of_pair = (weight / out.sum(0).clamp(min=1.0))[row]
    more = (of_pair @ (1.0 / m[row])) / of_pair.sum().clamp(min=1e-300)
    return torch.stack([e, e - fitted[row]], -1), of_pair, more


def _share(pairs: Tensor, weight: Tensor, more: Tensor) -> Tensor:
    """Return the share of disagreement V / S of each target, (T,)."""
    S, C, D = _scatter(pairs, weight)
    rows = weight.sum()
    found = _smaller_root(S, C, D, more) / S.clamp(min=torch.finfo(torch.float64).tiny)
    return (rows * found + _PRIOR_ROWS * _PRIOR_SHARE) / (rows + _PRIOR_ROWS)


def _smaller_root(S: Tensor, C: Tensor, D: Tensor, more: Tensor) -> Tensor:
    """Return the root V of the equation of :func:`estimate_disagreement`, between 0 and S; `more` is a - 1."""
    half = 0.5 * ((1.0 + more) * S + D - 2.0 * C)
    root = (half.square() - more * (D * S - C * C)).clamp(min=0.0).sqrt()
    V = (D * S - C * C) / (half + root).clamp(min=torch.finfo(torch.float64).tiny)
    return torch.minimum(V.clamp(min=0.0), S)


def _scatter(pairs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the elements (1, 1), (1, 2) and (2, 2) of Tyler's scatter of pairs (P, T, 2), (T,) each."""
    pairs = torch.where(pairs.isfinite().all(-1, keepdim=True), pairs, 0.0)
    size = torch.cat([pairs.abs(), pairs.new_zeros(1, *pairs.shape[1:])])
    unit = torch.where(size.median(0).values > 0.0, size.median(0).values, size.amax(0)).clamp(min=1e-150)  # (T, 2)
    z = pairs / unit
    weights = weight[:, None] * (z != 0.0).any(-1)  # (P, T); pairs of zeros have no direction
    matrix = torch.eye(2, dtype=z.dtype, device=z.device).expand(z.shape[1], 2, 2)
    ridge = _LEAST_SCATTER * matrix
    for _ in range(_STEPS):
        directed = torch.einsum("pti,tij,ptj->pt", z, torch.linalg.inv(matrix + ridge), z)
        outer = torch.einsum("pt,pti,ptj->tij", weights / directed.clamp(min=1e-300), z, z)
        trace = outer.diagonal(dim1=-2, dim2=-1).sum(-1)
        matrix = torch.where(trace[:, None, None] > 0.0, 2.0 * outer / trace[:, None, None], matrix)
    scaled = matrix * unit[:, :, None] * unit[:, None, :]
    return scaled[:, 0, 0], scaled[:, 0, 1], scaled[:, 1, 1]


def average_noise_factor(share: Tensor, beside: int, networks: int) -> Tensor:
    r"""Return the factor of the noise scale for an average of networks, for a scale fitted to single ones, (T,).

    For single networks, :math:`\sigma^2` estimates T + V. The mean squared error of an average of M networks is
    T + V/M. Their mixture already has the variance V (1 − 1/M) between networks, so its noise is T + (2/M − 1) V. If
    each row is out of fold for R networks, σ was fitted to their mixture and estimates this with M = R.

    Parameters
    ----------
    share : Tensor, shape (T,)
        V / (T + V), see :func:`estimate_disagreement`.
    beside, networks : int
        R and M.
    """
    share = share.double()
    fitted, average = (1.0 + (2.0 / count - 2.0) * share for count in (beside, networks))
    return (average / fitted.clamp(min=torch.finfo(torch.float64).tiny)).clamp(_NARROWEST, 1.0).sqrt()


def average_temperature_factor(
    brier: Callable[[float], float], V: float, S: float, beside: int, networks: int
) -> float:
    r"""Return the factor of the temperature for an average of networks, for one fitted to single ones.

    Probabilities p of a calibrated prediction have the Brier score :math:`E \sum_c p_c (1 - p_c)`. An average of M
    networks with the disagreement V has this expected score increased by V (1 − 1/M), and its score decreased by as
    much. With the factor, the expected score κ of single networks is

    .. math:: \kappa = \kappa_1 \frac{S - 2 V (1 - 1/M)}{S - 2 V (1 - 1/R)} ,

    so that the average is calibrated if a mixture of R networks was, to which the temperature was fitted.

    Parameters
    ----------
    brier : callable
        Function that returns κ for a factor; it increases.
    V, S : float
        See :func:`estimate_class_disagreement`.
    beside, networks : int
        R and M.
    """
    fitted, average = (S - 2.0 * V * (1.0 - 1.0 / count) for count in (beside, networks))
    if not 0.0 < average < fitted:
        return 1.0 if average >= fitted else _COOLEST
    goal = brier(1.0) * average / fitted
    low, high = math.log(_COOLEST), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if brier(math.exp(middle)) > goal else (middle, high)
    return math.exp(0.5 * (low + high))


def _dtype_of(likelihood: nn.Module) -> torch.dtype:
    """Return the floating-point type of the parameters of a likelihood; double if it has none."""
    return next((p.dtype for p in likelihood.parameters()), torch.float64)


def _log_scales(likelihood: Likelihood) -> list[Tensor]:
    """Return the log scales, log factors of scales or log distances of thresholds that held-out rows can fit."""
    if isinstance(likelihood, CumulativeLogit) and likelihood.log_gaps is not None:
        return [likelihood.log_gaps]
    noise = likelihood.noise if isinstance(likelihood, LocationScale) else None
    if isinstance(noise, LearnedNoise):
        return [noise.log_scale()]
    return [noise.log_factor] if isinstance(noise, InputNoise) and noise.log_factor is not None else []


def _log_tails(likelihood: Likelihood) -> list[Tensor]:
    """Return log (ν − 2) of learned degrees of freedom, if there are any."""
    learned = isinstance(likelihood, StudentT) and likelihood.raw_df is not None
    return [(likelihood.df() - 2.0).log()] if learned else []  # type: ignore[operator]
