"""Gibbs updates of parents, weights, biases and precisions; weights and biases are collapsed for the parents.

Plain functions over arrays, in the subset of Python that numba compiles. They run interpreted or compiled, with the
same distribution (:mod:`fathomless.families.graph.engine`). Loops over rows are in
:mod:`fathomless.families.graph.passes`. Functions change the state in place.
"""

import math

import numpy as np

from fathomless.families.graph.passes import refresh_residual, sum_of_squares
from fathomless.families.graph.state import (
    ALPHA,
    BIAS_SCALE,
    CIBP,
    COVARIATE,
    ECIBP,
    FIXED,
    IBP,
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

__all__ = ["count_links", "draw_edges", "draw_precisions", "may_link"]


def may_link(kind: int, upper: float, lower: float) -> bool:
    """Return True if a unit of order `upper` may be a parent of a unit of order `lower`."""
    if kind in (CIBP, IBP):
        return upper == lower + 1.0
    return upper > lower


def count_links(state: State, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of children m and of eligible children d of each unit, without `skip` (-1: all units)."""
    units, kind = state.size[UNITS], state.size[KIND]
    children = np.zeros(units, dtype=np.int64)
    below = np.zeros(units, dtype=np.int64)
    for upper in range(units):
        if upper == skip:
            continue
        for lower in range(units):
            if lower != skip:
                children[upper] += state.edge[upper, lower]
                below[upper] += may_link(kind, state.theta[upper], state.theta[lower])
    return children, below


def draw_edges(state: State, gram: Floats, cross: Floats, generator: np.random.Generator) -> int:
    """Draw parents with weights and biases integrated out, then weights and biases; return the number of changes.

    Given parents, log p(a_i) = -sum log L_jj + |z|^2 / 2 + const, with M = Lambda + rho G = L L', z = L^-1 rho c. With
    P = M^-1 and w = P rho c, adding k changes it by -log(s)/2 + (rho c_k - g' w)^2 / (2 s) - log s_W, where
    g = rho x' u_k and s = 1 / s_W^2 + rho u_k' u_k - g' P g. Removing k changes it by minus
    log(P_kk) / 2 + w_k^2 / (2 P_kk) - log s_W.

    Parameters
    ----------
    gram : (K + 1, K + 1)
        Inner products over rows of (1, u), the constant and the outputs of the units.
    cross : (K + 1, K)
        Inner products of (1, u) with the activations.
    """
    units = state.size[UNITS]
    children, below = count_links(state, -1)
    changed = 0
    for unit in range(units):
        if state.role[unit] != COVARIATE:
            changed += _draw_parents(state, unit, gram, cross, children, below, generator)
            refresh_residual(state, unit)
    return changed


def _draw_parents(
    state: State,
    unit: int,
    gram: Floats,
    cross: Floats,
    children: np.ndarray,
    below: np.ndarray,
    generator: np.random.Generator,
) -> int:
    units, kind, observed = state.size[UNITS], state.size[KIND], state.size[OBSERVED]
    alpha, phi, scale = state.law[ALPHA], state.law[PHI], state.law[WEIGHT_SCALE]
    rho = state.rho[unit]
    members = np.empty(units + 1, dtype=np.int64)  # regressors: 0 is the bias, k + 1 is unit k
    members[0] = 0
    many = 1
    candidates = np.empty(units, dtype=np.int64)
    among = 0
    for upper in range(units):
        if state.edge[upper, unit]:
            members[many] = upper + 1
            many += 1
        if may_link(kind, state.theta[upper], state.theta[unit]):
            candidates[among] = upper
            among += 1
    inverse, means = np.empty((units + 1, units + 1)), np.empty(units + 1)
    _regress(state, gram, cross, unit, members, many, inverse, means)
    column, turned = np.empty(units + 1), np.empty(units + 1)
    changed = 0
    for step in range(among):
        chosen = step + int(generator.random() * (among - step))
        upper = candidates[chosen]
        candidates[chosen] = candidates[step]
        others = children[upper] - state.edge[upper, unit]
        if upper >= observed and (others == 0 or _is_only_link_to_layer(state, upper, unit)):
            continue  # a hidden unit keeps its last child; deaths remove units
        extra = phi if upper < observed else 0.0
        logit = math.log(others + extra) - math.log(alpha + below[upper] - 1 - others) - math.log(scale)
        place = 1
        if state.edge[upper, unit]:
            while members[place] != upper + 1:
                place += 1
            pivot = inverse[place, place]
            if not pivot > 0.0:  # lost to rounding: recompute from the products
                _regress(state, gram, cross, unit, members, many, inverse, means)
                pivot = inverse[place, place]
            logit += 0.5 * math.log(pivot) + 0.5 * means[place] ** 2 / pivot
        else:
            spread, gap = _project(state, gram, cross, unit, members, many, upper, inverse, means, column, turned)
            if not spread > 0.0:
                _regress(state, gram, cross, unit, members, many, inverse, means)
                spread, gap = _project(state, gram, cross, unit, members, many, upper, inverse, means, column, turned)
            logit += -0.5 * math.log(spread) + 0.5 * gap**2 / spread
        wanted = generator.random() < 1.0 / (1.0 + math.exp(-min(max(logit, -700.0), 700.0)))
        if wanted == state.edge[upper, unit]:
            continue
        changed += 1
        if wanted:
            members[many] = upper + 1
            _add_member(inverse, means, many, turned, spread, gap)
            many += 1
            children[upper] += 1
        else:
            many -= 1
            _remove_member(inverse, means, members, many, place)
            children[upper] -= 1
        state.edge[upper, unit] = wanted
    _draw_weights(state, gram, cross, unit, members, many, rho, generator)
    return changed


def _is_only_link_to_layer(state: State, upper: int, unit: int) -> bool:
    """Return True if the edge is the only one of `upper` to the layer directly below ("ecibp"), which it needs."""
    if state.size[KIND] != ECIBP or state.theta[upper] != state.theta[unit] + 1.0:
        return False
    for other in range(state.size[UNITS]):
        if other != unit and state.edge[upper, other] and state.theta[other] == state.theta[unit]:
            return False
    return True


def _project(
    state: State,
    gram: Floats,
    cross: Floats,
    unit: int,
    members: np.ndarray,
    many: int,
    upper: int,
    inverse: Floats,
    means: Floats,
    column: Floats,
    turned: Floats,
) -> tuple[float, float]:
    """Return s and rho c_k - g' w of a candidate; write P g into `turned`."""
    rho = state.rho[unit]
    gap = rho * cross[upper + 1, unit]
    for row in range(many):
        column[row] = rho * gram[members[row], upper + 1]
        gap -= column[row] * means[row]
    spread = state.law[WEIGHT_SCALE] ** -2 + rho * gram[upper + 1, upper + 1]
    for row in range(many):
        total = 0.0
        for other in range(many):
            total += inverse[row, other] * column[other]
        turned[row] = total
        spread -= column[row] * total
    return spread, gap


def _add_member(inverse: Floats, means: Floats, many: int, turned: Floats, spread: float, gap: float) -> None:
    """Append a regressor to P and w, after `many` others (block inverse)."""
    for row in range(many):
        for other in range(many):
            inverse[row, other] += turned[row] * turned[other] / spread
        inverse[row, many] = inverse[many, row] = -turned[row] / spread
        means[row] -= turned[row] * gap / spread
    inverse[many, many] = 1.0 / spread
    means[many] = gap / spread


def _remove_member(inverse: Floats, means: Floats, members: np.ndarray, many: int, place: int) -> None:
    """Remove a regressor from P and w; the last of `many` + 1 moves to its place."""
    pivot = inverse[place, place]
    mean = means[place]
    out = inverse[: many + 1, place].copy()
    for row in range(many + 1):
        means[row] -= out[row] * mean / pivot
        for other in range(many + 1):
            inverse[row, other] -= out[row] * out[other] / pivot
    members[place], means[place] = members[many], means[many]
    for row in range(many + 1):
        inverse[row, place] = inverse[row, many]
    for row in range(many + 1):
        inverse[place, row] = inverse[many, row]


def _regress(
    state: State,
    gram: Floats,
    cross: Floats,
    unit: int,
    members: np.ndarray,
    many: int,
    inverse: Floats,
    means: Floats,
) -> None:
    """Compute P and w from the inner products."""
    lower = _factor(state, gram, unit, members, many)
    inverted = np.zeros((many, many))  # of the factor
    for column in range(many):
        for row in range(column, many):
            total = 1.0 if row == column else 0.0
            for other in range(column, row):
                total -= lower[row, other] * inverted[other, column]
            inverted[row, column] = total / lower[row, row]
    for row in range(many):
        for column in range(many):
            total = 0.0
            for other in range(max(row, column), many):
                total += inverted[other, row] * inverted[other, column]
            inverse[row, column] = total
    for row in range(many):
        total = 0.0
        for other in range(many):
            total += inverse[row, other] * cross[members[other], unit]
        means[row] = state.rho[unit] * total


def _factor(state: State, gram: Floats, unit: int, members: np.ndarray, many: int) -> Floats:
    """Return L of M = Lambda + rho G = L L'."""
    lower = np.zeros((many, many))
    for row in range(many):
        for column in range(row + 1):
            total = state.rho[unit] * gram[members[row], members[column]]
            if row == column:
                total += state.law[WEIGHT_SCALE if row else BIAS_SCALE] ** -2
            for other in range(column):
                total -= lower[row, other] * lower[column, other]
            lower[row, column] = math.sqrt(total) if row == column else total / lower[column, column]
    return lower


def _draw_weights(
    state: State,
    gram: Floats,
    cross: Floats,
    unit: int,
    members: np.ndarray,
    many: int,
    rho: float,
    generator: np.random.Generator,
) -> None:
    """Draw (b, W) = L^-T (z + noise)."""
    lower = _factor(state, gram, unit, members, many)
    drawn = np.empty(many)
    for row in range(many):
        total = rho * cross[members[row], unit]
        for other in range(row):
            total -= lower[row, other] * drawn[other]
        drawn[row] = total / lower[row, row]
    for row in range(many):
        drawn[row] += generator.standard_normal()
    for row in range(many - 1, -1, -1):
        total = drawn[row]
        for other in range(row + 1, many):
            total -= lower[other, row] * drawn[other]
        drawn[row] = total / lower[row, row]
    for upper in range(state.size[UNITS]):
        state.weight[upper, unit] = 0.0
    state.b[unit] = drawn[0]
    for row in range(1, many):
        state.weight[members[row] - 1, unit] = drawn[row]


def draw_precisions(state: State, generator: np.random.Generator) -> None:
    """Draw rho | e ~ Gamma(a + N / 2, r + sum e^2 / 2) of each unit whose precision is not fixed."""
    rows = state.a.shape[1]
    for unit in range(state.size[UNITS]):
        if state.role[unit] != COVARIATE and state.role[unit] != FIXED:
            rate = state.law[RATE] + 0.5 * sum_of_squares(state.e[unit])
            state.rho[unit] = generator.standard_gamma(state.law[SHAPE] + 0.5 * rows) / rate
