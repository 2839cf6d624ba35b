"""Loops over rows in two versions with the same distribution: vectorised for NumPy, and row by row for numba.

Other modules call the vectorised functions. :mod:`fathomless.families.graph.engine` compiles the versions with the
suffix `_loop` and substitutes them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.fast import dot, sigmoid
from fathomless.families.graph.state import COVARIATE, HIDDEN, UNITS, Floats, State, logistic

__all__ = ["compute_products", "elliptical_pass", "refresh_residual", "slice_pass", "sum_of_squares"]

_SLICE_WIDTH, _SLICE_STEPS = 2.5, 20  # width in standard deviations, and largest number of steps


def compute_products(state: State) -> tuple[Floats, Floats]:
    """Compute inner products over rows: of (1, u) with itself, (K + 1, K + 1), and with a, (K + 1, K)."""
    units = state.size[UNITS]
    rows = state.a.shape[1]
    u = np.ones((units + 1, rows))
    u[1:] = state.u[:units]
    return u @ u.T, u @ state.a[:units].T


def compute_products_loop(state: State) -> tuple[Floats, Floats]:
    """Row-by-row version of :func:`compute_products`."""
    units = state.size[UNITS]
    rows = state.a.shape[1]
    gram, cross = np.empty((units + 1, units + 1)), np.empty((units + 1, units))
    ones = np.ones(rows)
    for first in range(units + 1):
        x = ones if first == 0 else state.u[first - 1]
        for second in range(first + 1):
            y = ones if second == 0 else state.u[second - 1]
            gram[first, second] = gram[second, first] = dot(x, y)
        for second in range(units):
            cross[first, second] = dot(x, state.a[second])
    return gram, cross


def sum_of_squares(x: Floats) -> float:
    """Return x . x."""
    return float(x @ x)


def sum_of_squares_loop(x: Floats) -> float:
    """Row-by-row version of :func:`sum_of_squares`."""
    return dot(x, x)


def refresh_residual(state: State, unit: int) -> None:
    """Recompute the residual e of one unit from its parents."""
    e = state.e[unit]
    e[:] = state.a[unit] - state.b[unit]
    for upper in range(state.size[UNITS]):
        if state.edge[upper, unit]:
            e -= state.weight[upper, unit] * state.u[upper]


def slice_pass(state: State, generator: np.random.Generator) -> None:
    """Draw each hidden activation given all others by slice sampling, a unit at a time.

    With P = sum over children c of rho_c W_kc^2 and Q = sum of rho_c W_kc (e_c + W_kc u_k),

        log p(a) = -rho_k (a - mu)^2 / 2 - P sigmoid(a)^2 / 2 + Q sigmoid(a) + const;

    intervals step out from a width of 2.5 / sqrt(rho_k + 0.04 P), with at most 20 steps, split at random between both
    sides.
    """
    rows = state.a.shape[1]
    for unit in np.flatnonzero(state.role[: state.size[UNITS]] == HIDDEN):
        children = np.flatnonzero(state.edge[unit])
        weights, rhos = state.weight[unit, children], state.rho[children]
        rho, mu, old = state.rho[unit], state.a[unit] - state.e[unit], state.a[unit].copy()
        quadratic = float(rhos @ weights**2)
        linear = (rhos * weights) @ (state.e[children] + weights[:, None] * state.u[unit])

        every = np.arange(rows)
        level = _log_densities(old, mu, rho, quadratic, linear, every) + np.log1p(-generator.random(rows))
        width = _SLICE_WIDTH / math.sqrt(rho + 0.04 * quadratic)
        left = old - width * generator.random(rows)
        right = left + width
        before = np.floor(_SLICE_STEPS * generator.random(rows))
        # step out: `going` holds the rows whose end is still inside the slice
        for end, sign, steps in ((left, -1.0, before), (right, 1.0, _SLICE_STEPS - 1 - before)):
            going = every
            left_over = steps.copy()
            while len(going := going[(left_over[going] > 0)]) and len(
                going := going[_log_densities(end, mu, rho, quadratic, linear, going) > level[going]]
            ):
                end[going] += sign * width
                left_over[going] -= 1
        # shrink: `going` holds the rows without an accepted value
        new = old.copy()
        going = every
        while len(going):
            new[going] = left[going] + (right[going] - left[going]) * generator.random(len(going))
            outside = _log_densities(new, mu, rho, quadratic, linear, going) < level[going]
            lower = new[going] < old[going]
            left[going] = np.where(outside & lower, new[going], left[going])
            right[going] = np.where(outside & ~lower, new[going], right[going])
            going = going[outside]
        u = logistic(new)
        state.e[children] -= weights[:, None] * (u - state.u[unit])
        state.a[unit], state.u[unit], state.e[unit] = new, u, new - mu


def _log_densities(
    a: Floats, mu: Floats, rho: float, quadratic: float, linear: Floats, at: NDArray[np.int64]
) -> Floats:
    u = logistic(a[at])
    return np.asarray(-0.5 * rho * (a[at] - mu[at]) ** 2 + u * (linear[at] - 0.5 * quadratic * u))


def slice_pass_loop(state: State, generator: np.random.Generator) -> None:
    """Row-by-row version of :func:`slice_pass`."""
    units = state.size[UNITS]
    rows = state.a.shape[1]
    children = np.empty(units, dtype=np.int64)
    for unit in range(units):
        if state.role[unit] != HIDDEN:
            continue
        many = 0
        quadratic = 0.0
        for lower in range(units):
            if state.edge[unit, lower]:
                children[many] = lower
                many += 1
                quadratic += state.rho[lower] * state.weight[unit, lower] ** 2
        linear = quadratic * state.u[unit]
        for c in range(many):
            linear += state.rho[children[c]] * state.weight[unit, children[c]] * state.e[children[c]]
        rho = state.rho[unit]
        width = _SLICE_WIDTH / math.sqrt(rho + 0.04 * quadratic)
        change = np.empty(rows)
        for n in range(rows):
            old, mu, slope = state.a[unit, n], state.a[unit, n] - state.e[unit, n], linear[n]
            level = _log_density(old, mu, rho, quadratic, slope) + math.log(1.0 - generator.random())
            left = old - width * generator.random()
            right = left + width
            before = int(_SLICE_STEPS * generator.random())
            after = _SLICE_STEPS - 1 - before
            while before > 0 and _log_density(left, mu, rho, quadratic, slope) > level:
                left -= width
                before -= 1
            while after > 0 and _log_density(right, mu, rho, quadratic, slope) > level:
                right += width
                after -= 1
            while True:
                new = left + (right - left) * generator.random()
                if not _log_density(new, mu, rho, quadratic, slope) < level:
                    break
                if new < old:
                    left = new
                else:
                    right = new
            u = sigmoid(new)
            change[n] = u - state.u[unit, n]
            state.a[unit, n], state.u[unit, n], state.e[unit, n] = new, u, new - mu
        for c in range(many):
            state.e[children[c]] -= state.weight[unit, children[c]] * change


def _log_density(a: float, mu: float, rho: float, quadratic: float, slope: float) -> float:
    u = sigmoid(a)
    return -0.5 * rho * (a - mu) * (a - mu) + u * (slope - 0.5 * quadratic * u)


def elliptical_pass(state: State, generator: np.random.Generator) -> None:
    """Draw all hidden activations of a row jointly, by elliptical slice sampling of their noise.

    The noise variables sqrt(rho_k) e_k are standard normal; the likelihood is that of the activations of the observed
    units.
    """
    units = state.size[UNITS]
    rows = state.a.shape[1]
    role = state.role[:units]
    hidden = np.flatnonzero(role == HIDDEN)
    if len(hidden) == 0 or rows == 0:
        return
    falling = hidden[np.argsort(-state.theta[hidden], kind="stable")]
    outputs = np.flatnonzero((role != HIDDEN) & (role != COVARIATE))
    weights = state.weight[:units, :units]
    roots = np.sqrt(state.rho[:units, None])

    def pass_down(noise: Floats, u: Floats, at: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return activations and log-likelihood of some rows; write the outputs into u."""
        a = np.empty_like(noise)
        for row, unit in enumerate(falling):
            parents = np.flatnonzero(state.edge[:units, unit])
            a[row] = state.b[unit] + weights[parents, unit] @ u[parents] + noise[row] / roots[unit]
            u[unit] = logistic(a[row])
        gaps = state.a[np.ix_(outputs, at)] - state.b[outputs, None] - weights[:, outputs].T @ u
        return a, -0.5 * state.rho[outputs] @ gaps**2

    going = np.arange(rows)
    old = roots[falling] * state.e[falling]
    other = generator.standard_normal(old.shape)
    level: Floats = -0.5 * state.rho[outputs] @ state.e[outputs] ** 2 + np.log1p(-generator.random(rows))
    angle = np.asarray(generator.uniform(0, 2 * math.pi, rows))
    low, high = np.subtract(angle, 2 * math.pi), np.copy(angle)
    new_a, new_u = state.a[falling].copy(), state.u[:units].copy()
    while len(going):
        noise = old[:, going] * np.cos(angle[going]) + other[:, going] * np.sin(angle[going])
        u = new_u[:, going]
        a, score = pass_down(noise, u, going)
        done = ~(score < level[going])
        new_a[:, going[done]], new_u[:, going[done]] = a[:, done], u[:, done]
        going = going[~done]
        negative = angle[going] < 0
        low[going] = np.where(negative, angle[going], low[going])
        high[going] = np.where(negative, high[going], angle[going])
        angle[going] = low[going] + (high[going] - low[going]) * generator.random(len(going))
    state.a[falling], state.u[falling] = new_a, new_u[falling]
    for unit in (*falling, *outputs):
        refresh_residual(state, unit)


def elliptical_pass_loop(state: State, generator: np.random.Generator) -> None:
    """Row-by-row version of :func:`elliptical_pass`."""
    units = state.size[UNITS]
    rows = state.a.shape[1]
    falling, hidden, outputs, observed, parents, many = _sort_units(state)
    if hidden == 0:
        return
    a, u, e = np.empty(units), np.empty(units), np.empty(units)
    old, other = np.empty(units), np.empty(units)
    for n in range(rows):
        level = math.log(1.0 - generator.random())
        for k in range(observed):
            level -= 0.5 * state.rho[outputs[k]] * state.e[outputs[k], n] ** 2
        for unit in range(units):
            u[unit] = state.u[unit, n]
        for k in range(hidden):
            old[k] = math.sqrt(state.rho[falling[k]]) * state.e[falling[k], n]
            other[k] = generator.standard_normal()
        angle = 2 * math.pi * generator.random()
        low, high = angle - 2 * math.pi, angle
        while True:
            cosine, sine = math.cos(angle), math.sin(angle)
            for k in range(hidden):
                unit = falling[k]
                mu = state.b[unit]
                for p in range(many[unit]):
                    mu += state.weight[parents[unit, p], unit] * u[parents[unit, p]]
                e[unit] = (old[k] * cosine + other[k] * sine) / math.sqrt(state.rho[unit])
                a[unit] = mu + e[unit]
                u[unit] = sigmoid(a[unit])
            score = 0.0
            for k in range(observed):
                unit = outputs[k]
                mu = state.b[unit]
                for p in range(many[unit]):
                    mu += state.weight[parents[unit, p], unit] * u[parents[unit, p]]
                e[unit] = state.a[unit, n] - mu
                score -= 0.5 * state.rho[unit] * e[unit] ** 2
            if not score < level:
                break
            if angle < 0.0:
                low = angle
            else:
                high = angle
            angle = low + (high - low) * generator.random()
        for k in range(hidden):
            unit = falling[k]
            state.a[unit, n], state.u[unit, n], state.e[unit, n] = a[unit], u[unit], e[unit]
        for k in range(observed):
            state.e[outputs[k], n] = e[outputs[k]]


def _sort_units(
    state: State,
) -> tuple[NDArray[np.int64], int, NDArray[np.int64], int, NDArray[np.int64], NDArray[np.int64]]:
    """Return hidden units in decreasing order, observed units, and parents of each unit, each with their number."""
    units = state.size[UNITS]
    order = np.argsort(-state.theta[:units])
    falling, outputs = np.empty(units, dtype=np.int64), np.empty(units, dtype=np.int64)
    hidden, observed = 0, 0
    for unit in order:
        if state.role[unit] == HIDDEN:
            falling[hidden] = unit
            hidden += 1
        elif state.role[unit] != COVARIATE:
            outputs[observed] = unit
            observed += 1
    parents, many = np.empty((units, units), dtype=np.int64), np.zeros(units, dtype=np.int64)
    for unit in range(units):
        for upper in range(units):
            if state.edge[upper, unit]:
                parents[unit, many[unit]] = upper
                many[unit] += 1
    return falling, hidden, outputs, observed, parents, many
