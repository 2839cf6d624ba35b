"""A test of any sampler: its chains and the model's own draws must have one joint law of parameters and data.

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
    """One statistic: its mean in forward draws and in chains.

    Attributes
    ----------
    name : str
        Which.
    forward, chains : float
        Means.
    error : float
        Standard error of their difference.
    z : float
        The difference in standard errors.
    p : float
        Two-sided, by Student's law with one degree of freedom less than there are chains.
    """

    name: str
    forward: float
    chains: float
    error: float
    z: float
    p: float


@dataclass(frozen=True)
class JointTest:
    """What the test found, a line for each statistic."""

    comparisons: tuple[Comparison, ...]

    @property
    def p(self) -> float:
        """The smallest p-value, times the number of statistics (Bonferroni), at most 1."""
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

    Chains start at a forward draw each, so that a right sampler has the same law at every step. Standard errors are
    those of independent chains, not of batches within one: batches that are shorter than the slowest mode lie.

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
        How many chains, at least 3, and steps of each.
    generator : numpy.random.Generator
        Source of randomness.
    forward_draws : int, optional
        By default as many as all steps together.

    Raises
    ------
    DataError
        If there are fewer than three chains, or a statistic is not finite.

    Examples
    --------
    A normal mean with a normal prior, sampled exactly:

    >>> step = lambda s, g: (g.normal(s[1] / 2, 0.5**0.5), s[1])
    >>> found = joint_distribution_test(
    ...     lambda g: (m := g.normal(), g.normal(m)), step, lambda s, g: (s[0], g.normal(s[0])),
    ...     lambda s: {"mean": s[0], "square": s[0] ** 2, "data": s[1] ** 2}, 20, 200, np.random.default_rng(0))
    >>> found.p > 0.01
    True
    """
    chains, draws = whole("chains", chains, least=3), whole("draws", draws)
    many = whole("forward_draws", chains * draws if forward_draws is None else forward_draws, least=2)
    alone = _table([statistics(forward(generator)) for _ in range(many)])
    means = []
    for _ in range(chains):
        state, seen = forward(generator), []
        for _ in range(draws):
            state = redraw(transition(state, generator), generator)
            seen.append(statistics(state))
        means.append({name: float(values.mean()) for name, values in _table(seen).items()})
    together = _table(means)
    return JointTest(tuple(_compare(name, alone[name], together[name]) for name in alone))


def _table(rows: list[Mapping[str, float]] | list[dict[str, float]]) -> dict[str, np.ndarray]:
    table = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    for name, values in table.items():
        if not np.isfinite(values).all():
            raise DataError(
                f"the statistic {name!r} was {values[~np.isfinite(values)][0]}; only finite ones are allowed"
            )
    return table


def _compare(name: str, forward: np.ndarray, chains: np.ndarray) -> Comparison:
    error = math.sqrt(forward.var(ddof=1) / len(forward) + chains.var(ddof=1) / len(chains))
    gap = float(chains.mean() - forward.mean())
    same = abs(gap) <= 1e-12 * max(abs(float(forward.mean())), abs(float(chains.mean())))  # a constant, up to rounding
    z = 0.0 if same else (gap / error if error > 0 else math.inf)
    p = float(2 * stdtr(len(chains) - 1, -abs(z)))
    return Comparison(name, float(forward.mean()), float(chains.mean()), error, z, p)
