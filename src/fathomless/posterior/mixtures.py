r"""Weighted mixtures of univariate laws, with a distribution function and its inverse.

A prediction over S drawn networks is :math:`p(y) = \sum_s w_s\, p_s(y)`, one mixture for each row and column.
:class:`Mixture` has its moments, density, distribution function, quantiles and samples, all in float64 on the CPU and
differentiable. Samples are differentiable in the drawn component, not in the weights. Components are :class:`Normal`,
:class:`Laplace` and :class:`StudentT`: symmetric location-scale families,

.. math:: p_s(y) = \frac{1}{\sigma_s}\, g\!\left(\frac{y - \mu_s}{\sigma_s}\right), \qquad g(-z) = g(z).

The log density of g is defined here only (that of Student's t in :mod:`fathomless.posterior.student`). Likelihoods for
training (:mod:`fathomless.posterior.likelihoods`) use it in any dtype, on any device and with gradients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior import student
from fathomless.posterior.quantile_gradients import attach_derivatives, attach_first_derivatives
from fathomless.system.draws import exponential, multinomial, normal, uniform
from fathomless.system.errors import DataError

__all__ = [
    "Censorable",
    "Classes",
    "Component",
    "Indicators",
    "Laplace",
    "Mixture",
    "Normal",
    "StudentT",
    "concatenate_mixtures",
    "concatenate_rows",
    "integrate_log_density",
    "map_quantiles",
    "safe_unit",
    "solve_quantile",
]

Values = npt.ArrayLike | Tensor
C = TypeVar("C", bound="Component")

_ITERATIONS = 250  # enough to bisect from a bracket of 1e30 to the last bit of 1e-30
_NARROW = 1e-5  # length of an interval in scales below which its probability is density times length
_LEAST_MASS = 1e-280  # probability of an interval below which its log is computed from the density
_PANELS = 40  # panels of this quadrature, each half as long as the one before
_NODES = 6  # nodes of a panel
_NORMALISED = 1e-13  # log of a sum of weights below which they are normalised, up to rounding
_SMALL = 1e-280  # variance below which terms of its sum may have underflowed


@dataclass(frozen=True, eq=False)
class Component(ABC):
    r"""A symmetric location-scale family; a subclass defines the law of z = (y - loc) / scale.

    .. math:: \log g(z) = \log c - E(z)

    Neither the energy E nor the constant c depends on loc and scale. Fields after ``scale`` are shape parameters, for
    instance degrees of freedom.

    Parameters are converted to float64 on the CPU, with their gradients, and broadcast against each other. They are not
    checked here, since a mixture ignores components of weight zero; see :attr:`valid`.

    Attributes
    ----------
    loc : Tensor, shape (S, ...)
        Centre, in the units of y.
    scale : Tensor, shape (S, ...)
        Scale, in the units of y; positive.
    """

    loc: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self)]
        tensors = (_to_double(getattr(self, name)) for name in names)
        for name, tensor in zip(names, torch.broadcast_tensors(*tensors), strict=True):
            object.__setattr__(self, name, tensor)

    @staticmethod
    @abstractmethod
    def energy(z: Tensor, *shape: Any) -> Tensor:
        """Negative log density of z without its constant, in nats; differentiable, in any dtype and on any device.

        Parameters
        ----------
        z : Tensor
            Standardised values.
        *shape : float or Tensor
            Shape parameters in the order of the fields; tensors broadcast to z and have its dtype.
        """

    @staticmethod
    @abstractmethod
    def log_constant(*shape: Any) -> float | Tensor:
        """Log of the normalising constant, in nats: a float, or a tensor if a shape parameter is a tensor."""

    @abstractmethod
    def standard_cdf(self, z: Tensor) -> Tensor:
        """Probability below z, with a small relative error in the lower tail."""

    @abstractmethod
    def standard_icdf(self, p: Tensor) -> Tensor:
        """Quantile of z; minus and plus infinity at 0 and 1. For gradients see :meth:`Mixture.icdf`."""

    @abstractmethod
    def standard_variance(self) -> Tensor:
        """Variance of z; not finite if it does not exist."""

    @abstractmethod
    def standard_sample(self, generator: torch.Generator) -> Tensor:
        """Draw one independent z for each element of the parameters."""

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Log density log g(z)."""
        return self.log_constant(*self.shape_parameters) - self.energy(z, *self.shape_parameters)

    @cached_property
    def shape_parameters(self) -> tuple[Tensor, ...]:
        """All parameters except loc and scale, which are the first two fields."""
        return tuple(getattr(self, field.name) for field in fields(self)[2:])

    @property
    def valid(self) -> Tensor:
        """True for each element that is a proper law with a variance; bool, shape of ``loc``."""
        proper = self.loc.isfinite() & self.scale.isfinite() & (self.scale > 0)
        return proper & self.standard_variance().isfinite()

    @property
    def mean(self) -> Tensor:
        """Mean of each element."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of each element, in squared units of y."""
        return self.scale.square() * self.standard_variance()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density at y, which broadcasts against the parameters."""
        return self.standard_log_prob(self.standardise(y)) - self.scale.log()

    def cdf(self, y: Tensor) -> Tensor:
        """Probability below y, with a small relative error in the lower tail."""
        return self.standard_cdf(self.standardise(y))

    def sf(self, y: Tensor) -> Tensor:
        """Probability above y, with a small relative error in the upper tail."""
        return self.standard_cdf(-self.standardise(y))

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Log probability between two values, which broadcast against the parameters; differentiable.

        An interval above the centre is reflected, so that both probabilities are those of the lower tail. Intervals
        shorter than 1e-5 scales are computed as density times length, and probabilities that underflow by quadrature.
        """
        a, b = self.standardise(low), self.standardise(high)
        upper = a + b > 0.0
        a, b = torch.where(upper, -b, a), torch.where(upper, -a, b)
        narrow = b - a < _NARROW
        mass = self.standard_cdf(b) - self.standard_cdf(a)
        far = ~narrow & (mass < _LEAST_MASS)
        # branches that are not used must have finite derivatives
        log_mass = torch.where(narrow | far, 1.0, mass).log()
        if narrow.any():
            length = torch.where(narrow, b - a, 1.0).clamp_min(torch.finfo(b.dtype).tiny)
            log_mass = torch.where(narrow, self.standard_log_prob(0.5 * (a + b)) + length.log(), log_mass)
        if far.any():
            shape = [parameter.expand_as(a)[far] for parameter in self.shape_parameters]
            constant = self.log_constant(*shape)
            beyond = integrate_log_density(lambda z: constant - self.energy(z, *shape), b[far], a[far])
            log_mass = log_mass.masked_scatter(far, beyond)
        return log_mass

    def icdf(self, p: Tensor) -> Tensor:
        """Quantile of each element."""
        return self.loc + self.scale * self.standard_icdf(p)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw one independent value for each element of the parameters."""
        return self.loc + self.scale * self.standard_sample(generator)

    def affine(self, shift: Tensor, scale: Tensor) -> Self:
        """Return the law of ``shift + scale * y``, a change of units. ``scale`` must be positive."""
        return replace(self, loc=shift + scale * self.loc, scale=scale * self.scale)

    def map_parameters(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function, such as indexing, to every parameter."""
        return replace(self, **{field.name: function(getattr(self, field.name)) for field in fields(self)})

    def standardise(self, y: Tensor) -> Tensor:
        """Return z = (y - loc) / scale."""
        return (y - self.loc) / self.scale


@dataclass(frozen=True, eq=False)
class Censorable(Component, ABC):
    """A component that can be the law of a censored target."""

    @staticmethod
    @abstractmethod
    def log_cdf(z: Tensor, *shape: Any) -> Tensor:
        """Log of the probability below z in nats; differentiable, in any dtype and on any device.

        It has a small error in both tails, and no branches that depend on values, for ``torch.func.vmap``. The
        parameters are those of :meth:`energy`.
        """


@dataclass(frozen=True, eq=False)
class Normal(Censorable):
    """Gaussian law; ``scale`` is its standard deviation."""

    @staticmethod
    def energy(z: Tensor) -> Tensor:
        """z² / 2."""
        return 0.5 * z.square()

    @staticmethod
    def log_constant() -> float:
        """-log(2 pi) / 2."""
        return -0.5 * math.log(2.0 * math.pi)

    @staticmethod
    def log_cdf(z: Tensor) -> Tensor:
        """Log of the probability below z."""
        # torch.special.log_ndtr has no rule for vmap, and its second derivatives overflow for z above 26
        low, high = z.clamp_max(-1.0), z.clamp_min(-1.0)
        tail = torch.special.erfcx(low * -math.sqrt(0.5)).log() - 0.5 * low.square() - math.log(2.0)
        return torch.where(z < -1.0, tail, torch.log1p(-0.5 * torch.erfc(high * math.sqrt(0.5))))

    def standard_cdf(self, z: Tensor) -> Tensor:
        """Probability below z."""
        return 0.5 * torch.erfc(z * -math.sqrt(0.5))

    def standard_icdf(self, p: Tensor) -> Tensor:
        """Quantile of z."""
        z: Tensor = torch.special.ndtri(p)
        return z

    def standard_variance(self) -> Tensor:
        """One."""
        return torch.ones_like(self.loc)

    def standard_sample(self, generator: torch.Generator) -> Tensor:
        """Draw independent standard Gaussians."""
        return normal(self.loc, generator)


@dataclass(frozen=True, eq=False)
class Laplace(Censorable):
    """Laplace law g(z) = exp(-|z|) / 2; its variance is 2 scale²."""

    @staticmethod
    def energy(z: Tensor) -> Tensor:
        """|z|."""
        return z.abs()

    @staticmethod
    def log_constant() -> float:
        """-log 2."""
        return -math.log(2.0)

    @staticmethod
    def log_cdf(z: Tensor) -> Tensor:
        """Log of the probability below z."""
        # each branch has finite derivatives where it is not used
        return torch.where(z < 0, z.clamp_max(0.0) - math.log(2.0), torch.log1p(-0.5 * torch.exp(-z.clamp_min(0.0))))

    def standard_cdf(self, z: Tensor) -> Tensor:
        """Probability below z."""
        tail = 0.5 * torch.exp(torch.where(z < 0, z, -z))  # -|z| would have derivative 0 at 0
        return torch.where(z < 0, tail, 1.0 - tail)

    def standard_icdf(self, p: Tensor) -> Tensor:
        """Quantile of z."""
        return torch.where(p < 0.5, torch.log(2.0 * p), -torch.log(2.0 * (1.0 - p)))

    def standard_variance(self) -> Tensor:
        """Two."""
        return torch.full_like(self.loc, 2.0)

    def standard_sample(self, generator: torch.Generator) -> Tensor:
        """Draw differences of two independent exponentials."""
        pair = exponential(self.loc, generator, (2, *self.loc.shape))
        return pair[0] - pair[1]


@dataclass(frozen=True, eq=False)
class StudentT(Censorable):
    """Student's t law with ``df`` degrees of freedom; its variance is scale² df / (df - 2).

    Attributes
    ----------
    df : Tensor
        Degrees of freedom, broadcast against ``loc``; above 2, so that the variance exists.
    """

    df: Tensor

    @staticmethod
    def energy(z: Tensor, df: float | Tensor) -> Tensor:
        """(df + 1) / 2 log(1 + z² / df)."""
        return student.energy(z, df)

    @staticmethod
    def log_constant(df: float | Tensor) -> float | Tensor:
        """Log of Gamma((df + 1) / 2) / (Gamma(df / 2) sqrt(pi df)).

        A float is computed in double precision. A tensor should be in float64, since the difference of values of
        lgamma has a large relative error in float32.
        """
        return student.log_constant(df)

    @staticmethod
    def log_cdf(z: Tensor, df: float | Tensor) -> Tensor:
        """Log of the probability below z."""
        return student.log_cdf(z, df)

    def standard_cdf(self, z: Tensor) -> Tensor:
        """Probability below z."""
        return student.cdf(z, self.df)

    def standard_icdf(self, p: Tensor) -> Tensor:
        """Quantile of z."""
        return student.icdf(p, self.df)

    def standard_variance(self) -> Tensor:
        """Variance df / (df - 2); NaN if df is not above 2."""
        return torch.where(self.df > 2, self.df / (self.df - 2.0), math.nan)

    def standard_sample(self, generator: torch.Generator) -> Tensor:
        r"""Draw independent values by the polar method.

        With U, V uniform on (0, 1), :math:`\sqrt{\nu (U^{-2/\nu} - 1)} \cos 2 \pi V` follows Student's t law
        for every :math:`\nu > 0`.

        References
        ----------
        Bailey, *Polar generation of random variates with the t-distribution*, Mathematics of Computation
        62 (1994).
        """
        u, v = uniform(self.loc, generator, (2, *self.loc.shape))
        radius = torch.sqrt(self.df * torch.expm1(-2.0 / self.df * torch.log1p(-u)))  # 1 - U is never 0
        return radius * torch.cos(2.0 * math.pi * v)


@dataclass(frozen=True, eq=False)
class Classes:
    """Class probabilities under each drawn network: the discrete counterpart of :class:`Component`.

    Attributes
    ----------
    log_probs : Tensor of float64, shape (S, N, C)
        Log probability of each class; ``logsumexp`` over the last axis is 0.
    """

    log_probs: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_probs", _to_double(self.log_probs))


@dataclass(frozen=True, eq=False)
class Indicators:
    """Columns of 0 and 1 under each drawn network, independent given the network.

    Attributes
    ----------
    logit : Tensor of float64, shape (S, N, T)
        Log odds of 1.
    """

    logit: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit", _to_double(self.logit))


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""The laws :math:`p(y) = \sum_s w_s\, p_s(y)`, one for each element of the batch.

    Arguments ``y`` and ``p`` have the shape (..., *batch) or broadcast to it without changing the batch. Results have
    this shape. Elements of the batch are independent.

    Parameters
    ----------
    log_weight : Tensor, shape (S,) or (S, *batch)
        Log weights, normalised here: the same for all elements of the batch, or different ones, which must be finite.
        Components with the log weight minus infinity are removed. Weights that are normalised already keep their bits,
        so that parts of a mixture are equal to the whole.
    component : Component, parameters of shape (S, *batch)
        Laws of the mixture; in predictions the batch is (N, T). Its tensors are not copied, and must not be changed.

    Raises
    ------
    DataError
        For weights that are NaN or all zero, for shapes that differ, and for components of positive weight with
        parameters that are not finite, a scale that is not positive, or no variance.

    Examples
    --------
    >>> two = Mixture(torch.tensor([0.25, 0.75]).log(), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2)))
    >>> round(two.mean.item(), 6), round(two.variance.item(), 6)
    (0.5, 1.75)
    >>> round(two.cdf(two.icdf(0.9)).item(), 6)
    0.9
    """

    log_weight: Tensor
    component: Component

    def __post_init__(self) -> None:
        log_weight = _to_double(self.log_weight)
        draws = len(self.component.loc) if self.component.loc.ndim else 0
        if log_weight.shape not in ((draws,), self.component.loc.shape) or not draws:
            raise DataError(
                f"a mixture was given log weights of shape {tuple(log_weight.shape)} and components of shape "
                f"{tuple(self.component.loc.shape)}; allowed are (S,) or (S, *batch), and (S, *batch): give one weight "
                "for each"
            )
        total = torch.logsumexp(log_weight, 0)
        if not total.isfinite().all():
            raise DataError(
                f"the log weights of a mixture sum to exp({total.flatten()[0].item()}); allowed is any positive, "
                "finite sum: give at least one finite log weight, and neither NaN nor plus infinity"
            )
        common = log_weight.ndim == 1
        component = self.component
        if common and not bool((keep := log_weight > -math.inf).all()):
            log_weight, component = log_weight[keep], component.map_parameters(lambda t: t[keep])
        if not component.valid.all():
            raise DataError(
                f"{int((~component.valid).sum())} of {component.valid.numel()} components are not "
                "proper laws; allowed are finite centres, positive finite scales and, for Student's "
                "t, finite degrees of freedom above 2. Predictions of a fit have others if its training diverged: "
                "lower learning_rate, or check the table for extreme values"
            )
        normalised = torch.log_softmax(log_weight, 0)
        if bool((total.abs() < _NORMALISED).all()):  # the given values, with the derivatives of normalised ones
            normalised = log_weight.detach() + (normalised - normalised.detach())
        object.__setattr__(self, "log_weight", normalised)
        object.__setattr__(self, "component", component)

    @cached_property
    def weight(self) -> Tensor:
        """Weights of the components, without those removed, shape (S,) or (S, *batch)."""
        with torch.enable_grad():  # the result is cached, and a later caller may need gradients
            return torch.softmax(self.log_weight, 0)

    @cached_property
    def _underflow(self) -> bool:
        return bool((self.weight == 0).any())

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of mixtures."""
        return self.component.loc.shape[1:]

    @property
    def mean(self) -> Tensor:
        """Mean, shape (*batch)."""
        return self._average(self.component.mean)

    @property
    def variance(self) -> Tensor:
        """Variance by the law of total variance, shape (*batch), in squared units of y.

        It is 0 if it is below the smallest float; :attr:`std` is correct in this case too.
        """
        spread = (self.component.mean - self.mean).square()
        return self._average(self.component.variance + spread)

    @property
    def std(self) -> Tensor:
        """Standard deviation, shape (*batch)."""
        variance = self.variance
        distance = (self.component.mean - self.mean).abs()
        unit = safe_unit(variance, torch.maximum(self.component.scale, distance).amax(0))
        if (unit == 1.0).all():
            return variance.sqrt()
        return unit * self.affine(-self.mean / unit, 1.0 / unit).variance.sqrt()

    def log_prob(self, y: Values) -> Tensor:
        """Log density at y, shape (..., *batch)."""
        y = self._broadcast(y)  # (..., 1, *batch)
        log_weight = self._align(self.log_weight)  # (S, 1, ...)
        return torch.logsumexp(log_weight + self.component.log_prob(y), self._draw_axis)

    def cdf(self, y: Values) -> Tensor:
        """Probability below y, shape (..., *batch), with a small relative error in the lower tail."""
        return self._average(self.component.cdf(self._broadcast(y))).clamp_max(1.0)

    def sf(self, y: Values) -> Tensor:
        """Probability above y, shape (..., *batch), with a small relative error in the upper tail."""
        return self._average(self.component.sf(self._broadcast(y))).clamp_max(1.0)

    def icdf(self, p: Values) -> Tensor:
        r"""Quantile: the y with F(y) = p, shape (..., *batch).

        The quantile of a mixture is between the smallest and the largest quantile of its components. Inside this
        bracket Newton's method solves log F(y) = log p (for p > 1/2: log(1 - F(y)) = log(1 - p)). A bisection
        replaces every step that leaves the bracket or is not less than half of the previous step.

        Parameters
        ----------
        p : array_like
            Probabilities in [0, 1]; 0 and 1 give minus and plus infinity.

        Raises
        ------
        DataError
            If a probability is outside [0, 1] or NaN.

        Notes
        -----
        The result is exact to rounding in p. If the density is almost zero between modes, the error of y is larger by
        the factor 1 / density. First and second derivatives follow from the equation F(y) = p. Derivatives in centres
        and scales are correct even if the density underflows. The others are quotients by the density, which is
        bounded below at 1e-304 so that they do not overflow. If weights differ between the elements of the batch,
        there are first derivatives only.
        """
        prob = self._broadcast(p)  # (..., 1, *batch)
        if not ((prob >= 0) & (prob <= 1)).all():
            raise DataError(
                f"icdf was given probabilities between {prob.min().item()} and {prob.max().item()}; allowed are 0 to 1"
            )
        inside = (prob > 0) & (prob < 1)
        y = self._quantile(torch.where(inside, prob, 0.5)).unsqueeze(self._draw_axis)
        y = torch.where(inside, y, torch.where(prob > 0, math.inf, -math.inf))
        return y.squeeze(self._draw_axis)

    def isf(self, q: Values) -> Tensor:
        """Upper quantile: the y exceeded with probability q, shape (..., *batch), accurate for small q."""
        # minus the quantile of -y, since 1 - q would round
        return -Mixture(self.log_weight, replace(self.component, loc=-self.component.loc)).icdf(q)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n times, independently for each element of the batch; shape (n, *batch)."""
        count = self.batch_shape.numel()
        if self.weight.ndim == 1:
            index = multinomial(self.weight, n * count, generator).view(n, *self.batch_shape)
        else:
            rows = self.weight.reshape(len(self.weight), count).T  # (count, S)
            index = multinomial(rows, n, generator).T.reshape(n, *self.batch_shape)
        return self.component.map_parameters(lambda t: t.gather(0, index)).sample(generator)

    def affine(self, shift: Values, scale: Values) -> "Mixture":
        """Return the law of ``shift + scale * y``; both broadcast to the batch and ``scale`` is positive.

        Raises
        ------
        DataError
            If ``scale`` is not positive and finite, or ``shift`` not finite.
        """
        return Mixture(self.log_weight, self.component.affine(_to_double(shift), _to_double(scale)))

    def take(self, rows: Any) -> "Mixture":
        """Return the laws of some elements of the first axis of the batch, given by an index or a mask."""
        log_weight = self.log_weight[:, rows] if self.log_weight.ndim > 1 else self.log_weight
        return Mixture(log_weight, self.component.map_parameters(lambda values: values[:, rows]))

    @property
    def _draw_axis(self) -> int:
        return -len(self.batch_shape) - 1

    def _align(self, weight: Tensor) -> Tensor:
        return weight if weight.ndim > 1 else weight.view(-1, *[1] * len(self.batch_shape))  # (S, 1, ...)

    def _average(self, values: Tensor) -> Tensor:
        """Weighted sum over draws: (..., S, *batch) to (..., *batch)."""
        weight = self._align(self.weight)
        weighted = weight * values
        if self._underflow:  # 0 * inf would be NaN
            weighted = torch.where(weight > 0, weighted, 0.0)
        return weighted.sum(self._draw_axis)

    def _broadcast(self, y: Values) -> Tensor:
        """Broadcast an argument to the batch and insert the axis of draws: (..., 1, *batch)."""
        y = _to_double(y)
        batch = self.batch_shape
        try:
            shape = np.broadcast_shapes(y.shape, batch)  # torch.broadcast_shapes would import SymPy
        except ValueError:
            shape = ()
        if shape[len(shape) - len(batch) :] != batch:
            raise DataError(
                f"a mixture with batch {tuple(batch)} was given values of shape {tuple(y.shape)}; "
                f"allowed is any shape that ends with, or broadcasts to, {tuple(batch)}"
            )
        return y.expand(shape).unsqueeze(self._draw_axis)

    def _quantile(self, p: Tensor) -> Tensor:
        """Solve F(y) = p; from (..., 1, *batch) to (..., *batch)."""
        y = self._solve(p)
        parts = [getattr(self.component, part.name) for part in fields(self.component)]
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in (p, self.log_weight, *parts)):
            return y
        if self.log_weight.ndim > 1:
            return attach_first_derivatives(y, p.squeeze(self._draw_axis), self.cdf(y), self.log_prob(y))
        return attach_derivatives(y, p, self.log_weight, type(self.component), parts)

    @torch.no_grad()
    def _solve(self, p: Tensor) -> Tensor:
        """Solve F(y) = p for 0 < p < 1, from (..., 1, *batch) to (..., *batch)."""
        axis = self._draw_axis
        low, high, start = self.bracket(p.squeeze(axis))
        return solve_quantile(p.squeeze(axis), (low, high), start, self.tail_and_density)

    def bracket(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the smallest, the largest and the average quantile of the components, shaped like p."""
        quantiles = self.component.icdf(p.unsqueeze(self._draw_axis))  # (..., S, *batch)
        return quantiles.amin(self._draw_axis), quantiles.amax(self._draw_axis), self._average(quantiles)

    def tail_and_density(self, y: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability below y where the sign is 1, and above y where it is -1; and the density at y."""
        z = self.component.standardise(y.unsqueeze(self._draw_axis))  # (..., S, *batch)
        tail = self._average(self.component.standard_cdf(sign.unsqueeze(self._draw_axis) * z))
        return tail, self._average(self.component.standard_log_prob(z).exp() / self.component.scale)

    def tail(self, y: Tensor, sign: Tensor) -> Tensor:
        """Return the probability below y where the sign is 1, and above y where it is -1."""
        z = self.component.standardise(y.unsqueeze(self._draw_axis))  # (..., S, *batch)
        return self._average(self.component.standard_cdf(sign.unsqueeze(self._draw_axis) * z)).clamp_max(1.0)


def solve_quantile(
    p: Tensor,
    bracket: tuple[Tensor, Tensor],
    start: Tensor,
    tail_and_density: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """Solve F(y) = p for 0 < p < 1 by a safeguarded Newton method.

    Parameters
    ----------
    p : Tensor
        Probabilities.
    bracket : (Tensor, Tensor)
        Values below and above the solution, shaped like p.
    start : Tensor
        Start of the iteration, shaped like p.
    tail_and_density : callable
        Function of y and a sign, both shaped like p. It returns the probability below y for the sign 1, or above y for
        the sign -1, and the density at y.
    """
    low, high = bracket
    y = torch.minimum(torch.maximum(start, low), high)
    # solve for the smaller tail and in logarithms, so that small probabilities keep their relative precision
    sign = torch.where(p <= 0.5, 1.0, -1.0)  # 1 for the lower tail, -1 for the upper
    target = torch.log(torch.where(p <= 0.5, p, 1.0 - p))
    rounding = 4e-15 * (1.0 - target)  # error of the logarithm near the target
    last = high - low
    active = torch.ones_like(y, dtype=torch.bool)
    for _ in range(_ITERATIONS):
        tail, density = tail_and_density(y, sign)
        excess = sign * (tail.log() - target)  # increases with y
        low = torch.where(excess < 0, y, low)
        high = torch.where(excess < 0, high, y)
        newton = y - excess * tail / density  # the derivative of the log of the tail is density / tail
        active &= (excess.abs() > rounding) & (newton != y) & (high > low)
        # bisect if Newton leaves the bracket or converges slower than bisection would
        safe = (newton > low) & (newton < high) & ((newton - y).abs() < 0.5 * last)
        proposal = torch.where(safe, newton, low + 0.5 * (high - low))
        last = (proposal - y).abs()
        y = torch.where(active, proposal, y)
        active &= last > 4e-16 * y.abs()
        if not active.any():
            break
    return y


def map_quantiles(source: Mixture, target: Mixture, y: Tensor) -> Tensor:
    """Map values (..., N, T) of one law to those of another that have the same probability below them."""
    lower = y <= source.mean
    sign = torch.where(lower, 1.0, -1.0).to(y)
    tail = source.tail(y, sign)  # of the near side, for a small relative error
    # the probability is replaced by 1/2 where it is not used, so that no value is infinite
    quantile = target.icdf(torch.where(lower, tail, 0.5))
    exceeded = target.isf(torch.where(lower, 0.5, tail))
    return torch.where(lower, quantile, exceeded)


def integrate_log_density(log_density: Callable[[Tensor], Tensor], near: Tensor, far: Tensor) -> Tensor:
    """Return the log of the integral of a density over intervals, which may underflow.

    Gaussian quadrature on panels that shrink towards the end `near`, at which the density is largest.

    Parameters
    ----------
    log_density : callable
        Function that returns the log density at points, with the shape of the ends.
    near, far : Tensor
        Ends of the intervals, in either order.
    """
    nodes, weights = (part.tolist() for part in np.polynomial.legendre.leggauss(_NODES))
    total = torch.full_like(near, -math.inf)
    for panel in range(_PANELS):
        left = 0.5 ** (panel + 1) if panel < _PANELS - 1 else 0.0
        length = 0.5**panel - left
        for node, weight in zip(nodes, weights, strict=True):
            place = near + (far - near) * (left + 0.5 * length * (1.0 + node))
            total = torch.logaddexp(total, log_density(place) + math.log(0.5 * length * weight))
    return total + (far - near).abs().log()


def safe_unit(variance: Tensor, size: Tensor) -> Tensor:
    """Return a unit for each element in which squares neither underflow nor overflow; 1 if no change is needed.

    Other units are powers of two near the length `size`, so that a change of units is exact.
    """
    exponent = torch.frexp(size.detach()).exponent.clamp(-1000, 1000)
    fits = (variance > _SMALL) & variance.isfinite()
    return torch.where(fits, 1.0, torch.ldexp(torch.ones_like(size.detach()), exponent))


def concatenate_rows(components: Sequence[C]) -> C:
    """Concatenate components of one family along the axis of rows, from (S, N_i, ...) to (S, ΣN_i, ...).

    Raises
    ------
    DataError
        If the families or the numbers of draws differ.
    """
    first = components[0]
    alike = {(type(c), len(c.loc), tuple(c.loc.shape[2:])) for c in components}
    if len(alike) > 1:
        raise DataError(
            f"{len(components)} components were given that differ in family, draws or columns; allowed are "
            "chunks of rows of one prediction: use the same draws and the same likelihood for every chunk"
        )
    names = [field.name for field in fields(first)]
    return replace(first, **{name: torch.cat([getattr(c, name) for c in components], 1) for name in names})


def concatenate_mixtures(parts: Sequence[Mixture]) -> Mixture:
    """Concatenate mixtures along the first axis of their batch; weights that the rows share are those of the first.

    Raises
    ------
    DataError
        As :func:`concatenate_rows`.
    """
    first = parts[0].log_weight
    log_weight = torch.cat([part.log_weight for part in parts], 1) if first.ndim > 1 else first
    return Mixture(log_weight, concatenate_rows([part.component for part in parts]))


def _to_double(values: Values) -> Tensor:
    if isinstance(values, Tensor):
        return values.cpu().to(torch.float64)
    return torch.as_tensor(values, dtype=torch.float64, device="cpu")
