"""Predictive distributions of the rows of a table: of continuous targets, and over classes.

Names are torch's (``log_prob``, ``icdf``, ``variance``), which answer with tensors, and SciPy's (``logpdf``, ``pdf``,
``ppf``, ``isf``), which answer in kind: with NumPy arrays unless they are given a tensor. Arguments broadcast to the
rows, so that a grid of G values for all N rows has the shape (G, 1). Tensors carry gradients, if the draws did and they
are not switched off; arrays and data frames never do.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.mixtures import Component, Mixture, concatenate_rows, safe_unit
from fathomless.posterior.uncertainty import Groups, Spread, Uncertainty, decompose, spread, standard_error
from fathomless.system import checks
from fathomless.system.draws import multinomial
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import Seed, as_generator

__all__ = ["ClassPredictive", "ContinuousPredictive", "Labels", "Predictive", "Values", "check_alike", "doubles"]

#: What can be read as numbers.
Values = npt.ArrayLike | Tensor
#: Names of classes.
Labels = npt.NDArray[Any]
_LIBRARIES = ("pandas", "polars", "pyarrow")


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """A distribution for each row of a table.

    Attributes
    ----------
    log_weight : Tensor of float64, shape (S,)
        Log weight of each drawn network, normalised and finite.
    structure : Tensor of int64, shape (S,)
        The structure that each draw belongs to.
    sampled : bool
        Whether the structures are a sample, see :class:`~fathomless.posterior.model.Draws`.
    network : Tensor of int64, shape (S,), optional
        The independent network that each draw is of, see :class:`~fathomless.posterior.model.Draws`.
    """

    log_weight: Tensor
    structure: Tensor
    sampled: bool = field(default=False, kw_only=True)
    network: Tensor | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one target for each row: (N,), or (N, T) of several targets."""

    def __len__(self) -> int:
        """Return the number of rows N."""
        return self.shape[0]

    @abstractmethod
    def log_prob(self, y: Values) -> Tensor:
        """Log density or mass of each row's target in nats, shape (N,)."""

    @abstractmethod
    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Lay the distribution out as columns, one value for each row."""

    def to_frame(
        self,
        targets: Sequence[str] = (),
        levels: Sequence[float] = (0.9,),
        library: Literal["pandas", "polars", "pyarrow"] = "pandas",
    ) -> Any:
        """Return :meth:`columns` as a data frame.

        Parameters
        ----------
        targets : sequence of str
            Names of several targets.
        levels : sequence of float
            Probabilities of intervals, for numbers.
        library : {"pandas", "polars", "pyarrow"}
            Whose frame.

        Raises
        ------
        DataError
            If the library is not installed.
        """
        checks.choice("library", library, _LIBRARIES)
        try:
            return nw.from_dict(self.columns(targets, levels), backend=library).to_native()
        except ModuleNotFoundError as error:
            raise DataError(f"library={library!r} was given, which is not installed: pip install {library}") from error

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Tensor | Labels:
        """Draw n targets for each row; one network serves all rows and columns of a draw."""

    def rvs(self, size: int | Sequence[int] | None = None, random_state: Seed = None) -> npt.NDArray[Any]:
        """Draw targets, as :meth:`sample`, by SciPy's name and with its arguments.

        Parameters
        ----------
        size : int or sequence of int, optional
            Shape of the result, which ends with :attr:`shape`; by default one target for each row.
        random_state : int, RandomState, Generator, torch.Generator or None
            Seed; None draws a fresh one.

        Raises
        ------
        DataError
            If the size does not end with the shape of the rows.
        """
        asked = self.shape if size is None else tuple(map(operator.index, np.atleast_1d(size)))
        if asked[-len(self.shape) :] != self.shape or min(asked) < 1:
            raise DataError(
                f"rvs was given size={size}; allowed are shapes that end with that of the rows, {self.shape}: "
                f"size={(100, *self.shape)} are 100 of each"
            )
        drawn = self.sample(math.prod(asked[: -len(self.shape)]), as_generator(random_state))
        return (_array(drawn) if isinstance(drawn, Tensor) else drawn).reshape(asked)

    @abstractmethod
    def uncertainty(self) -> Uncertainty:
        """Split the uncertainty of each row into noise, weights and structure.

        For an average over rows take ``uncertainty().mean()``: it sums estimates before it clips them.
        """

    @property
    @abstractmethod
    def mc_error(self) -> Tensor:
        """Monte Carlo error of the prediction: what other draws, as many, would change of it, a standard deviation."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the parameters of all components take."""

    @abstractmethod
    def concatenated(self, others: Sequence["Predictive"]) -> "Predictive":
        """Return one prediction for these rows followed by those of the others; see :func:`concatenate`."""

    def __repr__(self) -> str:
        counts = f"rows={len(self)}, draws={len(self.log_weight)}, structures={len(self.structure.unique())}"
        return f"{type(self).__name__}({counts})"

    def _networks(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n networks by their weight, shape (n,)."""
        return multinomial(self.log_weight.exp(), n, generator)

    def _spread(self, values: Tensor) -> Spread | None:
        """Estimate what structure and weights leave open of values under each draw, (N, ...) from (S, N, ...)."""
        return spread(values, self.log_weight, self.structure, self.network, sampled=self.sampled)

    def _error(self, values: Tensor) -> Tensor:
        """Return the standard error of the average of values over draws, (N, ...) from (S, N, ...)."""
        return standard_error(values, self.log_weight, self.structure, self.network, sampled=self.sampled)


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousPredictive(Predictive):
    """Predictive distribution of T continuous targets, in their own units.

    Shapes are (N, T), or (N,) if the targets were given as one column without an axis (``squeeze``); this
    holds for results and for arguments alike. Everything is float64 on the CPU.

    Attributes
    ----------
    component : Component, parameters of shape (S, N, T)
        Law of the targets under each drawn network.
    squeeze : bool
        Whether the axis of targets is dropped; then T is 1.
    """

    component: Component
    squeeze: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one target for each row, (N, T) or (N,)."""
        return tuple(self.component.loc.shape[1:2] if self.squeeze else self.component.loc.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes that the parameters of all components take."""
        return sum(getattr(self.component, part.name).nbytes for part in fields(self.component))

    @cached_property
    def mixture(self) -> Mixture:
        """The marginal law of each row and column, batch (N, T)."""
        with torch.enable_grad():  # kept: whoever asks first must not decide for those who ask later
            return Mixture(self.log_weight, self.component)

    @property
    def mean(self) -> Tensor:
        """Mean of the target."""
        return self._shown(self.mixture.mean)

    @property
    def variance(self) -> Tensor:
        """Variance of the target, observation noise included."""
        return self._shown(self.mixture.variance)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target, observation noise included."""
        return self._shown(self.mixture.std)

    @property
    def var(self) -> Tensor:
        """The variance, by SciPy's name."""
        return self.variance

    @property
    def median(self) -> Tensor:
        """Median of the target."""
        return self.icdf(0.5)

    @property
    def mc_error(self) -> Tensor:
        r"""Standard error of ``mean`` due to the finite number of networks, shaped like it, in units of the target.

        For K networks of equal weight, each averaged over its structures, :math:`\sqrt{\mathrm{Var}_k(f_{k\cdot})/K}`;
        for sampled structures the same with their means. 0 where nothing is drawn, since sums over structures are
        exact; what a single draw would vary by cannot be told, and is 0 too. All rows share the draws: their errors
        move together, and a mean over many rows need not have a smaller one.
        """
        unit = safe_unit(self.mixture.variance, self.mixture.std)
        return self._shown(unit * self._error(self.component.mean / unit))

    def cdf(self, y: Values) -> Tensor:
        """Probability that the target lies below y, for each column by itself; y broadcasts to the rows."""
        return self._shown(self.mixture.cdf(self._taken(y)))

    def sf(self, y: Values) -> Tensor:
        """Probability that the target lies above y, for each column by itself; y broadcasts to the rows."""
        return self._shown(self.mixture.sf(self._taken(y)))

    def icdf(self, p: Values) -> Tensor:
        """Quantile, for each column by itself; p broadcasts to the rows."""
        return self._shown(self.mixture.icdf(self._taken(p)))

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Several quantiles for every row, shape (Q, N, T) or (Q, N)."""
        return torch.stack([self.icdf(level) for level in levels])

    def ppf(self, q: Values) -> Any:
        """Quantile, as :meth:`icdf`, in kind.

        Examples
        --------
        >>> from fathomless.posterior.mixtures import Normal
        >>> even = torch.zeros(1, dtype=torch.float64)
        >>> law = Normal(torch.zeros(1, 3, 1, dtype=torch.float64), torch.ones(1, 3, 1, dtype=torch.float64))
        >>> p = ContinuousPredictive(even, even.long(), law, squeeze=True)
        >>> p.ppf([[0.5], [0.975]]).round(2)  # two levels for three rows
        array([[0.  , 0.  , 0.  ],
               [1.96, 1.96, 1.96]])
        """
        return _in_kind(q, self.icdf(q))

    quantile = ppf

    def isf(self, q: Values) -> Any:
        """Value that the target exceeds with probability q, ``ppf(1 - q)`` without its rounding, in kind."""
        return _in_kind(q, self._shown(self.mixture.isf(self._taken(q))))

    def logpdf(self, y: Values) -> Any:
        """Log density in nats, for each column by itself, in kind; y broadcasts to the rows."""
        return _in_kind(y, self._shown(self.mixture.log_prob(self._taken(y))))

    def pdf(self, y: Values) -> Any:
        """Density in one over units of the target, as :meth:`logpdf`."""
        return np.exp(self.logpdf(y)) if not isinstance(y, Tensor) else self.logpdf(y).exp()

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval that holds the target with probability ``level``, for each column by itself.

        Raises
        ------
        DataError
            If ``level`` is not between 0 and 1.
        """
        level = checks.interval("level", level, 0.0, 1.0, closed=False)
        return self.icdf(0.5 * (1.0 - level)), self.icdf(0.5 * (1.0 + level))

    def log_prob(self, y: Values) -> Tensor:
        r"""Joint log density of all columns, shape (N,), in nats.

        :math:`\log \sum_s w_s \prod_t p(y_t \mid f_s)`: columns are independent given the network, not in the
        mixture, so this is not the sum of the marginal log densities.

        Raises
        ------
        DataError
            If y has not one value for each row and column.
        """
        y = doubles(y)
        if y.shape != self.shape:
            raise DataError(
                f"log_prob was given targets of shape {tuple(y.shape)}; allowed is {self.shape}: "
                "one value for each row and column of the prediction"
            )
        return self.scored(y)[0]

    def scored(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return the log density of each row's targets, and its Monte Carlo error; both (N,), in nats."""
        each = self.component.log_prob(self._taken(y)).sum(-1)  # (S, N)
        log_p = torch.logsumexp(self.log_weight[:, None] + each, 0)
        return log_p, self._error((each - log_p).exp())

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from the joint law, shape (n, N, T) or (n, N).

        One network is drawn for each of the n samples, and shared by its rows and columns: the noise is
        independent, the uncertainty about the network is not.
        """
        index = self._networks(n, generator)
        return self._shown(self.component.through(lambda t: t[index]).sample(generator))

    def uncertainty(self) -> Uncertainty:
        r"""Split the variance by the law of total variance.

        .. math:: \mathrm{Var}(y) = E_s \mathrm{Var}(y \mid s) + E_g \mathrm{Var}(E[y \mid s] \mid g)
                  + \mathrm{Var}(E[y \mid g])

        with draws s, each in one structure g. The means, not the noise, decide what counts as weights and
        structure. The last two terms are divided by unbiased estimates of both where structures are a sample, and
        where several independent networks have all structures by one law (``network``): what they disagree on would
        else count as structure in part. Networks that weigh structures differently are averaged as they are.
        """
        groups = Groups.of(self.log_weight, self.structure)
        means = self.component.mean  # (S, N, T)
        if (estimates := self._spread(means)) is not None:
            noise = groups.across(groups.within(self.component.variance))
            return decompose(noise, self.mixture.variance, estimates, self._shown)
        of_group = groups.within(means)  # (G, N, T)
        mean = groups.across(of_group)  # (N, T)
        parts = (
            groups.across(groups.within(self.component.variance)),
            groups.across(groups.within((means - of_group[groups.member]).square())),
            groups.across((of_group - mean).square()),
        )
        noise, weights, structure = map(self._shown, parts)
        return Uncertainty(noise, weights, structure, self.variance)

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Lay the distribution out as columns, one value for each row.

        They are mean, std, lower_90 and upper_90 for every level, and the variance split into variance_noise,
        variance_weights and variance_structure; without the last two where they cannot be told apart. With several
        targets each name begins with that of its target, or with y0, y1, ...
        """
        found = {"mean": _array(self.mean), "std": _array(self.std)}
        for level in levels:
            low, high = self.interval(level)
            found |= {f"lower_{100 * level:.12g}": _array(low), f"upper_{100 * level:.12g}": _array(high)}
        found |= {f"variance_{name}": values for name, values in _parts(self.uncertainty()).items()}
        if self.squeeze:
            return found
        count = found["mean"].shape[1]
        each = targets or [f"y{t}" for t in range(count)]
        return {f"{each[t]}_{name}": values[:, t] for t in range(count) for name, values in found.items()}

    def concatenated(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [chunk.squeeze for chunk in chunks])
        return replace(self, component=concatenate_rows([chunk.component for chunk in chunks]))

    def _shown(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.squeeze else values

    def _taken(self, values: Values) -> Tensor:
        values = doubles(values)
        try:
            fits = np.broadcast_shapes(values.shape, self.shape)[-len(self.shape) :] == self.shape
        except ValueError:
            fits = False
        if not fits:
            raise DataError(
                f"values of shape {tuple(values.shape)} were given for rows of shape {self.shape}; allowed are a "
                "number, one for each row, or several for all rows along an axis of their own: "
                f"np.array(values)[:, {', '.join(['None'] * len(self.shape))}]"
            )
        return values.unsqueeze(-1) if self.squeeze else values


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Predictive distribution over C classes.

    Attributes
    ----------
    log_p : Tensor of float64, shape (S, N, C)
        Log probability of each class under each drawn network.
    labels : ndarray, shape (C,)
        The name of each class; 0, 1, ... if none were given.
    """

    log_p: Tensor
    labels: Labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one label for each row, (N,)."""
        return (self.log_p.shape[1],)

    @property
    def nbytes(self) -> int:
        """Bytes that the log probabilities take."""
        return self.log_p.nbytes

    @property
    def each_probs(self) -> Tensor:
        """Class probabilities under each drawn network, shape (S, N, C)."""
        return self.log_p.exp()

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the averaged class probabilities, shape (N, C); accurate for tiny probabilities."""
        with torch.enable_grad():
            return torch.logsumexp(self.log_weight[:, None, None] + self.log_p, 0)

    @property
    def probs(self) -> Tensor:
        """Averaged class probabilities, shape (N, C)."""
        return self.log_probs.exp()

    @property
    def mode(self) -> Tensor:
        """Index of the most probable class, int64, shape (N,)."""
        return self.log_probs.argmax(-1)

    def predict(self) -> Labels:
        """Return the label of the most probable class, shape (N,)."""
        labels: Labels = self.labels[self.mode.numpy()]
        return labels

    def log_prob(self, y: Values) -> Tensor:
        """Log mass of each row's label, shape (N,), in nats.

        Parameters
        ----------
        y : array_like, shape (N,)
            Labels, as in ``labels``.

        Raises
        ------
        DataError
            If the shape differs or a label is unknown.
        """
        index = self._index(y)
        return self.log_probs.gather(-1, index[:, None]).squeeze(-1)

    def sample(self, n: int, generator: torch.Generator) -> Labels:
        """Draw labels, shape (n, N): one network for each of the n samples, shared by its rows."""
        index = self._networks(n, generator)
        drawn = multinomial(self.log_p[index].exp().flatten(0, 1), 1, generator).view(n, len(self))
        labels: Labels = self.labels[drawn.numpy()]
        return labels

    def logpmf(self, y: Values) -> npt.NDArray[Any]:
        """Log mass of each row's label, as :meth:`log_prob`, by SciPy's name."""
        return _array(self.log_prob(y))

    def pmf(self, y: Values) -> npt.NDArray[Any]:
        """Probability of each row's label."""
        return _array(self.log_prob(y).exp())

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Lay the distribution out as columns, one value for each row.

        They are class, probability (of that class), probability_LABEL of every class, and the entropy, split into
        entropy_noise, entropy_weights and entropy_structure (not where these two are unknown); the rest is for numbers.
        """
        probs = _array(self.probs)
        return {
            "class": self.predict(),
            "probability": probs.max(1),
            **{f"probability_{label}": probs[:, k] for k, label in enumerate(self.labels.tolist())},
            **{f"entropy_{name}": values for name, values in _parts(self.uncertainty()).items()},
        }

    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities in nats, shape (N,)."""
        return _entropy(self.probs)

    @property
    def mc_error(self) -> Tensor:
        """Standard error of ``probs`` due to the finite number of networks, shape (N, C).

        As that of the mean of a continuous target (:attr:`ContinuousPredictive.mc_error`): all rows share the draws,
        and their errors move together; 0 where nothing is drawn.
        """
        return self._error(self.log_p.exp())

    def uncertainty(self) -> Uncertainty:
        r"""Split the entropy by the chain rule of mutual information.

        .. math:: H[p] = E_s H[p_s] + E_g \left(H[p_g] - E_{s \mid g} H[p_s]\right)
                  + \left(H[p] - E_g H[p_g]\right)

        with draws s, each in one structure g, and averaged probabilities p_g within a structure and p over
        all. Of sampled structures, and of several networks that all have the structures by one law, the last two
        terms are divided as estimates divide the variance of the probabilities, summed over classes.
        """
        groups = Groups.of(self.log_weight, self.structure)
        each = self.log_p.exp()  # (S, N, C)
        of_draw = groups.within(_entropy(each))  # (G, N)
        of_group = groups.within(each)  # (G, N, C)
        total = _entropy(groups.across(of_group))  # (N,)
        if (estimates := self._spread(each)) is not None:
            return decompose(groups.across(of_draw), total, estimates.summed(-1))
        given_group = _entropy(of_group)  # (G, N)
        return Uncertainty(
            groups.across(of_draw),
            groups.across((given_group - of_draw).clamp_min(0.0)),
            (total - groups.across(given_group)).clamp_min(0.0),
            total,
        )

    def concatenated(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [tuple(chunk.labels.tolist()) for chunk in chunks])
        return replace(self, log_p=torch.cat([chunk.log_p for chunk in chunks], 1))

    def _index(self, y: Values) -> Tensor:
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(unmask(y))
        if given.shape != self.shape:
            raise DataError(f"labels of shape {given.shape} were given; allowed is {self.shape}: one for each row")
        index_of = {label: index for index, label in enumerate(self.labels.tolist())}
        unknown = sorted({repr(label) for label in given.tolist() if label not in index_of})
        if unknown:
            raise DataError(
                f"labels were given that are not classes: {', '.join(unknown[:10])}; allowed are {self.labels.tolist()}"
            )
        return torch.tensor([index_of[label] for label in given.tolist()], dtype=torch.int64, device="cpu")


def _array(values: Tensor) -> npt.NDArray[Any]:
    return values.detach().numpy()


def _in_kind(given: Values, found: Tensor) -> Any:
    """Return a tensor for a tensor, and an array for anything else."""
    return found if isinstance(given, Tensor) else _array(found)


def _parts(split: Uncertainty) -> dict[str, npt.NDArray[Any]]:
    """Return the parts that are known: without weights and structure where these cannot be told apart."""
    more = {"weights": split.weights, "structure": split.structure} if split.known else {}
    return {name: _array(values) for name, values in {"noise": split.noise, **more}.items()}


def _entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return entropy


def check_alike(chunks: Sequence[Predictive], options: Sequence[object]) -> None:
    """Refuse predictions that are no chunks of rows of one prediction; `options` holds what else must be equal."""
    first = chunks[0]
    same = all(
        torch.equal(chunk.structure, first.structure)
        and torch.allclose(chunk.log_weight, first.log_weight)
        and _equal(chunk.network, first.network)
        for chunk in chunks
    )
    if not same or len(options) < len(chunks) or any(option != options[0] for option in options):
        raise DataError(
            f"{len(chunks)} predictions were given that differ in kind, labels, weights or "
            "structures; allowed are chunks of rows of one prediction: draw every chunk with a "
            "generator that starts at the same seed"
        )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def doubles(values: Values) -> Tensor:
    """Return numbers in double precision, on the CPU."""
    if isinstance(values, Tensor):
        return values.cpu().to(torch.float64)
    copied = np.array(unmask(values), dtype=np.float64)  # series and read-only arrays are no tensors
    return torch.as_tensor(copied, device="cpu")
