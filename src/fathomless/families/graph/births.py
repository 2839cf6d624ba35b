"""Birth and death proposals for hidden units: reversible-jump moves between networks of different sizes.

Plain functions over arrays, interpreted or compiled, as in :mod:`fathomless.families.graph.edges`.
"""

import math
from typing import NamedTuple

import numpy as np

from fathomless.families.graph.edges import count_links, may_link
from fathomless.families.graph.fast import add_scaled, assign, rank, sigmoids
from fathomless.families.graph.grid import draw_activations, grid_moments, weigh_activations
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
    "add_unit",
    "apply_birth",
    "apply_death",
    "evaluate_change",
    "find_removable",
    "log_insertion",
    "remove_unit",
    "try_births_and_deaths",
]

_LEAST_VARIANCE, _LEAST_PRECISION = 1e-12, 1e-8  # of a proposed unit; births and deaths below them are rejected


def log_insertion(state: State, order: float, children: np.ndarray, below: np.ndarray, skip: int, alone: bool) -> float:
    """Return the change of the log prior when a hidden unit with one child, and no parents if `alone`, is inserted.

    Without `alone` the factors of its parents are omitted: they cancel with the proposal, which draws parents from the
    prior. All counts exclude the unit `skip`.
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
        start = order
        ranked = rank(above, many + 1)
        for step in range(many + 1):
            cut = above[ranked[step]]
            total -= (cut - start) * alpha * gamma / (alpha + level + step)
            start = cut
    elif kind != IBP:
        total -= alpha * gamma / (alpha + level)
    return total


def find_removable(state: State, child: int, with_parents: bool) -> np.ndarray:
    """Return the hidden parents of a unit that a death may remove: those that a birth could have added."""
    units, observed = state.size[UNITS], state.size[OBSERVED]
    candidates = np.empty(units, dtype=np.int64)
    many = 0
    for unit in range(observed, units):
        # only units whose single child is `child`
        if not state.edge[unit, child] or _count_children(state, unit) != 1:
            continue
        free = True  # parents must be allowed, and must keep a child without the unit
        for upper in range(units):
            if state.edge[upper, unit] and (
                not with_parents or (upper >= observed and _count_children(state, upper) == 1)
            ):
                free = False
        if free:
            candidates[many] = unit
            many += 1
    return candidates[:many]


def _count_children(state: State, unit: int) -> int:
    total = 0
    for lower in range(state.size[UNITS]):
        total += state.edge[unit, lower]
    return total


def try_births_and_deaths(
    state: State, with_parents: np.ndarray, cells: int, most: int, generator: np.random.Generator
) -> int:
    """Propose to add a hidden unit with one child, or to remove one, several times; return births less deaths.

    A birth matches moments: with mean s and variance v of the new unit's output, f ~ U(0, 1) and a random sign,

        W = +-sqrt(f / (rho_i v)),    b_i' = b_i - W s,    rho_i' = rho_i / (1 - f),

    so that the child keeps its mean and variance. The activations of the new unit are drawn on a grid from their
    approximate conditional given its child and parents
    (:func:`~fathomless.families.graph.grid.draw_activations`). A death is the inverse move.

    Parameters
    ----------
    with_parents : (P,) of bool
        For each proposal, True to draw parents of new units from the prior, and to let deaths remove units with
        parents; False for units without parents only.
    cells : int
        Number of cells of the grid.
    most : int
        Largest number of hidden units (a truncated prior); -1 for no limit except the capacity of the arrays.
    """
    total = 0
    for parents in with_parents:
        units = state.size[OBSERVED] if state.size[KIND] == IBP else state.size[UNITS]
        child = int(generator.random() * units)
        birth = generator.random() < 0.5
        if birth:
            unit = _add_if_allowed(state, child, parents, most, generator)
        else:
            unit = _choose_removable(state, child, parents, generator)
        if unit < 0:
            continue
        change = evaluate_change(state, unit, child, parents, cells, birth, generator)
        log_ratio = change.log_ratio if birth else -change.log_ratio
        accepted = math.log(1.0 - generator.random()) < log_ratio  # False for NaN
        if birth and accepted:
            apply_birth(state, unit, child, change)
            total += 1
        elif birth:
            remove_unit(state, unit)
        elif accepted:
            apply_death(state, unit, child, change)
            total -= 1
    return total


def _add_if_allowed(state: State, child: int, with_parents: bool, most: int, generator: np.random.Generator) -> int:
    """Append a hidden unit, and return its index; -1 if there may be no more units or none above the child."""
    units = state.size[UNITS]
    if state.theta[child] >= 1.0 and state.size[KIND] == ICP:
        return -1
    if units >= len(state.theta) or units - state.size[OBSERVED] == most:
        return -1
    return add_unit(state, child, with_parents, generator)


def _choose_removable(state: State, child: int, with_parents: bool, generator: np.random.Generator) -> int:
    """Return one of the units that a death may remove, or -1."""
    candidates = find_removable(state, child, with_parents)
    if len(candidates) == 0:
        return -1
    return int(candidates[int(generator.random() * len(candidates))])


def add_unit(state: State, child: int, with_parents: bool, generator: np.random.Generator) -> int:
    """Append a hidden unit with order, parents, bias and precision; return its index, or -1 without a valid order."""
    units, observed = state.size[UNITS], state.size[OBSERVED]
    order = state.theta[child] + 1.0
    if state.size[KIND] == ICP:
        order = state.theta[child] + generator.random() * (1.0 - state.theta[child])
        if not state.theta[child] < order < 1.0:
            return -1
    if with_parents:
        children, below = count_links(state, -1)
        for upper in range(units):
            if state.theta[upper] > order:
                extra = state.law[PHI] if upper < observed else 0.0
                if generator.random() * (state.law[ALPHA] + below[upper] + extra) < children[upper] + extra:
                    state.edge[upper, units] = True
                    state.weight[upper, units] = state.law[WEIGHT_SCALE] * generator.standard_normal()
    state.theta[units] = order
    state.role[units] = HIDDEN
    state.movable[units] = True
    state.edge[units, child] = True
    state.b[units] = state.law[BIAS_SCALE] * generator.standard_normal()
    state.rho[units] = generator.standard_gamma(state.law[SHAPE]) / state.law[RATE]
    state.size[UNITS] += 1
    return int(units)


def remove_unit(state: State, unit: int) -> None:
    """Remove a hidden unit; the last unit moves to its index."""
    last = state.size[UNITS] - 1
    if unit != last:
        state.theta[unit], state.b[unit], state.rho[unit] = state.theta[last], state.b[last], state.rho[last]
        assign(state.a[unit], state.a[last])
        assign(state.u[unit], state.u[last])
        assign(state.e[unit], state.e[last])
        for other in range(last + 1):
            state.edge[other, unit], state.weight[other, unit] = state.edge[other, last], state.weight[other, last]
        for other in range(last + 1):
            state.edge[unit, other], state.weight[unit, other] = state.edge[last, other], state.weight[last, other]
    for other in range(last + 1):
        state.edge[other, last] = state.edge[last, other] = False
        state.weight[other, last] = state.weight[last, other] = 0.0
    state.size[UNITS] = last


class Change(NamedTuple):
    """New values of the child after a birth or death, and the log acceptance ratio of the birth (NaN: reject)."""

    log_ratio: float
    weight: float
    b: float
    rho: float
    e: Floats
    centre: Floats
    noise: Floats


def evaluate_change(
    state: State,
    unit: int,
    child: int,
    with_parents: bool,
    cells: int,
    birth: bool,
    generator: np.random.Generator,
) -> Change:
    """Compute the log acceptance ratio of the birth of a unit, and the child's values after the move.

    Births and deaths are both evaluated on the larger graph, so that they are exact inverses. A birth draws the weight
    and the activations; a death uses the current ones.
    """
    rows = state.a.shape[1]
    rho_unit = state.rho[unit]
    fixed = state.role[child] == FIXED
    centre = np.full(rows, state.b[unit])  # mean of the activations of `unit`
    orphan = True
    for upper in range(state.size[UNITS]):
        if state.edge[upper, unit]:
            orphan = False
            add_scaled(centre, state.weight[upper, unit], state.u[upper])
    mean, variance, table = grid_moments(centre, state.b[unit], max(rho_unit, _LEAST_PRECISION), cells, orphan)
    noise, ones = np.zeros(rows), np.ones(rows)
    small_e = state.e[child].copy()
    both = small_e.copy()  # residual of the child without the unit
    if birth:
        share, weight, small_b, small_rho = _split(state, child, max(variance, _LEAST_VARIANCE), fixed, generator)
        large_b = small_b - weight * mean
        large_rho = small_rho if fixed else small_rho / (1.0 - share)
        add_scaled(both, weight * mean, ones)
    else:
        weight, large_b, large_rho = state.weight[unit, child], state.b[child], state.rho[child]
        odds = weight**2 * variance * large_rho
        share = 0.5 if fixed else odds / (1.0 + odds)
        small_b = large_b + weight * mean
        small_rho = large_rho if fixed else large_rho * (1.0 - share)
        add_scaled(both, weight, state.u[unit])
        assign(small_e, both)
        add_scaled(small_e, -weight * mean, ones)
    if not (
        variance >= _LEAST_VARIANCE and rho_unit >= _LEAST_PRECISION and 0.0 < share < 1.0
    ):  # for births and deaths alike
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
        total += draw_activations(both, weight, centre, rho_unit, large_rho, table, noise, generator)
        return Change(total, weight, large_b, large_rho, both, centre, noise)
    add_scaled(noise, math.sqrt(rho_unit), state.e[unit])
    total += weigh_activations(both, weight, centre, rho_unit, large_rho, table, noise)
    return Change(total, weight, small_b, small_rho, small_e, centre, noise)


def apply_birth(state: State, unit: int, child: int, change: Change) -> None:
    """Set the activations of the new unit, and the new values of the child."""
    a, u, e = state.a[unit], state.u[unit], state.e[unit]
    assign(a, change.centre)
    add_scaled(a, 1.0 / math.sqrt(state.rho[unit]), change.noise)
    assign(e, a)
    add_scaled(e, -1.0, change.centre)
    sigmoids(a, u, np.empty(len(a)))
    state.weight[unit, child], state.b[child], state.rho[child] = change.weight, change.b, change.rho
    assign(state.e[child], change.e)
    add_scaled(state.e[child], -change.weight, u)


def apply_death(state: State, unit: int, child: int, change: Change) -> None:
    """Remove a unit, and set the new values of the child."""
    state.b[child], state.rho[child] = change.b, change.rho
    assign(state.e[child], change.e)
    remove_unit(state, unit)


def _split(
    state: State, child: int, variance: float, fixed: bool, generator: np.random.Generator
) -> tuple[float, float, float, float]:
    """Draw f and the weight of a new unit; return them with the current bias and precision of the child."""
    if fixed:
        return 0.5, state.law[WEIGHT_SCALE] * generator.standard_normal(), state.b[child], state.rho[child]
    share = generator.random()
    weight = math.sqrt(share / (state.rho[child] * variance))
    return share, weight if generator.random() < 0.5 else -weight, state.b[child], state.rho[child]


def _log_graph_ratio(state: State, unit: int, child: int, with_parents: bool) -> float:
    """Return the graph terms of the log acceptance ratio of a birth: log prior ratio plus log proposal ratio."""
    children, below = count_links(state, unit)
    units = state.size[UNITS] - 1  # of the smaller graph
    total = log_insertion(state, state.theta[unit], children, below, unit, not with_parents)
    if state.size[KIND] == ICP:
        total += math.log1p(-state.theta[child])
    if state.size[KIND] != IBP:
        total += math.log(units / (units + 1))
    return total - math.log(len(find_removable(state, child, with_parents)))
