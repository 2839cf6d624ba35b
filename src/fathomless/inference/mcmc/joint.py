"""Joint distribution test of samplers: chains and forward draws must have the same law of parameters and data.

References
----------
Geweke (2004), Getting it right: joint distribution tests of posterior simulators.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import stdtr

from fathomless.system.checks import whole
from fathomless.system.errors import DataError

__all__ = ["Comparison", "JointTest", "joint_distribution_test"]

T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    """Comparison of one statistic: its mean in forward draws and in chains.

    Attributes
    ----------
    name : str
        Name of the statistic.
    forward, chains : float
        Means.
    error : float
        Standard error of their difference.
    z : float
        Difference in standard errors.
    p : float
        Two-sided p-value, by Student's t with one degree of freedom less than the number of chains.
    """

    name: str
    forward: float
    chains: float
    error: float
    z: float
    p: float


@dataclass(frozen=True)
class JointTest:
    """Result of the test, with a comparison for each statistic."""

    comparisons: tuple[Comparison, ...]

    @property
    def p(self) -> float:
        """Smallest p-value, times the number of statistics (Bonferroni), at most 1."""
        return min(1.0, len(self.comparisons) * min(line.p for line in self.comparisons))

    def __str__(self) -> str:
        lines = [f"{'statistic':<20} {'forward':>10} {'chains':>10} {'error':>9} {'z':>6} {'p':>8}"]
        lines += [
            f"{c.name:<20} {c.forward:>10.4g} {c.chains:>10.4g} {c.error:>9.2g} {c.z:>6.2f} {c.p:>8.2g}"
            for c in self.comparisons
        ]
        return "\n".join([*lines, f"smallest p, corrected for {len(self.comparisons)} statistics: {self.p:.2g}"])


def joint_distribution_test(
    forward: Callable[[np.random.Generator], T],
    transition: Callable[[T, np.random.Generator], T],
    redraw: Callable[[T, np.random.Generator], T],
    statistics: Callable[[T], Mapping[str, float]],
    chains: int,
    draws: int,
    generator: np.random.Generator,
    *,
    forward_draws: int | None = None,
) -> JointTest:
    """Compare draws of parameters and data with chains that alternate a sampler's step and a redraw of the data.

    Each chain starts at a forward draw, so that a correct sampler has the same law at every step. Standard errors are
    those of independent chains rather than of batches within a chain, which would be too small if batches are shorter
    than the slowest mode.

    Parameters
    ----------
    forward : callable
        (generator) -> state: parameters from the prior, then data.
    transition : callable
        (state, generator) -> state: one step of the sampler, given the data.
    redraw : callable
        (state, generator) -> state: new data given everything else.
    statistics : callable
        (state) -> numbers by name. They must not depend on anything that has no meaning, such as names of hidden units.
    chains, draws : int
        Number of chains, at least 3, and number of steps of each.
    generator : numpy.random.Generator
        Random generator.
    forward_draws : int, optional
        Number of forward draws; by default that of the steps of all chains.

    Raises
    ------
    DataError
        If there are fewer than three chains, or a statistic is not finite.

    Examples
    --------
    A normal mean with a normal prior, sampled exactly:

    >>> step = lambda s, g: (g.normal(s[1] / 2, 0.5**0.5), s[1])
    >>> result = joint_distribution_test(
    ...     lambda g: (m := g.normal(), g.normal(m)), step, lambda s, g: (s[0], g.normal(s[0])),
    ...     lambda s: {"mean": s[0], "square": s[0] ** 2, "data": s[1] ** 2}, 20, 200, np.random.default_rng(0))
    >>> result.p > 0.01
    True
    """
    chains = whole("chains", chains, least=3)
    draws = whole("draws", draws)
    count = whole("forward_draws", chains * draws if forward_draws is None else forward_draws, least=2)
    forward_values = _table([statistics(forward(generator)) for _ in range(count)])
    means = []
    for _ in range(chains):
        state = forward(generator)
        steps = []
        for _ in range(draws):
            state = redraw(transition(state, generator), generator)
            steps.append(statistics(state))
        means.append({name: float(values.mean()) for name, values in _table(steps).items()})
    chain_means = _table(means)
    return JointTest(tuple(_compare(name, forward_values[name], chain_means[name]) for name in forward_values))


def _table(rows: list[Mapping[str, float]] | list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return the values of each statistic as an array, and check that they are finite."""
    table = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    for name, values in table.items():
        if not np.isfinite(values).all():
            raise DataError(
                f"the statistic {name!r} was {values[~np.isfinite(values)][0]}; only finite ones are allowed"
            )
    return table


def _compare(name: str, forward: np.ndarray, chains: np.ndarray) -> Comparison:
    """Compare the values of a statistic in forward draws with its means over chains."""
    error = math.sqrt(forward.var(ddof=1) / len(forward) + chains.var(ddof=1) / len(chains))
    gap = float(chains.mean() - forward.mean())
    same = abs(gap) <= 1e-12 * max(abs(float(forward.mean())), abs(float(chains.mean())))  # a constant, up to rounding
    if same:
        z = 0.0
    elif error > 0:
        z = gap / error
    else:
        z = math.inf
    p = float(2 * stdtr(len(chains) - 1, -abs(z)))
    return Comparison(name, float(forward.mean()), float(chains.mean()), error, z, p)
