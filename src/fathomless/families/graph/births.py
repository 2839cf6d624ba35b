"""Births and deaths of hidden units: moves between networks of different sizes.

Plain functions over arrays, run as they stand or compiled, as those of :mod:`fathomless.families.graph.edges`.
"""

import math
from typing import NamedTuple

import numpy as np

from fathomless.families.graph.edges import counts, may_link
from fathomless.families.graph.grid import draw_newborn, grid_moments, weigh_newborn
from fathomless.families.graph.passes import sum_of_squares
from fathomless.families.graph.state import (
    ALPHA,
    BIAS_SCALE,
    CIBP,
    ECIBP,
    FIXED,
    GAMMA,
    HIDDEN,
    IBP,
    ICP,
    KIND,
    OBSERVED,
    PHI,
    RATE,
    SHAPE,
    UNITS,
    WEIGHT_SCALE,
    Floats,
    State,
)

__all__ = [
    "Change",
    "apply_birth",
    "apply_death",
    "birth_or_death",
    "births_and_deaths",
    "delete",
    "introduce",
    "log_insertion",
    "removable",
    "weigh",
]

_LEAST_VARIANCE, _LEAST_PRECISION = 1e-12, 1e-8  # of a newborn; below them neither births nor deaths


def log_insertion(state: State, order: float, children: np.ndarray, below: np.ndarray, skip: int, alone: bool) -> float:
    """Return by how much the log prior grows with one more hidden unit that has one child, and no parents if `alone`.

    Without `alone` the factors of its parents are left out: they are those with which a birth draws them. Counts, and
    all that is counted here, are as if the unit `skip` were not there.
    """
    units, kind, observed = state.size[UNITS], state.size[KIND], state.size[OBSERVED]
    alpha, gamma, phi = state.law[ALPHA], state.law[GAMMA], state.law[PHI]
    lower, level, many = 0, 0, 0
    above = np.empty(units + 1)
    total = 0.0
    for other in range(units):
        if other == skip:
            continue
        where = state.theta[other]
        lower += may_link(kind, order, where)
        if where > order:
            above[many] = where
            many += 1
        else:
            level += where == order if kind in (CIBP, ECIBP) else 1
        if alone and may_link(kind, where, order):
            extra = phi if other < observed else 0.0
            total += math.log(alpha + below[other] - children[other]) - math.log(alpha + below[other] + extra)
    total += math.log(alpha * gamma) - math.log(alpha + lower - 1)
    if kind == ICP:
        above[many] = 1.0
        cuts = np.sort(above[: many + 1])
        start = order
        for step in range(many + 1):
            total -= (cuts[step] - start) * alpha * gamma / (alpha + level + step)
            start = cuts[step]
    elif kind != IBP:
        total -= alpha * gamma / (alpha + level)
    return total


def removable(state: State, child: int, with_parents: bool) -> np.ndarray:
    """Return the hidden parents of a unit that a death may remove: those that a birth may have brought."""
    units, observed = state.size[UNITS], state.size[OBSERVED]
    found = np.empty(units, dtype=np.int64)
    many = 0
    for unit in range(observed, units):
        if not state.edge[unit, child] or _degree(state, unit) != 1:
            continue
        free = True
        for upper in range(units):
            if state.edge[upper, unit] and (not with_parents or (upper >= observed and _degree(state, upper) == 1)):
                free = False
        if free:
            found[many] = unit
            many += 1
    return found[:many]


def _degree(state: State, unit: int) -> int:
    total = 0
    for lower in range(state.size[UNITS]):
        total += state.edge[unit, lower]
    return total


def births_and_deaths(state: State, tries: int, cells: int, most: int, generator: np.random.Generator) -> None:
    """Try births and deaths of a sweep, in one call; with the Indian chefs every other newborn may have parents."""
    for attempt in range(tries):
        birth_or_death(state, attempt % 2 == 1 and state.size[KIND] == ICP, cells, most, generator)


def birth_or_death(state: State, with_parents: bool, cells: int, most: int, generator: np.random.Generator) -> int:
    """Try to add a hidden unit with one child, or to remove one; return 1 or -1 where it came to that, else 0.

    A birth matches moments: with mean s and variance v of the newborn's output, f ~ U(0, 1) and a random sign,

        W = +-sqrt(f / (rho_i v)),    b_i' = b_i - W s,    rho_i' = rho_i / (1 - f),

    so that the child keeps its mean and variance. Its activations come from a grid around what child and parents want
    (:func:`~fathomless.families.graph.grid.draw_newborn`). A death inverts this.

    Parameters
    ----------
    with_parents : bool
        Newborns choose parents as the prior does, and deaths remove units with parents too; else orphans alone.
    cells : int
        Of the grid.
    most : int
        Hidden units allowed: a truncated prior. -1 is no limit but the room of the arrays.
    """
    units, kind, observed = state.size[UNITS], state.size[KIND], state.size[OBSERVED]
    child = int(generator.random() * (observed if kind == IBP else units))
    if generator.random() < 0.5:
        if state.theta[child] >= 1.0 and kind == ICP:
            return 0
        if units >= len(state.theta) or units - observed == most:
            return 0
        newborn = introduce(state, child, with_parents, generator)
        if newborn < 0:
            return 0
        change = weigh(state, newborn, child, with_parents, cells, True, generator)
        if math.log(1.0 - generator.random()) < change.log_ratio:  # never for NaN
            apply_birth(state, newborn, child, change)
            return 1
        delete(state, newborn)
        return 0
    candidates = removable(state, child, with_parents)
    if len(candidates) == 0:
        return 0
    gone = candidates[int(generator.random() * len(candidates))]
    change = weigh(state, gone, child, with_parents, cells, False, generator)
    if math.log(1.0 - generator.random()) < -change.log_ratio:
        apply_death(state, gone, child, change)
        return -1
    return 0


def introduce(state: State, child: int, with_parents: bool, generator: np.random.Generator) -> int:
    """Put a hidden unit behind the others, with all but its activations; return its number, -1 if there is none."""
    units, observed = state.size[UNITS], state.size[OBSERVED]
    order = state.theta[child] + 1.0
    if state.size[KIND] == ICP:
        order = state.theta[child] + generator.random() * (1.0 - state.theta[child])
        if not state.theta[child] < order < 1.0:
            return -1
    if with_parents:
        children, below = counts(state, -1)
        for upper in range(units):
            if state.theta[upper] > order:
                extra = state.law[PHI] if upper < observed else 0.0
                if generator.random() * (state.law[ALPHA] + below[upper] + extra) < children[upper] + extra:
                    state.edge[upper, units] = True
                    state.weight[upper, units] = state.law[WEIGHT_SCALE] * generator.standard_normal()
    state.theta[units], state.role[units], state.movable[units] = order, HIDDEN, True
    state.edge[units, child] = True
    state.b[units] = state.law[BIAS_SCALE] * generator.standard_normal()
    state.rho[units] = generator.standard_gamma(state.law[SHAPE]) / state.law[RATE]
    state.size[UNITS] += 1
    return int(units)


def delete(state: State, unit: int) -> None:
    """Take a hidden unit out; the last one takes its place."""
    last = state.size[UNITS] - 1
    if unit != last:
        state.theta[unit], state.b[unit], state.rho[unit] = state.theta[last], state.b[last], state.rho[last]
        state.a[unit], state.u[unit], state.e[unit] = state.a[last], state.u[last], state.e[last]
        for other in range(last + 1):
            state.edge[other, unit], state.weight[other, unit] = state.edge[other, last], state.weight[other, last]
        for other in range(last + 1):
            state.edge[unit, other], state.weight[unit, other] = state.edge[last, other], state.weight[last, other]
    for other in range(last + 1):
        state.edge[other, last] = state.edge[last, other] = False
        state.weight[other, last] = state.weight[last, other] = 0.0
    state.size[UNITS] = last


class Change(NamedTuple):
    """What a birth or death would do to the child, and the log of the ratio of the birth; NaN where it is refused."""

    log_ratio: float
    weight: float
    b: float
    rho: float
    e: Floats
    centre: Floats
    noise: Floats


def weigh(
    state: State,
    unit: int,
    child: int,
    with_parents: bool,
    cells: int,
    birth: bool,
    generator: np.random.Generator,
) -> Change:
    """Weigh a graph with a unit against the same one without it.

    Everything is computed on the larger graph for births and deaths alike: the two are inverse by construction. A birth
    draws the weight and the activations, a death takes those that are there.
    """
    rows, rho_unit = state.a.shape[1], state.rho[unit]
    fixed = state.role[child] == FIXED
    centre = np.zeros(rows)  # mu of the newborn
    orphan = True
    for upper in range(state.size[UNITS]):
        if state.edge[upper, unit]:
            orphan = False
            centre += state.weight[upper, unit] * state.u[upper]
    centre += state.b[unit]
    mean, variance, table = grid_moments(centre, state.b[unit], max(rho_unit, _LEAST_PRECISION), cells, orphan)
    noise = np.zeros(rows)
    if birth:
        share, weight, small_b, small_rho = _split(state, child, max(variance, _LEAST_VARIANCE), fixed, generator)
        large_b, large_rho = small_b - weight * mean, small_rho if fixed else small_rho / (1.0 - share)
        small_e = state.e[child].copy()
        both = small_e + weight * mean
    else:
        weight, large_b, large_rho = state.weight[unit, child], state.b[child], state.rho[child]
        odds = weight**2 * variance * large_rho
        share = 0.5 if fixed else odds / (1.0 + odds)
        small_b, small_rho = large_b + weight * mean, large_rho if fixed else large_rho * (1.0 - share)
        both = state.e[child] + weight * state.u[unit]
        small_e = both - weight * mean
    if not (variance >= _LEAST_VARIANCE and rho_unit >= _LEAST_PRECISION and 0.0 < share < 1.0):  # both ways
        return Change(math.nan, weight, small_b, small_rho, small_e, centre, noise)
    total = _log_graph_ratio(state, unit, child, with_parents)
    total += 0.5 * (small_b**2 - large_b**2) / state.law[BIAS_SCALE] ** 2
    if not fixed:
        scale = state.law[WEIGHT_SCALE]
        total += -0.5 * (weight / scale) ** 2 - math.log(scale * math.sqrt(2 * math.pi))
        total += (state.law[SHAPE] - 1) * math.log(large_rho / small_rho) - state.law[RATE] * (large_rho - small_rho)
        total += math.log(abs(weight)) - math.log(share) - 2 * math.log1p(-share)
        total += 0.5 * rows * math.log(large_rho / small_rho)
    total += 0.5 * small_rho * sum_of_squares(small_e)
    if birth:
        total += draw_newborn(both, weight, centre, rho_unit, large_rho, table, noise, generator)
        return Change(total, weight, large_b, large_rho, both, centre, noise)
    noise[:] = state.e[unit] * math.sqrt(rho_unit)
    total += weigh_newborn(both, weight, centre, rho_unit, large_rho, table, noise)
    return Change(total, weight, small_b, small_rho, small_e, centre, noise)


def apply_birth(state: State, unit: int, child: int, change: Change) -> None:
    """Give a newborn its activations, and the child what follows."""
    state.e[unit] = change.noise / math.sqrt(state.rho[unit])
    state.a[unit] = change.centre + state.e[unit]
    state.u[unit] = 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(state.a[unit], -700.0), 700.0)))
    state.weight[unit, child], state.b[child], state.rho[child] = change.weight, change.b, change.rho
    state.e[child] = change.e - change.weight * state.u[unit]


def apply_death(state: State, unit: int, child: int, change: Change) -> None:
    """Remove a unit, and give the child what follows."""
    state.b[child], state.rho[child], state.e[child] = change.b, change.rho, change.e
    delete(state, unit)


def _split(
    state: State, child: int, variance: float, fixed: bool, generator: np.random.Generator
) -> tuple[float, float, float, float]:
    """Draw f and the weight of a newborn; return them with the bias and the precision that the child has now."""
    if fixed:
        return 0.5, state.law[WEIGHT_SCALE] * generator.standard_normal(), state.b[child], state.rho[child]
    share = generator.random()
    weight = math.sqrt(share / (state.rho[child] * variance))
    return share, weight if generator.random() < 0.5 else -weight, state.b[child], state.rho[child]


def _log_graph_ratio(state: State, unit: int, child: int, with_parents: bool) -> float:
    """Return the log of what a birth of `unit` is worth as far as graphs go: prior ratio times ratio of proposals."""
    children, below = counts(state, unit)
    units = state.size[UNITS] - 1  # of the smaller graph
    total = log_insertion(state, state.theta[unit], children, below, unit, not with_parents)
    if state.size[KIND] == ICP:
        total += math.log1p(-state.theta[child])
    if state.size[KIND] != IBP:
        total += math.log(units / (units + 1))
    return total - math.log(len(removable(state, child, with_parents)))
