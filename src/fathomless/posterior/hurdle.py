r"""Predictive distributions with atoms: single values with a positive probability, such as zero in a column of amounts.

A hurdle model (Cragg, *Some statistical models for limited dependent variables*, Econometrica 39, 1971) separates the
probabilities of the atoms from the law of the other values,

.. math:: P(Y = a_j \mid x) = h_j(x), \qquad
          P(Y \le y \mid x) = \sum_{a_j \le y} h_j(x) + h_0(x)\, F(y \mid x), \qquad h_0 = 1 - \sum_j h_j .

The likelihood has one factor for h and one for F. The networks of the fit are therefore trained on the rows without
atoms, and small networks (:class:`AtomNetworks`) on all rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.derived import DerivedPredictive
from fathomless.posterior.distributions import (
    NumberPredictive,
    Values,
    match_type,
    to_double,
)
from fathomless.posterior.lattice import LatticePredictive, crps_of_points
from fathomless.posterior.stacked_networks import FEATURE_LIMIT, StackedNetworks
from fathomless.posterior.uncertainty import Uncertainty
from fathomless.system.draws import multinomial
from fathomless.system.errors import DataError
from fathomless.system.torch_state import load_state

__all__ = ["AtomNetworks", "HurdlePredictive", "read_atom_networks"]

_HIDDEN = 32  # width of the hidden layers
_CLOSE = 1e-7, 1e-6  # largest distance from an atom that is rounding, relative to the atom and to the spread
_LEAST = 1e-300  # least probability of other values in a quotient
_KNOTS = (1e-4, 0.005, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 0.995, 1.0 - 1e-4)


class AtomNetworks(StackedNetworks):
    """K networks with two hidden layers, whose averaged outputs are the logits of A atoms and of other values.

    They start at constant probabilities: their last layer is zero.

    Parameters
    ----------
    networks, inputs : int
        Numbers of networks K and of features D.
    log_share : Tensor, shape (A + 1,)
        Initial log probabilities of other values and of each atom.
    generator : torch.Generator, optional
        Source of the initial weights; zeros if missing.
    """

    log_share: Tensor

    def __init__(self, networks: int, inputs: int, log_share: Tensor, generator: torch.Generator | None = None) -> None:
        super().__init__((networks,), (inputs, _HIDDEN, _HIDDEN, len(log_share)), generator)
        self.register_buffer("log_share", log_share)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all networks, shape (K, N, A + 1), for encoded features (N, D)."""
        # divided first, since ONNX files must not have two nodes that clip the same tensor
        h: Tensor = FEATURE_LIMIT * (x.to(self.log_share) / FEATURE_LIMIT).clamp(-1.0, 1.0)
        logits: Tensor = self.log_share + self.outputs(h)
        return logits

    def log_mass(self, x: Tensor, fold: Tensor | None = None) -> Tensor:
        """Return the log probabilities of other values and of each atom, shape (A + 1, N).

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Encoded features.
        fold : Tensor of int64, shape (N,), optional
            Number of the network that was not fitted to each row; by default the logits of all networks are averaged.
        """
        logits: Tensor = self(x)
        if fold is None:
            averaged = logits.sum(0) / len(logits)
        else:
            averaged = logits[fold, torch.arange(len(fold), device=fold.device)]
        return averaged.log_softmax(-1).T.contiguous()


def read_atom_networks(tensors: Mapping[str, Tensor], atoms: int, inputs: int) -> AtomNetworks | None:
    """Rebuild networks of atoms from their state, (name, tensor); None if there is none.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Result of ``state_dict``.
    atoms, inputs : int
        Numbers of atoms A and of encoded features D of the fit.

    Raises
    ------
    DataError
        If the tensors do not fit together.
    """
    if not tensors:
        return None
    first = tensors.get("weights.0")
    if first is None or first.ndim != 3 or any(value.dtype != torch.float64 for value in tensors.values()):
        raise DataError("the probabilities of its atoms have no networks in double precision")
    built = AtomNetworks(len(first), inputs, torch.zeros(atoms + 1, dtype=torch.float64, device="cpu"))
    load_state(built, tensors, "the networks of its atoms do not have the shapes of its columns and atoms")
    if not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise DataError("the networks of its atoms have values that are not finite")
    return built.requires_grad_(False)


@dataclass(frozen=True, eq=False, repr=False)
class HurdlePredictive(DerivedPredictive):
    """Predictive distribution of one target with atoms.

    Arguments and results have the shape (N,), or (N, 1) if the target was given as a column. Everything is float64 on
    the CPU, in units of the target. :meth:`log_prob` is a log probability at the atoms and a log density between them,
    and :meth:`pmf` and :meth:`pdf` are these parts.

    Attributes
    ----------
    base : ContinuousPredictive, TransformedPredictive or LatticePredictive
        Law of the other values, with one target.
    atoms : tuple of A float
        Atoms, ascending.
    log_mass : Tensor of float64, shape (A + 1, N) or (A + 1, N, 1)
        Log probabilities of other values and of each atom.

    Raises
    ------
    DataError
        If the law has several targets, or the probabilities do not have the shape of its rows.
    """

    _constant: ClassVar[str] = "atoms"

    base: NumberPredictive
    atoms: tuple[float, ...]
    log_mass: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_mass.shape != (len(self.atoms) + 1, *self.base.shape):
            raise DataError(
                f"log_mass was given with shape {tuple(self.log_mass.shape)} for {len(self.atoms)} atoms and rows of "
                f"shape {self.base.shape}; allowed is one row for other values and one for each atom"
            )

    @classmethod
    def of(cls, base: NumberPredictive, atoms: Sequence[float], log_mass: Tensor) -> Self:
        """Return the law with atoms whose other values have the law `base`; see the attributes.

        Probabilities of shape (A + 1,) are the same for all rows.
        """
        log_mass = to_double(log_mass)
        if log_mass.ndim <= len(base.shape):
            log_mass = log_mass.reshape(len(log_mass), -1, *([1] * (len(base.shape) - 1)))
        return cls._derive(base, tuple(atoms), log_mass.expand(len(log_mass), *base.shape))

    @property
    def discrete(self) -> bool:
        """True if the other values lie on a lattice."""
        return self.base.discrete

    @property
    def network_means(self) -> Tensor:
        """Mean of the target under each drawn network, shape (S, N, 1)."""
        other, atoms = self._split()
        means = other.reshape(-1, 1) * self.base.network_means
        for atom, p in atoms:
            means = means + atom * p.reshape(-1, 1)
        return means

    @property
    def nbytes(self) -> int:
        """Size of the parameters of all components in bytes."""
        return self.base.nbytes + self.log_mass.nbytes

    @property
    def mass(self) -> Tensor:
        """Probabilities of other values and of each atom, with the shape of `log_mass`."""
        return self.log_mass.exp()

    @property
    def mean(self) -> Tensor:
        """Mean of the target."""
        other, atoms = self._split()
        mean = other * self.base.mean
        for atom, p in atoms:
            mean = mean + p * atom
        return mean

    @property
    def variance(self) -> Tensor:
        """Variance of the target, by the law of total variance."""
        mean = self.mean
        other, atoms = self._split()
        variance = other * (self.base.variance + (self.base.mean - mean).square())
        for atom, p in atoms:
            variance = variance + p * (atom - mean).square()
        return variance

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target."""
        return self.variance.sqrt()

    @property
    def mc_error(self) -> Tensor:
        """Monte Carlo error of the mean; the probabilities of the atoms have none."""
        return self.mass[0] * self.base.mc_error

    def cdf(self, y: Values) -> Tensor:
        """Probability of values up to y, which broadcasts to the rows."""
        y = self._snap(y)
        other, atoms = self._split()
        total = other * self.base.cdf(y)
        for atom, p in atoms:
            total = total + p * (y >= atom)
        return total.clamp_max(1.0)

    def sf(self, y: Values) -> Tensor:
        """Probability of values above y, accurate in the upper tail."""
        y = self._snap(y)
        other, atoms = self._split()
        total = other * self.base.sf(y)
        for atom, p in atoms:
            total = total + p * (y < atom)
        return total.clamp_max(1.0)

    def cdf_before(self, y: Values) -> Tensor:
        """Probability of values below y."""
        y = self._snap(y)
        other, atoms = self._split()
        total = other * self.base.cdf_before(y)
        for atom, p in atoms:
            total = total + p * (y > atom)
        return total.clamp_max(1.0)

    def icdf(self, p: Values) -> Tensor:
        """Quantile: the smallest value up to which the probability is at least p; p broadcasts to the rows.

        Raises
        ------
        DataError
            If a probability is outside [0, 1] or NaN.
        """
        return self._quantile_of(to_double(p), upper=False)

    def isf(self, q: Values) -> Any:
        """Smallest value that the target exceeds with probability at most q, accurate for small q."""
        return match_type(q, self._quantile_of(to_double(q), upper=True))

    def _quantile_of(self, p: Tensor, *, upper: bool) -> Tensor:
        """Return the value with probability p up to it, or above it; the smaller tail is used for accuracy."""
        if not ((p >= 0.0) & (p <= 1.0)).all():
            raise DataError(
                f"quantiles were requested at levels between {p.min().item()} and {p.max().item()}; allowed are 0 to 1"
            )
        value = self._quantile_of_smaller_tail(p, upper=upper)
        if not isinstance(self.base, LatticePredictive):
            return value
        q = 1.0 - p  # rounding errors of the level may move the quantile by a point

        def is_reached(end: Tensor) -> Tensor:
            below, above = self.cdf(end), self.sf(end)
            if upper:
                return (above <= p) | ((p > 0.5) & (below >= q))
            return (below >= p) | ((p > 0.5) & (above <= q))

        return self.base.first_reached(value, is_reached)

    def _quantile_of_smaller_tail(self, p: Tensor, *, upper: bool) -> Tensor:
        small = p <= 0.5
        if small.all():
            return self._quantile(p, upper=upper)
        if not small.any():
            return self._quantile(1.0 - p, upper=not upper)
        near, far = torch.where(small, p, 0.5), torch.where(small, 0.5, 1.0 - p)
        return torch.where(small, self._quantile(near, upper=upper), self._quantile(far, upper=not upper))

    def _quantile(self, p: Tensor, *, upper: bool) -> Tensor:
        """Return the value with probability p up to it, or above it.

        The quantile lies between two atoms, or is one of them. The probability of the atoms on its side is subtracted,
        the rest is a level of the law of other values, and its quantile is clipped to the interval between the atoms.
        """
        other, atoms = self._split()
        low, high = p.new_full((), -math.inf), p.new_full((), math.inf)
        counted: Any = 0.0
        for atom, mass in atoms:
            below = self.sf(atom) > p if upper else self.cdf(atom) < p  # the atom is below the quantile
            low = torch.where(below, low.clamp_min(atom), low)
            high = torch.where(below, high, high.clamp_max(atom))
            counted = counted + torch.where(below != upper, mass, 0.0)
        level = ((p - counted) / other.clamp_min(_LEAST)).clamp(0.0, 1.0)
        value = self.base.isf(level) if upper else self.base.icdf(level)
        return torch.minimum(torch.maximum(value, low), high)

    def log_prob(self, y: Values) -> Tensor:
        """Log probability of an atom, or log density of another value, of each row in nats, shape (N,).

        If the other values lie on a lattice, it is a log probability for all values.

        Raises
        ------
        DataError
            If y does not have one value for each row.
        """
        return self.log_prob_and_error(self._require_shape(y, "row"))[0]

    def log_prob_and_error(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return :meth:`log_prob` and its Monte Carlo error, both (N,), in nats."""
        y = self._snap(y)
        log_p, error = self.base.log_prob_and_error(y)
        other, *each = self.log_mass.reshape(len(self.log_mass), -1).unbind(0)
        log_p = other + log_p
        for atom, log_mass in zip(self.atoms, each, strict=True):
            at = y.reshape(-1) == atom
            both = torch.logaddexp(log_p, log_mass) if self.discrete else log_mass
            error = torch.where(at, error * (log_p - both).exp() if self.discrete else 0.0, error)
            log_p = torch.where(at, both, log_p)
        return log_p, error

    def logpmf(self, y: Values) -> Any:
        """Log probability of the values y in nats, minus infinity for values without one; y broadcasts to the rows."""
        values = self._snap(y)
        other, atoms = self._split()
        probability = other * self.base.pmf(values) if isinstance(self.base, LatticePredictive) else 0.0 * other
        for atom, p in atoms:
            probability = probability + p * (values == atom)
        return match_type(y, probability.log())

    def pmf(self, y: Values) -> Any:
        """Probability of the values y, 0 for values without one; y broadcasts to the rows."""
        log_p = self.logpmf(y)
        return log_p.exp() if isinstance(y, Tensor) else np.exp(log_p)

    def logpdf(self, y: Values) -> Any:
        """Log density of the continuous part in nats, which integrates to the probability of other values.

        Raises
        ------
        DataError
            If the other values lie on a lattice.
        """
        if isinstance(self.base, LatticePredictive):
            raise DataError("the target lies on a lattice, and has no density; use logpmf")
        return match_type(y, self.log_mass[0] + self.base.logpdf(to_double(y)))  # type: ignore[attr-defined]

    def pdf(self, y: Values) -> Any:
        """Density of the continuous part; see :meth:`logpdf`."""
        log_p = self.logpdf(y)
        return log_p.exp() if isinstance(y, Tensor) else np.exp(log_p)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from the joint law, shape (n, N) or (n, N, 1); the rows of a sample share one drawn network."""
        values = self.base.sample(n, generator)
        assert isinstance(values, Tensor)
        choice = multinomial(self.mass.reshape(len(self.mass), -1).T, n, generator)  # (N, n)
        choice = choice.T.reshape(values.shape)
        for j, atom in enumerate(self.atoms, start=1):
            values = torch.where(choice == j, atom, values)
        return values

    def crps(self, y: Values) -> Tensor:
        """Continuous ranked probability score of each row's target, with the shape of the rows, in units of y.

        It is computed by quadrature (:func:`fathomless.posterior.metrics.crps_law`), whose panels end at the atoms; on
        a lattice it is the sum over points.
        """
        y = to_double(y).reshape(self.shape)
        if isinstance(self.base, LatticePredictive):
            return crps_of_points(self, self.base.round(y), self.base.step)
        from fathomless.posterior import metrics  # imports SciPy, which predictions do not need

        knots = [self.base.icdf(level).detach() for level in _KNOTS]
        knots += [torch.full(self.shape, atom, dtype=torch.float64, device="cpu") for atom in self.atoms]
        return torch.as_tensor(metrics.crps_law(y, self, knots=torch.stack(knots)), device="cpu")

    def uncertainty(self) -> Uncertainty:
        """Split the variance; weights and structure are those of the law of other values.

        The networks change the mean by their probability times the mean of other values. The variance of the choice
        between atoms and other values is noise.
        """
        parts, factor, total = self.base.uncertainty(), self.mass[0].square(), self.variance
        weights, structure = factor * parts.weights, factor * parts.structure
        among_networks = factor * (parts.total - parts.noise)  # known even if the two parts are not
        noise = (total - among_networks).clamp_min(0.0)
        spread = None if parts.spread is None else type(parts.spread)(*(factor * part for part in parts.spread))
        return Uncertainty(noise, weights, structure, total, spread=spread)

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns; see :meth:`ContinuousPredictive.columns`.

        There is one column more for each atom, ``probability_VALUE``.
        """
        prefix = "" if self.squeeze else f"{(list(targets) or ['y0'])[0]}_"
        columns = {"mean": self.mean, "std": self.std}
        for level in levels:
            low, high = self.interval(level)
            columns |= {f"lower_{100 * level:.12g}": low, f"upper_{100 * level:.12g}": high}
        parts = self.uncertainty()
        columns["variance_noise"] = parts.noise
        if parts.known:
            columns |= {"variance_weights": parts.weights, "variance_structure": parts.structure}
        columns |= {f"probability_{atom:.12g}": p for atom, p in zip(self.atoms, self.mass[1:], strict=True)}
        return {f"{prefix}{name}": values.detach().reshape(len(self)).numpy() for name, values in columns.items()}

    def _constants(self) -> tuple[Any, ...]:
        return (self.atoms,)

    def _join(self, base: NumberPredictive, others: Sequence[Self]) -> Self:
        log_mass = torch.cat([self.log_mass, *(other.log_mass for other in others)], 1)
        return replace(self, base=base, log_mass=log_mass)

    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""
        return replace(self, base=self.base.take(rows), log_mass=self.log_mass[:, rows])

    def _snap(self, y: Values) -> Tensor:
        """Return values in double precision, with those that equal an atom up to rounding replaced by the atom.

        Targets may be stored in single precision.
        """
        y = to_double(y)
        for atom in self.atoms:
            tolerance = (_CLOSE[1] * self._spread_of_others).clamp_max(_CLOSE[0] * abs(atom))
            y = torch.where((y - atom).abs() <= tolerance, atom, y)
        return y

    @cached_property
    def _spread_of_others(self) -> Tensor:
        return self.base.std.detach()

    def _split(self) -> tuple[Tensor, list[tuple[float, Tensor]]]:
        """Return the probability of other values, and each atom with its probability."""
        other, *each = self.log_mass.exp().unbind(0)
        return other, list(zip(self.atoms, each, strict=True))
