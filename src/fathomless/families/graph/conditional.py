"""Distributions of cells of a table given the other cells of their rows, by the density of a table.

Units are standardised, see :mod:`fathomless.families.graph.density`. A cell that is NaN is unknown.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import logsumexp, ndtr

from fathomless.data.targets import TargetScale
from fathomless.families.graph.density import LogitScale, Mixture, check_levels, mixture_quantiles
from fathomless.families.graph.state import Floats
from fathomless.system.errors import DataError

__all__ = ["ConditionalColumn", "effective_components", "fill", "sample_missing"]


@dataclass(frozen=True, eq=False)
class ConditionalColumn:
    """Distribution of one column given the other cells of N rows, in the unit of the column.

    Attributes
    ----------
    mixture : Mixture
        Density of the table, in standardised units.
    column : int
        Position of the column.
    x : ndarray, shape (N, D)
        Standardised rows; NaN in the column, and in cells that are unknown.
    target : TargetScale
        Means and scales of the columns.
    """

    mixture: Mixture = field(repr=False)
    column: int
    x: Floats = field(repr=False)
    target: TargetScale = field(repr=False)

    @property
    def effective(self) -> Floats:
        """Effective number of mixture components of each row, shape (N,). Below about 50 the others are inaccurate."""
        return effective_components(self.mixture, self.x)

    @property
    def mean(self) -> Floats:
        """Conditional mean of each row, shape (N,)."""
        values = self.mixture.expect(self.column)
        found = np.concatenate([weights @ values for _, weights in self.mixture.given(self.x)])
        return self._decode(found)

    def cdf(self, x: Floats) -> Floats:
        """Return the conditional distribution function at one value, or one for each row, shape (N,)."""
        value = self._logits(x)
        parts = [self._below(weights, value[rows]) for rows, weights in self.mixture.given(self.x)]
        return np.concatenate(parts)

    def log_prob(self, x: Floats) -> Floats:
        """Return the log density at one value, or one for each row, in nats, shape (N,); -inf outside the support."""
        value = self._logits(x)
        inside = np.isfinite(value)
        a = np.where(inside, value, 0.0)
        means, precisions = self.mixture.marginal(self.column)
        constant = 0.5 * np.log(precisions / (2.0 * np.pi))
        found = np.empty(len(a))
        for rows, weights in self.mixture.given(self.x):
            with np.errstate(divide="ignore"):
                logs = np.log(weights) + constant - 0.5 * precisions * (a[rows, None] - means) ** 2
            found[rows] = logsumexp(logs, axis=1)
        found += self._scale.log_jacobian(a[:, None])
        return np.where(inside, found - np.log(self.target.scale[self.column]), -np.inf)

    def icdf(self, q: Floats) -> Floats:
        """Return conditional quantiles of 0 < q < 1, one level or one for each row, shape (N,)."""
        level = self._by_row("q", q)
        check_levels(q)
        means, precisions = self.mixture.marginal(self.column)
        parts = [mixture_quantiles(w, means, precisions, level[rows]) for rows, w in self.mixture.given(self.x)]
        return self._decode(self._scale.decode(np.concatenate(parts)))

    def _below(self, weights: Floats, a: Floats) -> Floats:
        """Return the distribution function at logits a (n,), given the weights of the components (n, S M)."""
        means, precisions = self.mixture.marginal(self.column)
        return np.asarray((weights * ndtr((a[:, None] - means) * np.sqrt(precisions))).sum(1))

    def _logits(self, x: Floats) -> Floats:
        """Return the logits of values in the unit of the column, one or one for each row, (N,)."""
        value = self._by_row("x", x)
        if np.isnan(value).any():
            raise DataError("x has missing values; give numbers")
        return self._scale.encode((value - self.target.mean[self.column]) / self.target.scale[self.column])

    def _by_row(self, name: str, value: Floats) -> Floats:
        """Return one value for each row, (N,)."""
        array = np.asarray(value, dtype=float)
        if array.shape not in ((), (len(self.x),)):
            raise DataError(
                f"{name} has shape {array.shape}; one number, or one for each of the {len(self.x)} rows, is needed"
            )
        return np.broadcast_to(array, (len(self.x),))

    @property
    def _scale(self) -> LogitScale:
        """Map between standardised values of the column and logits."""
        return self.mixture.scale.column(self.column)

    def _decode(self, z: Floats) -> Floats:
        """Return standardised values in the unit of the column."""
        return np.asarray(self.target.mean[self.column] + self.target.scale[self.column] * z)


def effective_components(mixture: Mixture, x: Floats) -> Floats:
    """Return the effective number of components of each row, given its known cells, (N,)."""
    return np.concatenate([1.0 / (weights**2).sum(1) for _, weights in mixture.given(x)])


def fill(mixture: Mixture, x: Floats) -> Floats:
    """Replace unknown cells of rows (N, D) by their means given the known cells."""
    filled = x.copy()
    means = np.stack([mixture.expect(column) for column in range(x.shape[1])], 1)  # (S M, D)
    for rows, weights in mixture.given(x):
        filled[rows] = np.where(np.isnan(x[rows]), weights @ means, x[rows])
    return filled


def sample_missing(mixture: Mixture, x: Floats, n: int, generator: np.random.Generator) -> Floats:
    """Draw the unknown cells of rows (N, D) given the known cells, n times: (n, N, D)."""
    networks, draws, columns = mixture.means.shape
    means = mixture.means.reshape(-1, columns)
    deviation = mixture.precisions.repeat(draws, axis=0) ** -0.5
    filled = np.tile(x, (n, 1, 1))
    for rows, weights in mixture.given(x, n * columns):
        cumulative = weights.cumsum(1)
        uniform = generator.random((len(weights), n)) * cumulative[:, -1:]
        noise = generator.standard_normal((n, len(weights), columns))
        place = np.stack(
            [np.searchsorted(line, u, side="right") for line, u in zip(cumulative, uniform, strict=True)], 1
        )
        place = place.clip(max=networks * draws - 1)
        drawn = means[place] + deviation[place] * noise
        filled[:, rows] = np.where(np.isnan(x[rows]), mixture.scale.decode(drawn), x[rows])
    return filled
