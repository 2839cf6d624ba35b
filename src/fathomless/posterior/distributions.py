"""Predictive distributions of the rows of a table: their base classes, and that of continuous targets.

Methods with names of torch (``log_prob``, ``icdf``, ``variance``) return tensors. Methods with names of SciPy
(``logpdf``, ``pdf``, ``ppf``, ``isf``) return NumPy arrays, or tensors for tensor arguments. Arguments broadcast to the
rows: a grid of G values for all N rows has the shape (G, 1). Tensors have gradients if the draws have them and
gradients are enabled; arrays and data frames have none.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.mixtures import (
    Component,
    Mixture,
    concatenate_mixtures,
    concatenate_rows,
    map_quantiles,
    safe_unit,
)
from fathomless.posterior.pool import Pool
from fathomless.posterior.uncertainty import Groups, Spread, Uncertainty, decompose, estimate_spread, standard_error
from fathomless.system import checks
from fathomless.system.draws import multinomial
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import Seed, as_generator

__all__ = [
    "ContinuousPredictive",
    "Labels",
    "NumberPredictive",
    "Predictive",
    "Values",
    "check_alike",
    "known_parts",
    "match_type",
    "to_array",
    "to_double",
]

#: Numbers as an array or a tensor.
Values = npt.ArrayLike | Tensor
#: Names of classes.
Labels = npt.NDArray[Any]
_NUMBERS = 1 << 22  # numbers in an array of components of a sample
_LIBRARIES = ("pandas", "polars", "pyarrow")


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """A distribution for each row of a table.

    Attributes
    ----------
    log_weight : Tensor of float64, shape (S,)
        Log weight of each drawn network, normalised and finite.
    structure : Tensor of int64, shape (S,)
        Structure of each draw.
    sampled : bool
        True if the structures are a sample; see :class:`~fathomless.posterior.model.Draws`.
    network : Tensor of int64, shape (S,), optional
        Independent network of each draw; see :class:`~fathomless.posterior.model.Draws`.
    """

    log_weight: Tensor
    structure: Tensor
    sampled: bool = field(default=False, kw_only=True)
    network: Tensor | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets of all rows: (N,), or (N, T) for several targets."""

    def __len__(self) -> int:
        """Return the number of rows N."""
        return self.shape[0]

    @abstractmethod
    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""

    def __getitem__(self, rows: Any) -> Self:
        """Return the distributions of one row (an integer), or of several: a slice, indices, or a mask.

        The distribution of one row has an axis of rows, too.

        Raises
        ------
        IndexError
            If there is no such row, or if `rows` has another type or several axes.
        """
        index: Any = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        index = [index] if isinstance(index, int | np.integer) else index
        chosen = np.arange(len(self))[index]
        if chosen.ndim != 1:
            raise IndexError(f"rows of shape {chosen.shape} were given; allowed is one axis")
        return self.take(torch.tensor(np.ascontiguousarray(chosen), device="cpu"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return an array of objects, shape (N,), with the distribution of each row."""
        rows = np.empty(len(self), dtype=object)
        for i in range(len(self)):
            rows[i] = self[i]
        return rows if dtype is None else rows.astype(dtype)

    @property
    @abstractmethod
    def discrete(self) -> bool:
        """True if the distribution has probabilities of single values, which :meth:`log_prob` returns."""

    @abstractmethod
    def log_prob(self, y: Values) -> Tensor:
        """Log density or mass of each row's target in nats, shape (N,)."""

    @abstractmethod
    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns, one value for each row."""

    def to_frame(
        self,
        targets: Sequence[str] = (),
        levels: Sequence[float] = (0.9,),
        library: Literal["pandas", "polars", "pyarrow"] = "pandas",
        *,
        index: Any = None,
    ) -> Any:
        """Return :meth:`columns` as a data frame.

        Parameters
        ----------
        targets : sequence of str
            Names of several targets.
        levels : sequence of float
            Probabilities of the central intervals of continuous targets.
        library : {"pandas", "polars", "pyarrow"}
            Library of the data frame.
        index : array of shape (N,), optional
            Index of a pandas frame, such as the index of the predicted rows; 0, 1, ... by default.

        Raises
        ------
        DataError
            If the library is not installed or has no index, or if the index has another length.
        """
        checks.choice("library", library, _LIBRARIES)
        if index is not None and library != "pandas":
            raise DataError(f"index was given with library={library!r}, whose frames have no index; leave it out")
        if index is not None and len(index) != len(self):
            raise DataError(f"index has {len(index)} entries for {len(self)} rows; give one for each row")
        try:
            frame = nw.from_dict(self.columns(targets, levels), backend=library).to_native()
        except ModuleNotFoundError as error:
            raise DataError(f"library={library!r} was given, but it is not installed: pip install {library}") from error
        return frame if index is None else frame.set_axis(index)

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Tensor | Labels:
        """Draw n targets for each row; all rows and columns of a draw share one network."""

    def rvs(self, size: int | Sequence[int] | None = None, random_state: Seed = None) -> npt.NDArray[Any]:
        """Draw targets as :meth:`sample` does, with the name and arguments of SciPy.

        Parameters
        ----------
        size : int or sequence of int, optional
            Shape of the result, which must end with :attr:`shape`; one target for each row by default.
        random_state : int, RandomState, Generator, torch.Generator or None
            Seed; None for a random one.

        Raises
        ------
        DataError
            If the size does not end with the shape of the rows.
        """
        shape = self.shape if size is None else tuple(map(operator.index, np.atleast_1d(size)))
        if shape[-len(self.shape) :] != self.shape or min(shape) < 1:
            raise DataError(
                f"rvs was given size={size}; allowed are shapes that end with that of the rows, {self.shape}: "
                f"size={(100, *self.shape)} gives 100 draws of each"
            )
        drawn = self.sample(math.prod(shape[: -len(self.shape)]), as_generator(random_state))
        values = to_array(drawn) if isinstance(drawn, Tensor) else drawn
        return values.reshape(shape)

    @abstractmethod
    def uncertainty(self) -> Uncertainty:
        """Decompose the uncertainty of each row into noise, weights and structure.

        For an average over rows use ``uncertainty().mean()``, which sums the estimates before it clips them.
        """

    @property
    @abstractmethod
    def mc_error(self) -> Tensor:
        """Monte Carlo error of the prediction: its standard deviation over repetitions with as many new draws."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the parameters of all components in bytes."""

    @abstractmethod
    def concatenate(self, others: Sequence["Predictive"]) -> "Predictive":
        """Return one prediction for these rows followed by the rows of the others."""

    def __repr__(self) -> str:
        counts = f"rows={len(self)}, draws={len(self.log_weight)}, structures={len(self.structure.unique())}"
        return f"{type(self).__name__}({counts})"

    def _networks(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n networks by their weight, shape (n,)."""
        return multinomial(self.log_weight.exp(), n, generator)

    def _spread(self, values: Tensor) -> Spread | None:
        """Estimate the variance of values between and within structures, (N, ...) from (S, N, ...)."""
        return estimate_spread(values, self.log_weight, self.structure, self.network, sampled=self.sampled)

    def _error(self, values: Tensor) -> Tensor:
        """Return the standard error of the average of values over draws, (N, ...) from (S, N, ...)."""
        return standard_error(values, self.log_weight, self.structure, self.network, sampled=self.sampled)


@dataclass(frozen=True, eq=False, repr=False)
class NumberPredictive(Predictive):
    """Predictive distribution of numeric targets, in their own units.

    Subclasses define moments, distribution function and quantiles. The other names are those of SciPy.
    """

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Mean of the target."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of the target, observation noise included."""

    @property
    @abstractmethod
    def std(self) -> Tensor:
        """Standard deviation of the target, observation noise included."""

    @abstractmethod
    def cdf(self, y: Values) -> Tensor:
        """Probability of values up to y; y broadcasts to the rows."""

    @abstractmethod
    def sf(self, y: Values) -> Tensor:
        """Probability of values above y, accurate in the upper tail; y broadcasts to the rows."""

    @abstractmethod
    def cdf_before(self, y: Values) -> Tensor:
        """Probability of values below y; it differs from :meth:`cdf` if y itself has a positive probability."""

    @abstractmethod
    def icdf(self, p: Values) -> Tensor:
        """Quantile: the smallest value up to which the probability is at least p; p broadcasts to the rows."""

    @abstractmethod
    def isf(self, q: Values) -> Any:
        """Smallest value that the target exceeds with probability at most q, accurate for small q."""

    @abstractmethod
    def log_prob_and_error(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return :meth:`log_prob` of each row's targets and its Monte Carlo error, both (N,), in nats."""

    @abstractmethod
    def crps(self, y: Values) -> Tensor:
        """Continuous ranked probability score of each row's targets, in units of y; lower is better."""

    @property
    @abstractmethod
    def continuous(self) -> "ContinuousPredictive":
        """Continuous law from which the prediction is made: the prediction itself, or a part of it."""

    @abstractmethod
    def with_continuous(self, continuous: "ContinuousPredictive") -> Self:
        """Return the prediction that is made from another continuous law."""

    @property
    @abstractmethod
    def network_means(self) -> Tensor:
        """Mean of the target under each drawn network, shape (S, N, T)."""

    @property
    def squeeze(self) -> bool:
        """True if the axis of targets is dropped."""
        return len(self.shape) == 1

    @property
    def var(self) -> Tensor:
        """Variance, under the name of SciPy."""
        return self.variance

    @property
    def median(self) -> Tensor:
        """Median of the target."""
        return self.icdf(0.5)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Return several quantiles for every row, shape (Q, N, T) or (Q, N).

        Raises
        ------
        DataError
            If a single number is given.
        """
        if np.ndim(levels) != 1:
            raise DataError(f"levels={levels!r:.80} was given; give a list of numbers, or use quantile for one level")
        return torch.stack([self.icdf(float(level)) for level in levels])

    def ppf(self, q: Values) -> Any:
        """Quantile, as :meth:`icdf`; an array, or a tensor for a tensor.

        Examples
        --------
        >>> from fathomless.posterior.mixtures import Normal
        >>> zeros = torch.zeros(1, 3, 1, dtype=torch.float64, device="cpu")
        >>> even = zeros[:, 0, 0]
        >>> p = ContinuousPredictive(even, even.long(), Normal(zeros, zeros.exp()), squeeze=True)
        >>> p.ppf([[0.5], [0.975]]).round(2)  # two levels for three rows
        array([[0.  , 0.  , 0.  ],
               [1.96, 1.96, 1.96]])
        """
        return match_type(q, self.icdf(q))

    def quantile(self, q: Values) -> Any:
        """Quantiles of every row at one or several levels, as :func:`numpy.quantile`.

        Parameters
        ----------
        q : float, or sequence of Q floats
            Levels from 0 to 1. Unlike those of :meth:`ppf`, several levels are for all rows.

        Returns
        -------
        ndarray or Tensor, shape (N, ...) or (Q, N, ...)
            Quantiles; a tensor if the levels are one.
        """
        levels = to_double(q)
        if levels.ndim > 1:
            raise DataError(f"levels of the shape {tuple(levels.shape)} were given; give a number or a list of numbers")
        return match_type(q, self.icdf(levels) if levels.ndim == 0 else self.quantiles(levels.tolist()))

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval, both ends included, that contains the target with at least this probability.

        Columns are treated separately. If no single value has a positive probability, that of the interval is `level`.

        Raises
        ------
        DataError
            If ``level`` is not between 0 and 1.
        """
        level = checks.interval("level", level, 0.0, 1.0, closed=False)
        return self.icdf(0.5 * (1.0 - level)), self.icdf(0.5 * (1.0 + level))

    def _require_shape(self, y: Values, each: str) -> Tensor:
        """Return targets in double precision; raise an error if there is not one for each row, or row and column."""
        y = to_double(y)
        if y.shape != self.shape:
            raise DataError(
                f"targets of shape {tuple(y.shape)} were given; allowed is {self.shape}: one value for each {each}"
            )
        return y


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousPredictive(NumberPredictive):
    """Predictive distribution of T continuous targets, in their own units.

    Results and arguments have the shape (N, T), or (N,) if the target was given as a one-dimensional array
    (``squeeze``). Everything is float64 on the CPU.

    Attributes
    ----------
    component : Component, parameters of shape (S, N, T)
        Law of the targets under each drawn network.
    squeeze : bool
        True if the axis of targets is dropped; then T is 1.
    share : Tensor of float64, shape (C + 1, T), optional
        Weights of the law of the networks and of C laws of the standardised residual, for each target; see
        :mod:`fathomless.posterior.recalibration`. None if the law of the networks is the prediction.
    residual_laws : sequence of C Mixture, batch (N, T)
        These laws, in units of the targets.

    Notes
    -----
    With laws of the residual, the marginal law of each target is a pool of laws. Its density, moments and quantiles are
    those of the pool. The dependence between targets, and between rows of a sample, is that of the networks: each
    target chooses one of the laws, and a value of the networks' law is mapped to the value of the chosen law that has
    the same probability below it. Given a network, targets and rows are independent.
    """

    component: Component
    squeeze: bool = False
    share: Tensor | None = field(default=None, kw_only=True)
    residual_laws: Sequence[Mixture] = field(default=(), kw_only=True)

    @property
    def discrete(self) -> bool:
        """False."""
        return False

    @property
    def continuous(self) -> "ContinuousPredictive":
        """The prediction itself."""
        return self

    def with_continuous(self, continuous: "ContinuousPredictive") -> Self:
        """Return the other law."""
        return cast(Self, continuous)

    @property
    def network_means(self) -> Tensor:
        """Mean of the target under each drawn network, without the laws of the residual, shape (S, N, T)."""
        return self.component.mean

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets of all rows, (N, T) or (N,)."""
        return tuple(self.component.loc.shape[1:2] if self.squeeze else self.component.loc.shape[1:])

    @property
    def nbytes(self) -> int:
        """Size of the parameters of all components in bytes."""
        laws = [self.component, *(law.component for law in self.residual_laws)]
        tensors: list[Tensor] = [getattr(law, part.name) for law in laws for part in fields(law)]
        return sum(tensor.nbytes for tensor in [*tensors, *(law.log_weight for law in self.residual_laws)])

    @cached_property
    def network_mixture(self) -> Mixture:
        """The marginal law of each row and column by the networks alone, batch (N, T)."""
        with torch.enable_grad():  # the result is cached, and a later caller may need gradients
            return Mixture(self.log_weight, self.component)

    @cached_property
    def mixture(self) -> Mixture | Pool:
        """The marginal law of each row and column, batch (N, T)."""
        if self.share is None:
            return self.network_mixture
        return Pool(self.share, (self.network_mixture, *self.residual_laws))

    @property
    def mean(self) -> Tensor:
        """Mean of the target."""
        return self._squeeze(self.mixture.mean)

    @property
    def variance(self) -> Tensor:
        """Variance of the target, observation noise included."""
        return self._squeeze(self.mixture.variance)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target, observation noise included."""
        return self._squeeze(self.mixture.std)

    @property
    def mc_error(self) -> Tensor:
        r"""Standard error of ``mean`` due to the finite number of networks, shaped like it, in units of the target.

        For K networks of equal weight, each averaged over its structures, :math:`\sqrt{\mathrm{Var}_k(f_{k\cdot})/K}`;
        for sampled structures the same with their means. It is 0 if nothing is drawn, since sums over structures are
        exact, and for a single draw, whose variance cannot be estimated. All rows share the draws. Their errors are
        therefore correlated, and the error of a mean over many rows need not be smaller.
        """
        unit = safe_unit(self.network_mixture.variance, self.network_mixture.std)
        return self._squeeze(unit * self._error(self.component.mean / unit))

    def cdf(self, y: Values) -> Tensor:
        """Probability that the target is below y, for each column separately; y broadcasts to the rows."""
        return self._squeeze(self.mixture.cdf(self._broadcast(y)))

    def sf(self, y: Values) -> Tensor:
        """Probability that the target is above y, for each column separately; y broadcasts to the rows."""
        return self._squeeze(self.mixture.sf(self._broadcast(y)))

    def cdf_before(self, y: Values) -> Tensor:
        """Probability that the target is below y, as :meth:`cdf`."""
        return self.cdf(y)

    def icdf(self, p: Values) -> Tensor:
        """Quantile, for each column separately; p broadcasts to the rows."""
        return self._squeeze(self.mixture.icdf(self._broadcast(p)))

    def isf(self, q: Values) -> Any:
        """Value that the target exceeds with probability q: ``ppf(1 - q)``, but accurate for small q."""
        return match_type(q, self._squeeze(self.mixture.isf(self._broadcast(q))))

    def logpdf(self, y: Values) -> Any:
        """Log density in nats, for each column separately; y broadcasts to the rows."""
        return match_type(y, self._squeeze(self.mixture.log_prob(self._broadcast(y))))

    def pdf(self, y: Values) -> Any:
        """Density, in the inverse of the units of the target; see :meth:`logpdf`."""
        return np.exp(self.logpdf(y)) if not isinstance(y, Tensor) else self.logpdf(y).exp()

    def log_prob(self, y: Values) -> Tensor:
        r"""Joint log density of all columns, shape (N,), in nats.

        :math:`\log \sum_s w_s \prod_t p(y_t \mid f_s)`: columns are independent given the network, not in the
        mixture, so this is not the sum of the marginal log densities.

        Raises
        ------
        DataError
            If y does not have one value for each row and column.
        """
        return self.log_prob_and_error(self._require_shape(y, "row and column of the prediction"))[0]

    def log_prob_and_error(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return the log density of the targets of each row and its Monte Carlo error, both (N,), in nats.

        The error is that of the law of the networks.
        """
        values = self._broadcast(y)  # (N, T)
        log_density = self.component.log_prob(values)  # (S, N, T)
        if self.share is not None and values.shape[-1] == 1:
            # sums over networks are those of the pool, which needs no quantiles
            log_p = self.mixture.log_prob(values).sum(-1)
            relative = (log_density.sum(-1) - self.network_mixture.log_prob(values).sum(-1)).exp()
            return log_p, self._error(relative)
        if self.share is not None:
            log_density = self._pool_given_network(values, log_density)
        log_joint = log_density.sum(-1)  # (S, N)
        log_p = torch.logsumexp(self.log_weight[:, None] + log_joint, 0)
        relative = (log_joint - log_p).exp()  # delta method: the error of log p is that of p relative to p
        return log_p, self._error(relative)

    def crps(self, y: Values) -> Tensor:
        """Continuous ranked probability score of each row and column, with the shape of the targets, in units of y.

        It is exact for mixtures of at most 64 Gaussians or Laplace laws and for a single Student's t, and else computed
        by quadrature (:func:`fathomless.posterior.metrics.crps_law`).

        Raises
        ------
        DataError
            If y does not have one value for each row and column.
        """
        from fathomless.posterior.mixture_scores import crps_of_mixture  # imports SciPy, which predictions do not need

        y = self._require_shape(y, "row and column of the prediction")
        scores = crps_of_mixture(self.mixture, (y[:, None] if self.squeeze else y).numpy())
        return self._squeeze(torch.as_tensor(scores, device="cpu"))

    def _pool_given_network(self, y: Tensor, log_density: Tensor) -> Tensor:
        """Return the log density of each target given a network, (S, N, T), from that of the networks' law."""
        assert self.share is not None
        terms = [self.share[0].log() + log_density]
        for share, law in zip(self.share[1:], self.residual_laws, strict=True):
            source = map_quantiles(law, self.network_mixture, y)
            inside = source.isfinite()  # not if the probability beyond y underflows: the networks are alike there
            source = torch.where(inside, source, self.network_mixture.mean)
            log_p = law.log_prob(y)
            change = log_p - self.network_mixture.log_prob(source)  # log of the derivative of the map
            terms.append(share.log() + torch.where(inside, self.component.log_prob(source) + change, log_p))
        return torch.logsumexp(torch.stack(terms), 0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from the joint law, shape (n, N, T) or (n, N).

        The rows and columns of a sample share one drawn network. Given the network, their noise is independent.
        """
        index = self._networks(n, generator)
        values = self.component.map_parameters(lambda t: t[index]).sample(generator)
        if self.share is not None:
            choice = multinomial(self.share.T, math.prod(values.shape[:2]), generator)  # (T, n N)
            choice = choice.T.reshape(values.shape)
            for j, law in enumerate(self.residual_laws, 1):
                if bool((choice == j).any()):
                    at_once = max(1, _NUMBERS // (values[0].numel() * len(self.log_weight)))
                    parts = [map_quantiles(self.network_mixture, law, part) for part in values.split(at_once)]
                    values = torch.where(choice == j, torch.cat(parts), values)
        return self._squeeze(values)

    def uncertainty(self) -> Uncertainty:
        r"""Split the variance by the law of total variance.

        .. math:: \mathrm{Var}(y) = E_s \mathrm{Var}(y \mid s) + E_g \mathrm{Var}(E[y \mid s] \mid g)
                  + \mathrm{Var}(E[y \mid g])

        with draws s, each in one structure g. Weights and structure are parts of the variance of the means. If
        structures are a sample, or several independent networks have all structures by one law (``network``), the sum
        of the last two terms is divided by unbiased estimates of both. Otherwise a part of the differences between
        networks would be attributed to structure. Networks with different weights of the structures are averaged
        without this correction.

        With laws of the residual, weights and structure are those of the networks, and noise is the rest of the
        variance. If the variance of the prediction is smaller than the sum of weights and structure, they are reduced
        by a common factor.
        """
        groups = Groups.of(self.log_weight, self.structure)
        means = self.component.mean  # (S, N, T)
        noise = groups.across(groups.within(self.component.variance))
        total = self.mixture.variance
        if (estimates := self._spread(means)) is not None:
            if self.share is not None:
                noise = (total - (self.network_mixture.variance - noise).clamp_min(0.0)).clamp_min(0.0)
            return decompose(noise, total, estimates, self._squeeze)
        group_means = groups.within(means)  # (G, N, T)
        mean = groups.across(group_means)  # (N, T)
        weights = groups.across(groups.within((means - group_means[groups.member]).square()))
        structure = groups.across((group_means - mean).square())
        if self.share is not None:
            rest = weights + structure
            factor = (total / rest.clamp_min(torch.finfo(rest.dtype).tiny)).clamp_max(1.0)
            weights, structure = factor * weights, factor * structure
            noise = (total - rest).clamp_min(0.0)
        noise, weights, structure = map(self._squeeze, (noise, weights, structure))
        return Uncertainty(noise, weights, structure, self._squeeze(total))

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns, one value for each row.

        The columns are mean, std, lower_90 and upper_90 (for every level), variance_noise, variance_weights and
        variance_structure. The last two are left out if they cannot be separated. With several targets each name
        begins with that of its target, or with y0, y1, ...
        """
        columns = {"mean": to_array(self.mean), "std": to_array(self.std)}
        for level in levels:
            low, high = self.interval(level)
            columns |= {f"lower_{100 * level:.12g}": to_array(low), f"upper_{100 * level:.12g}": to_array(high)}
        columns |= {f"variance_{name}": values for name, values in known_parts(self.uncertainty()).items()}
        if self.squeeze:
            return columns
        count = columns["mean"].shape[1]
        names = targets or [f"y{t}" for t in range(count)]
        return {f"{names[t]}_{name}": values[:, t] for t in range(count) for name, values in columns.items()}

    def concatenate(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [(chunk.squeeze, len(chunk.residual_laws)) for chunk in chunks])
        laws = [concatenate_mixtures(parts) for parts in zip(*(c.residual_laws for c in chunks), strict=True)]
        component = concatenate_rows([chunk.component for chunk in chunks])
        return replace(self, component=component, residual_laws=tuple(laws))

    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""
        component = self.component.map_parameters(lambda values: values[:, rows])
        return replace(self, component=component, residual_laws=tuple(law.take(rows) for law in self.residual_laws))

    def _squeeze(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.squeeze else values

    def _broadcast(self, values: Values) -> Tensor:
        values = to_double(values)
        try:
            fits = np.broadcast_shapes(values.shape, self.shape)[-len(self.shape) :] == self.shape
        except ValueError:
            fits = False
        if not fits:
            raise DataError(
                f"values of shape {tuple(values.shape)} were given for rows of shape {self.shape}; allowed are a "
                "number, one value for each row, or several values for all rows along a new axis: "
                f"np.array(values)[:, {', '.join(['None'] * len(self.shape))}]"
            )
        return values.unsqueeze(-1) if self.squeeze else values


def to_array(values: Tensor) -> npt.NDArray[Any]:
    """Return the values as an array, without derivatives."""
    return values.detach().numpy()


def match_type(argument: Values, result: Tensor) -> Any:
    """Return the result as a tensor if the argument is a tensor, and as an array otherwise."""
    return result if isinstance(argument, Tensor) else to_array(result)


def known_parts(split: Uncertainty) -> dict[str, npt.NDArray[Any]]:
    """Return the parts as arrays by name; weights and structure only if they can be separated."""
    parts = {"noise": split.noise}
    if split.known:
        parts |= {"weights": split.weights, "structure": split.structure}
    return {name: to_array(values) for name, values in parts.items()}


def check_alike(chunks: Sequence[Predictive], options: Sequence[object]) -> None:
    """Check that predictions are chunks of rows of one prediction; further `options` must be equal too."""
    first = chunks[0]
    same = all(
        torch.equal(chunk.structure, first.structure)
        and torch.allclose(chunk.log_weight, first.log_weight)
        and _is_equal(chunk.network, first.network)
        for chunk in chunks
    )
    if not same or len(options) < len(chunks) or any(option != options[0] for option in options):
        raise DataError(
            f"{len(chunks)} predictions were given that differ in their type, labels, weights or "
            "structures; allowed are chunks of rows of one prediction: use a generator with the same seed for every "
            "chunk"
        )


def _is_equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def to_double(values: Values) -> Tensor:
    """Return numbers as a tensor in double precision on the CPU."""
    if isinstance(values, Tensor):
        return values.cpu().to(torch.float64)
    copied = np.array(unmask(values), dtype=np.float64)  # a copy: torch cannot use pandas series or read-only arrays
    return torch.as_tensor(copied, device="cpu")
