r"""Likelihoods p(y | f): laws of a target given the outputs of a network.

Training uses :meth:`Likelihood.log_prob`, and prediction uses :meth:`Likelihood.components`. Continuous targets should
be standardised: the defaults of the noise are fractions of the standard deviation of the target.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fathomless.posterior import mixtures
from fathomless.posterior.censoring import log_between
from fathomless.posterior.mixtures import Censorable, Classes, Component, Indicators
from fathomless.posterior.noise import InputNoise, LearnedNoise, NoiseOption, StatedNoise, make_noise
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassLikelihood",
    "CumulativeLogit",
    "Gaussian",
    "HasWidth",
    "Laplace",
    "Likelihood",
    "LocationScale",
    "StudentT",
    "cell_of",
    "is_censored",
    "log_score",
    "without_cells",
]

Law = tuple[type[Component], tuple[float | Tensor, ...]]  # a component class and its shape parameters

_DF_START = 4.0
_DF_LOW, _DF_HIGH = 2.05, 200.0  # from a variance of 41 scale² to nearly Gaussian


class Likelihood(nn.Module, ABC):
    """Law of a target given the outputs of a network."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of network outputs K."""

    @property
    @abstractmethod
    def discrete(self) -> bool:
        """True if the target is a class; ``log_prob`` is then a log probability, otherwise a log density."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log density or probability of each row under each draw, in nats, summed over target columns.

        Parameters
        ----------
        f : Tensor, shape (S, B, K)
            Outputs of the drawn networks. The result is differentiable in f and in the parameters of the likelihood.
        y : Tensor
            Targets: (B, T) for continuous ones, or (B, 2 T) of lower and upper bounds for censored ones (see
            :class:`LocationScale`), (B, T) of 0 and 1 for :class:`Bernoulli`, (B,) of int64 for :class:`Categorical`
            and :class:`CumulativeLogit`.

        Returns
        -------
        Tensor, shape (S, B), dtype of ``f``
            Values are NOT checked for NaN or classes out of range, since this would read the device.

        Raises
        ------
        DataError
            If a shape does not fit.
        """

    @abstractmethod
    def components(self, f: Tensor) -> Component | Classes | Indicators:
        """Law of the target under each draw with axes (S, B, ...), in float64 on the CPU and differentiable."""


class HasWidth(ABC):
    """A likelihood whose predictive distributions can be widened."""

    @abstractmethod
    def widen(self, factor: float) -> Likelihood:
        """Return a copy whose learned scale, or temperature of classes, is multiplied by `factor`."""


class LocationScale(Likelihood, HasWidth, ABC):
    r"""Independent noise of one law on each target column: y = centre + scale z, with z of a standardised law g.

    .. math:: \log p = \sum_t \left( \log g(e_t / \sigma_t) - \log \sigma_t \right)

    A subclass names the law. Its density is defined in its component (:mod:`fathomless.posterior.mixtures`).

    Targets can be censored. They are then given as bounds (B, 2 T), first all lower and then all upper ones. Where both
    are equal, the target is known and has its density. Otherwise one bound may be infinite, and the likelihood is the
    probability between them (:mod:`fathomless.posterior.censoring`).

    Parameters
    ----------
    targets : int
        Number of target columns T.
    noise : "learned", "input", "stated" or float
        Scale: learned for each column (:class:`LearnedNoise`), predicted for each input (:class:`InputNoise`, with
        2 T network outputs), part of the outputs of each drawn network (:class:`StatedNoise`, also with 2 T outputs),
        or a known number.
    initial_noise : float
        Initial scale.
    min_noise : float
        Smooth lower bound on a learned or predicted scale.

    Attributes
    ----------
    steps : tuple of float, length T
        Step of the lattice of each standardised target, 0 without a lattice. It bounds fitted scales, and is empty if
        there are no bounds.
    cell : Tensor, shape (T,), optional
        Widths of the cells of a discrete target: rows are then scored by the probability of the cell around the target,
        :meth:`log_mass`. None for continuous targets.

    Raises
    ------
    DataError
        If an option is not allowed.
    """

    cell: Tensor | None

    def __init__(
        self,
        targets: int = 1,
        noise: NoiseOption = "learned",
        *,
        initial_noise: float = 0.5,
        min_noise: float = 1e-3,
    ) -> None:
        super().__init__()
        self.targets = _check_count("targets", targets, 1)
        self.noise = make_noise(targets, noise, initial_noise, min_noise)
        self.steps: tuple[float, ...] = ()
        self.register_buffer("cell", None)

    @abstractmethod
    def law(self) -> Law:
        """Return the component class of the noise and its shape parameters: floats, or differentiable tensors (T,)."""

    @property
    def outputs(self) -> int:
        """Number of network outputs."""
        return self.targets * self.noise.columns

    def add_factor(self, like: Tensor | None = None) -> None:
        """Add a factor of 1 to a scale that the network predicts (:meth:`InputNoise.add_factor`), for held-out rows."""
        if isinstance(self.noise, InputNoise):
            self.noise.add_factor(like)

    def widen(self, factor: float) -> "LocationScale":
        """Return a copy whose learned or predicted scale is multiplied by `factor`; other scales are unchanged."""
        copied = copy.deepcopy(self)
        if isinstance(copied.noise, LearnedNoise | InputNoise):
            copied.noise.rescale(torch.full((self.targets,), factor, dtype=torch.float64, device="cpu"))
        return copied

    @property
    def discrete(self) -> bool:
        """False."""
        return False

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log density, (S, B); the log probability between the bounds of censored targets."""
        noise, targets = self.noise, self.targets  # looked up once, since attributes of modules are slow
        if y.ndim == 2 and y.shape[1] == 2 * targets:
            return self._log_prob_of_bounds(f, y)
        _check_shapes(f, targets * noise.columns, y, (targets,))
        loc, log_scale, *stated = noise.split(f)
        law, shape = self.law()
        shape = tuple(stated) or shape
        constant = law.log_constant(*shape)  # before the cast of shape: it is a difference of large numbers
        z = (y.to(f.dtype) - loc) * torch.exp(-log_scale)  # (S, B, T)
        # Both branches compute the same sum. Without shape parameters all columns have one constant, which is added to
        # (S, B) numbers rather than (S, B, T). Another order of additions would change the last bits of all trainings.
        if not shape:
            return targets * constant - (law.energy(z) + log_scale).sum(-1)  # (S, B)
        energy = law.energy(z, *[_cast(parameter, f) for parameter in shape])  # (S, B, T)
        return (_cast(constant, f) - log_scale - energy).sum(-1)  # (S, B)

    def _log_prob_of_bounds(self, f: Tensor, y: Tensor) -> Tensor:
        """Log density of known targets and log probability between the bounds of the others, (S, B)."""
        _check_shapes(f, self.outputs, y, (2 * self.targets,))
        low, high = y.split(self.targets, 1)
        known = low == high
        loc, log_scale, *stated = self.noise.split(f)
        law, shape = self.law()
        if not issubclass(law, Censorable):
            raise DataError(
                f"targets were given as bounds, with the law {law.__name__}; laws of censored targets are subclasses "
                "of mixtures.Censorable: add log_cdf"
            )
        shape = tuple(stated) or shape
        constant = law.log_constant(*shape)
        z = (torch.where(known, low, 0.0).to(f.dtype) - loc) * torch.exp(-log_scale)  # (S, B, T)
        energy = law.energy(z, *[_cast(parameter, f) for parameter in shape])
        density = _cast(constant, f) - log_scale - energy
        # the probabilities of known targets are not used, and have finite derivatives
        bounds = torch.where(known, 0.0, low), torch.where(known, math.inf, high)
        between = log_between(law, shape, bounds, loc, log_scale).to(f.dtype)
        return torch.where(known, density, between).sum(-1)

    def log_mass(self, f: Tensor, y: Tensor) -> Tensor:
        r"""Log probability of the cells around the targets, (S, B), in float64; for a likelihood with cells.

        .. math:: \sum_t \log \left( F_t(y_t + c_t / 2) - F_t(y_t - c_t / 2) \right)
        """
        assert self.cell is not None
        _check_shapes(f, self.outputs, y, (self.targets,))
        half = 0.5 * self.cell.cpu().double()
        centre = y.cpu().double()
        return self.components(f).log_mass(centre - half, centre + half).sum(-1).to(f.device)  # (S, B)

    @torch.no_grad()
    def raise_scale(self) -> None:
        """Raise learned scales to the rounding error of the lattice, step / sqrt(12)."""
        if isinstance(self.noise, LearnedNoise) and any(self.steps):
            least = torch.tensor(self.steps, dtype=torch.float64, device=self.noise.raw.device) / math.sqrt(12.0)
            self.noise.raise_to(least)

    def components(self, f: Tensor) -> Component:
        """Laws of the target with axes (S, B, T)."""
        _check_shapes(f, self.outputs)
        law, shape = self.law()
        loc, log_scale, *stated = self.noise.split(f)
        return law(loc, log_scale.cpu().double().exp(), *(stated or shape))


class Gaussian(LocationScale):
    r"""Independent Gaussian noise on each target column.

    .. math:: \log p = -\sum_t \left( \frac{e_t^2}{2 \sigma_t^2} + \log \sigma_t + \tfrac12 \log 2\pi \right)

    Parameters
    ----------
    targets, noise, initial_noise, min_noise
        See :class:`LocationScale`; the scale is the standard deviation.

    Raises
    ------
    DataError
        If an option is not allowed.

    Examples
    --------
    >>> Gaussian(noise=1.0).log_prob(torch.zeros(1, 2, 1), torch.tensor([[0.0], [2.0]]))
    tensor([[-0.9189, -2.9189]])
    """

    def law(self) -> Law:
        """Gaussian, without a shape parameter."""
        return mixtures.Normal, ()


class Laplace(LocationScale):
    r"""Independent Laplace noise on each target column.

    .. math:: \log p = -\sum_t \left( |e_t| / b_t + \log 2 b_t \right)

    Parameters
    ----------
    targets, noise, initial_noise, min_noise
        See :class:`LocationScale`, with the scale b; the standard deviation is :math:`\sqrt 2\, b`.

    Raises
    ------
    DataError
        If an option is not allowed.
    """

    def law(self) -> Law:
        """Laplace, without a shape parameter."""
        return mixtures.Laplace, ()


class StudentT(LocationScale):
    r"""Independent Student's t noise on each target column, robust to outliers.

    .. math:: \log p = \sum_t \log \frac{\Gamma(\frac{\nu+1}{2})}{\Gamma(\frac{\nu}{2}) \sqrt{\pi \nu}}
              - \log \sigma_t - \frac{\nu + 1}{2} \log\left(1 + \frac{e_t^2}{\nu \sigma_t^2}\right)

    Parameters
    ----------
    targets, noise, initial_noise, min_noise
        See :class:`LocationScale`; the variance is :math:`\sigma^2 \nu / (\nu - 2)`.
    df : float, "learned" or "stated"
        Degrees of freedom :math:`\nu > 2`. If learned, there is one value for each column, initially 4 and always
        between 2.05 and 200, since :math:`1 / \nu` is a scaled sigmoid of the parameter. If stated, they are outputs of
        each drawn network, which has 3 T outputs; this requires ``noise="stated"``.

    Raises
    ------
    DataError
        If an option is not allowed.
    """

    raw_df: nn.Parameter | None

    def __init__(
        self,
        targets: int = 1,
        df: float | Literal["learned", "stated"] = 4.0,
        noise: NoiseOption = "learned",
        *,
        initial_noise: float = 0.5,
        min_noise: float = 1e-3,
    ) -> None:
        super().__init__(targets, noise, initial_noise=initial_noise, min_noise=min_noise)
        learned, stated = df == "learned", df == "stated"
        self.fixed_df = math.nan if isinstance(df, str) else float(df)
        if not (learned or stated) and not 2.0 < self.fixed_df < math.inf:
            raise DataError(
                f"df was given as {df!r}; allowed are 'learned', 'stated' and finite numbers above 2, for which the "
                "variance exists: use Gaussian in place of infinite degrees of freedom"
            )
        if stated:
            if noise != "stated":
                raise DataError(f"df='stated' was given with noise={noise!r}; it requires noise='stated'")
            self.noise = StatedNoise(self.targets, shapes=1)
        share = (1.0 / _DF_START - 1.0 / _DF_HIGH) / (1.0 / _DF_LOW - 1.0 / _DF_HIGH)
        start = torch.full((targets,), math.log(share / (1.0 - share)), dtype=torch.float32, device="cpu")
        self.raw_df = nn.Parameter(start) if learned else None

    def df(self) -> Tensor:
        """Degrees of freedom, shape () if fixed and (T,) if learned."""
        if self.raw_df is None:
            return torch.tensor(self.fixed_df, dtype=torch.float64, device="cpu")
        return 1.0 / (1.0 / _DF_HIGH + (1.0 / _DF_LOW - 1.0 / _DF_HIGH) * self.raw_df.sigmoid())

    def law(self) -> Law:
        """Student's t, with its degrees of freedom; a float if they are fixed, to keep double precision."""
        if isinstance(self.noise, StatedNoise) and self.noise.shapes:
            return mixtures.StudentT, ()
        return mixtures.StudentT, (self.fixed_df if self.raw_df is None else self.df(),)


class ClassLikelihood(Likelihood, HasWidth, ABC):
    """Law of one of C classes, with an optional temperature that is fitted to held-out rows.

    Attributes
    ----------
    classes : int
        Number of classes C.
    log_temperature : Parameter, shape (), or None
        Log temperature, if there is one.
    """

    classes: int
    log_temperature: nn.Parameter | None

    @abstractmethod
    def tempered(self) -> "ClassLikelihood":
        """Return a copy with the temperature 1 as a parameter."""


class Categorical(ClassLikelihood):
    """One of C classes, by a softmax of C outputs.

    Parameters
    ----------
    classes : int
        Number of classes C, at least 2.
    temperature : bool
        If true, outputs are divided by a temperature T before the softmax, initially 1. It is not for training, but is
        fitted to held-out rows.
    smoothing : float
        Share ε of label smoothing, 0 <= ε < 1. In training mode the log probability of the observed class is replaced
        by (1 − ε) times itself plus ε times the mean over all classes, so that networks that fit every row stay
        finite. In evaluation mode, as in scores and predictions, it is the log probability of the model. Smoothed
        networks are underconfident: fit a temperature to held-out rows.

    Raises
    ------
    DataError
        If ``classes`` is below 2, or `smoothing` outside [0, 1).

    References
    ----------
    C. Szegedy and others, "Rethinking the inception architecture for computer vision", CVPR 2016, section 7.

    Examples
    --------
    >>> Categorical(2).log_prob(torch.zeros(1, 1, 2), torch.tensor([1]))
    tensor([[-0.6931]])
    """

    def __init__(self, classes: int, *, temperature: bool = False, smoothing: float = 0.0) -> None:
        super().__init__()
        self.classes = _check_count("classes", classes, 2)
        self.smoothing = checks.interval("smoothing", smoothing, 0.0, 1.0)
        self.log_temperature = nn.Parameter(torch.zeros((), dtype=torch.float32)) if temperature else None

    @property
    def outputs(self) -> int:
        """Number of network outputs: the logits of all classes."""
        return self.classes

    @property
    def discrete(self) -> bool:
        """True."""
        return True

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log probability, (S, B)."""
        _check_shapes(f, self.outputs, y, ())
        log_p = self._apply_temperature(f).log_softmax(-1)  # (S, B, C)
        observed = log_p.gather(-1, y.expand(f.shape[:-1])[..., None])[..., 0]  # (S, B)
        return observed.lerp(log_p.mean(-1), self.smoothing) if self.training and self.smoothing else observed

    def components(self, f: Tensor) -> Classes:
        """Class probabilities with axes (S, B, C)."""
        _check_shapes(f, self.outputs)
        return Classes(self._apply_temperature(f).cpu().double().log_softmax(-1))

    def tempered(self) -> "Categorical":
        """Return a copy with the temperature 1 as a parameter."""
        return Categorical(self.classes, temperature=True)

    def widen(self, factor: float) -> "Categorical":
        """Return a copy whose temperature is multiplied by `factor`."""
        warmer = Categorical(self.classes, temperature=True)
        if self.log_temperature is None:
            log_temperature = torch.zeros((), dtype=torch.float32, device="cpu")
        else:
            log_temperature = self.log_temperature.detach()
        warmer.log_temperature = nn.Parameter(log_temperature + math.log(factor))
        return warmer

    def _apply_temperature(self, f: Tensor) -> Tensor:
        if self.log_temperature is None:
            return f
        return f * torch.exp(-self.log_temperature).to(f)[..., None]  # a scalar, or one value for each row


class CumulativeLogit(ClassLikelihood):
    r"""One of C ordered classes, by one latent output and C − 1 ordered thresholds (proportional odds).

    .. math:: P(y \le k) = \sigma\left((c_k - f) / T\right), \qquad k = 0, \dots, C - 2.

    The log probability of class k between :math:`a = (c_{k-1} - f) / T` and :math:`b = (c_k - f) / T` is

    .. math:: \log(\sigma(b) - \sigma(a)) = \log \sigma(b) + \log \sigma(-a) + \log\left(1 - e^{-(b - a)}\right),

    without cancellation in either tail, since b − a does not depend on f.

    The parameters are the logarithms of the C − 2 distances of successive thresholds. The mean of the thresholds is
    fixed, because a common shift of thresholds and outputs changes nothing: networks with separate thresholds keep one
    origin. The initial thresholds are the log odds of the class frequencies.

    McCullagh, P. (1980). Regression models for ordinal data. Journal of the Royal Statistical Society B, 42, 109–142.

    Parameters
    ----------
    classes : int
        Number of classes C, at least 2.
    ranks : sequence of int, optional
        Rank 0, ..., C − 1 of each class; 0, ..., C − 1 by default.
    counts : sequence of float, optional
        Number of rows of each class, for the initial thresholds; equal by default.
    temperature : bool
        As for :class:`Categorical`.

    Raises
    ------
    DataError
        If ``classes`` is below 2, or ranks or counts do not fit.

    Examples
    --------
    >>> CumulativeLogit(2).log_prob(torch.zeros(1, 1, 1, device="cpu"), torch.tensor([1], device="cpu")).detach()
    tensor([[-0.6931]])
    """

    rank: Tensor  # (C,) of int64
    log_gaps: nn.Parameter | None  # (C − 2,)

    def __init__(
        self,
        classes: int,
        ranks: Sequence[int] | None = None,
        *,
        counts: Sequence[float] | None = None,
        temperature: bool = False,
    ) -> None:
        super().__init__()
        self.classes = _check_count("classes", classes, 2)
        order = list(range(classes)) if ranks is None else list(ranks)
        if sorted(order) != list(range(classes)):
            raise DataError(f"ranks={ranks} were given; the numbers 0 to {classes - 1}, each once, are needed")
        number = [1.0] * classes if counts is None else list(counts)
        if len(number) != classes or not all(0.0 <= one < math.inf for one in number):
            raise DataError(f"counts={counts} were given; {classes} finite numbers of 0 or more are needed")
        self.register_buffer("rank", torch.tensor(order, device="cpu"), persistent=False)
        sorted_counts = torch.tensor(
            [number[order.index(k)] for k in range(classes)], dtype=torch.float64, device="cpu"
        )
        below = (sorted_counts + 0.5).cumsum(0) / (sorted_counts + 0.5).sum()
        start = below[:-1].logit()
        self.center = float(start.mean())
        self.log_gaps = nn.Parameter(start.diff().log().float()) if classes > 2 else None
        self.log_temperature = nn.Parameter(torch.zeros((), dtype=torch.float32)) if temperature else None

    @property
    def outputs(self) -> int:
        """1, the latent output."""
        return 1

    @property
    def discrete(self) -> bool:
        """True."""
        return True

    def thresholds(self) -> Tensor:
        """Return the ordered thresholds, (C − 1,)."""
        if self.log_gaps is None:
            return self.rank.new_full((1,), self.center, dtype=torch.float64)
        above = F.pad(self.log_gaps.exp().cumsum(-1), (1, 0))
        return self.center + above - above.mean(-1, keepdim=True)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log probability, (S, B)."""
        _check_shapes(f, 1, y, ())
        rank = self.rank[y].expand(f.shape[:-1])[..., None]  # (S, B, 1)
        return self._log_masses(f).gather(-1, rank).squeeze(-1)  # (S, B)

    def components(self, f: Tensor) -> Classes:
        """Class probabilities with axes (S, B, C)."""
        _check_shapes(f, 1)
        return Classes(self._log_masses(f.cpu().double())[..., self.rank.cpu()])

    def information(self, f: Tensor) -> Tensor:
        r"""Return the Fisher information of the latent output, (S, B), float64 on the device of f.

        .. math:: \sum_k p_k \left((P_{k-1} + P_k - 1) / T\right)^2, \qquad P_k = P(y \le k)

        Parameters
        ----------
        f : Tensor, shape (S, B, 1)
            Latent outputs.
        """
        f = f.double()
        p = self._log_masses(f).exp()  # (S, B, C)
        above = p.cumsum(-1)
        score = 2.0 * above - p - 1.0  # P_{k-1} + P_k − 1
        return (p * score.square()).sum(-1) * self._inverse_temperature(f).squeeze(-1).square()

    def tempered(self) -> "CumulativeLogit":
        """Return a copy with the temperature 1 as a parameter."""
        copied = copy.deepcopy(self)
        copied.log_temperature = nn.Parameter(torch.zeros((), dtype=torch.float32, device=self.rank.device))
        return copied

    def widen(self, factor: float) -> "CumulativeLogit":
        """Return a copy whose temperature is multiplied by `factor`."""
        warmer = self.tempered()
        if self.log_temperature is not None:
            warmer.log_temperature = nn.Parameter(self.log_temperature.detach().clone())
        assert warmer.log_temperature is not None
        warmer.log_temperature.data += math.log(factor)
        return warmer

    def _log_masses(self, f: Tensor) -> Tensor:
        """Return the log probabilities in the order of the ranks, (S, B, C)."""
        inverse = self._inverse_temperature(f)
        z = (self.thresholds().to(f) - f) * inverse  # (S, B, C − 1)
        below, above = F.logsigmoid(z), F.logsigmoid(-z)
        masses = F.pad(below, (0, 1)) + F.pad(above, (1, 0))  # (S, B, C)
        if self.log_gaps is None:
            return masses
        return masses + F.pad(torch.log(-torch.expm1(-self.log_gaps.to(f).exp() * inverse)), (1, 1))

    def _inverse_temperature(self, f: Tensor) -> Tensor:
        """Return 1 / T with an axis of classes: shape (1,), or one value for each row."""
        if self.log_temperature is None:
            return f.new_ones(1)
        return torch.exp(-self.log_temperature).to(f)[..., None]


class Bernoulli(Likelihood):
    """Independent binary columns, by the logistic function of one logit each.

    Parameters
    ----------
    targets : int
        Number of target columns T.

    Raises
    ------
    DataError
        If ``targets`` is below 1.
    """

    def __init__(self, targets: int = 1) -> None:
        super().__init__()
        self.targets = _check_count("targets", targets, 1)

    @property
    def outputs(self) -> int:
        """Number of network outputs: one logit for each target column."""
        return self.targets

    @property
    def discrete(self) -> bool:
        """True."""
        return True

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log probability, (S, B)."""
        _check_shapes(f, self.outputs, y, (self.targets,))
        target = y.to(f.dtype).expand_as(f)
        return -F.binary_cross_entropy_with_logits(f, target, reduction="none").sum(-1)  # (S, B)

    def components(self, f: Tensor) -> Classes | Indicators:
        """Class probabilities with axes (S, B, 2) for one column; log odds (S, B, T) for several columns."""
        _check_shapes(f, self.outputs)
        logit = f.cpu().double()  # (S, B, T)
        if self.targets > 1:
            return Indicators(logit)
        return Classes(F.logsigmoid(torch.cat([-logit, logit], -1)))  # (S, B, 2)


def cell_of(likelihood: Likelihood) -> Tensor | None:
    """Return the widths of the cells of a discrete target on a lattice, (T,); None for other targets."""
    return likelihood.cell if isinstance(likelihood, LocationScale) else None


def is_censored(likelihood: Likelihood, y: Tensor) -> bool:
    """Return True if targets are bounds of censored ones; see :class:`LocationScale`."""
    return isinstance(likelihood, LocationScale) and y.ndim == 2 and y.shape[1] == 2 * likelihood.targets


def without_cells(likelihood: Likelihood) -> Likelihood:
    """Remove the cells of a likelihood, in place: rows are scored by density. Return the likelihood."""
    if isinstance(likelihood, LocationScale):
        likelihood.cell = None
    return likelihood


def log_score(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """Return the log density of each row under each draw, or its log mass if the likelihood has cells, (S, B).

    Posteriors over structure, noise and validation scores are fitted and computed by it. Training uses the density.
    """
    if isinstance(likelihood, LocationScale) and likelihood.cell is not None and not is_censored(likelihood, y):
        return likelihood.log_mass(f, y)
    return likelihood.log_prob(f, y)


def _cast(parameter: float | Tensor, f: Tensor) -> float | Tensor:
    """Return a tensor in the dtype of f; a float is returned unchanged."""
    return parameter.to(f.dtype) if isinstance(parameter, Tensor) else parameter


def _check_shapes(f: Tensor, outputs: int, y: Tensor | None = None, columns: tuple[int, ...] = ()) -> None:
    """Check the shapes of outputs and targets, since a wrong target may broadcast without an error."""
    if f.ndim != 3 or f.shape[-1] != outputs:
        raise DataError(
            f"the network gave outputs of shape {tuple(f.shape)}; allowed is (S, B, {outputs}): "
            "draws, rows and the outputs that the likelihood needs"
        )
    if y is not None and tuple(y.shape) != (f.shape[1], *columns):
        indicators = not columns and tuple(y.shape) == (f.shape[1], outputs)
        advice = "use y.argmax(1) for indicators of the classes" if indicators else "reshape it"
        raise DataError(
            f"the target was given with shape {tuple(y.shape)}; allowed is {(f.shape[1], *columns)} for "
            f"{f.shape[1]} rows: {advice}"
        )


def _check_count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or int(value) != value or value < least:
        raise DataError(f"{name} was given as {value!r}; allowed are whole numbers from {least}")
    return int(value)
