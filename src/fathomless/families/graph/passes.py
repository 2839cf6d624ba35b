"""Loops over rows in two versions with the same distribution: vectorised for NumPy, and as plain loops for numba.

Other modules call the vectorised functions. :mod:`fathomless.families.graph.engine` compiles the versions with the
suffix `_loop` and substitutes them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.fast import add_scaled, dot, rank, sigmoids
from fathomless.families.graph.state import COVARIATE, HIDDEN, UNITS, Floats, State, logistic

__all__ = ["compute_products", "elliptical_pass", "refresh_residual", "slice_pass", "sum_of_squares"]

_SLICE_WIDTH, _SLICE_STEPS = 2.5, 20  # width in standard deviations, and largest number of steps
_BLOCK = 256  # rows of a block, which fit into the cache with the usual number of units


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


def refresh_residual_loop(state: State, unit: int) -> None:
    """Version of :func:`refresh_residual` for the compiler."""
    a, e, b = state.a[unit], state.e[unit], state.b[unit]
    for n in range(len(e)):
        e[n] = a[n] - b
    for upper in range(state.size[UNITS]):
        if state.edge[upper, unit]:
            add_scaled(e, -state.weight[upper, unit], state.u[upper])


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
    """Version of :func:`slice_pass` for the compiler: the same steps, with densities of all rows by one exponential."""
    units = state.size[UNITS]
    for unit in range(units):
        if state.role[unit] != HIDDEN:
            continue
        a, u, e = state.a[unit], state.u[unit], state.e[unit]
        quadratic, linear = 0.0, np.zeros(len(a))
        for child in range(units):
            if state.edge[unit, child]:
                product = state.rho[child] * state.weight[unit, child]
                quadratic += product * state.weight[unit, child]
                add_scaled(linear, product, state.e[child])
        add_scaled(linear, quadratic, u)
        change = u.copy()
        _slice_rows(a, u, e, state.rho[unit], quadratic, linear, generator)
        for n in range(len(a)):
            change[n] -= u[n]
        for child in range(units):
            if state.edge[unit, child]:
                add_scaled(state.e[child], state.weight[unit, child], change)


def _slice_rows(
    a: Floats, u: Floats, e: Floats, rho: float, quadratic: float, linear: Floats, generator: np.random.Generator
) -> None:
    """Draw the activations of one unit, and set its outputs and residuals."""
    rows = len(a)
    old, mu, level, left, right = a.copy(), np.empty(rows), np.empty(rows), np.empty(rows), np.empty(rows)
    at, before, after = np.arange(rows), np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    buffers = np.empty((5, rows))
    width = _SLICE_WIDTH / math.sqrt(rho + 0.04 * quadratic)
    for n in range(rows):
        mu[n] = a[n] - e[n]
        left[n] = a[n] - width * generator.random()
        right[n] = left[n] + width
        before[n] = int(_SLICE_STEPS * generator.random())
        after[n] = _SLICE_STEPS - 1 - before[n]
    log_densities = _weigh(a, at, rows, mu, rho, quadratic, linear, buffers)
    for n in range(rows):
        level[n] = log_densities[n] + math.log(1.0 - generator.random())
    _step_out(left, -width, before, level, mu, rho, quadratic, linear, buffers)
    _step_out(right, width, after, level, mu, rho, quadratic, linear, buffers)
    many = rows  # `at` holds the rows without an accepted value
    while many > 0:
        for k in range(many):
            n = at[k]
            a[n] = left[n] + (right[n] - left[n]) * generator.random()
        log_densities = _weigh(a, at, many, mu, rho, quadratic, linear, buffers)
        kept = 0
        for k in range(many):
            n = at[k]
            if log_densities[k] < level[n]:
                if a[n] < old[n]:
                    left[n] = a[n]
                else:
                    right[n] = a[n]
                at[kept] = n
                kept += 1
        many = kept
    sigmoids(a, u, buffers[0])
    for n in range(rows):
        e[n] = a[n] - mu[n]


def _step_out(
    end: Floats,
    step: float,
    steps: NDArray[np.int64],
    level: Floats,
    mu: Floats,
    rho: float,
    quadratic: float,
    linear: Floats,
    buffers: Floats,
) -> None:
    """Move the ends of intervals by steps, until they are outside of the slice or no step is left."""
    at = np.empty(len(end), dtype=np.int64)
    many = 0
    for n in range(len(end)):
        if steps[n] > 0:
            at[many] = n
            many += 1
    while many > 0:
        log_densities = _weigh(end, at, many, mu, rho, quadratic, linear, buffers)
        kept = 0
        for k in range(many):
            n = at[k]
            if log_densities[k] > level[n]:
                end[n] += step
                steps[n] -= 1
                if steps[n] > 0:
                    at[kept] = n
                    kept += 1
        many = kept


def _weigh(
    a: Floats,
    at: NDArray[np.int64],
    many: int,
    mu: Floats,
    rho: float,
    quadratic: float,
    linear: Floats,
    buffers: Floats,
) -> Floats:
    """Return the log densities of :func:`slice_pass` at the first rows of `at`."""
    u, scratch, gaps, slopes = buffers[0], buffers[1], buffers[2], buffers[3]
    values: Floats = buffers[4]
    for k in range(many):
        n = at[k]
        values[k] = a[n]
        gaps[k] = a[n] - mu[n]
        slopes[k] = linear[n]
    sigmoids(values[:many], u[:many], scratch)
    for k in range(many):
        values[k] = -0.5 * rho * gaps[k] * gaps[k] + u[k] * (slopes[k] - 0.5 * quadratic * u[k])
    return values


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
    """Version of :func:`elliptical_pass` for the compiler: the same steps, for blocks of rows."""
    falling, outputs, parents, many = _sort_units(state)
    rows = state.a.shape[1] if len(falling) > 0 else 0
    for start in range(0, rows, _BLOCK):
        _rotate(state, start, min(_BLOCK, rows - start), falling, outputs, parents, many, generator)


def _rotate(
    state: State,
    start: int,
    rows: int,
    falling: NDArray[np.int64],
    outputs: NDArray[np.int64],
    parents: NDArray[np.int64],
    many: NDArray[np.int64],
    generator: np.random.Generator,
) -> None:
    """Draw the hidden activations of a block of rows. Rows that are not accepted move to the front of all arrays."""
    units, hidden = state.size[UNITS], len(falling)
    old, other = np.empty((hidden, rows)), np.empty((hidden, rows))  # noise, and the noise that it is rotated into
    a, u, e = np.empty((units, rows)), np.empty((units, rows)), np.empty((units, rows))
    level, angle, low, high = np.empty(rows), np.empty(rows), np.empty(rows), np.empty(rows)
    cosines, sines, scores, scratch = np.empty(rows), np.empty(rows), np.empty(rows), np.empty(rows)
    at = np.empty(rows, dtype=np.int64)
    for n in range(rows):
        at[n] = start + n
        level[n] = math.log(1.0 - generator.random())
        angle[n] = 2 * math.pi * generator.random()
        low[n], high[n] = angle[n] - 2 * math.pi, angle[n]
    for unit in outputs:
        for n in range(rows):
            level[n] -= 0.5 * state.rho[unit] * state.e[unit, start + n] ** 2
    for k in range(hidden):
        root = math.sqrt(state.rho[falling[k]])
        for n in range(rows):
            old[k, n] = root * state.e[falling[k], start + n]
            other[k, n] = generator.standard_normal()
    for unit in range(units):
        for n in range(rows):
            u[unit, n] = state.u[unit, start + n]
    going = rows
    while going > 0:
        for n in range(going):
            cosines[n], sines[n], scores[n] = math.cos(angle[n]), math.sin(angle[n]), 0.0
        for k in range(hidden):
            unit = falling[k]
            scale = 1.0 / math.sqrt(state.rho[unit])
            for n in range(going):
                e[unit, n] = (old[k, n] * cosines[n] + other[k, n] * sines[n]) * scale
                a[unit, n] = state.b[unit] + e[unit, n]
            for p in range(many[unit]):
                add_scaled(a[unit, :going], state.weight[parents[unit, p], unit], u[parents[unit, p]])
            sigmoids(a[unit, :going], u[unit, :going], scratch)
        _score(state, outputs, parents, many, at[:going], u, e, scores)
        kept = 0
        for n in range(going):
            if not scores[n] < level[n]:
                for unit in falling:
                    state.a[unit, at[n]], state.u[unit, at[n]] = a[unit, n], u[unit, n]
                    state.e[unit, at[n]] = e[unit, n]
                for unit in outputs:
                    state.e[unit, at[n]] = e[unit, n]
                continue
            if angle[n] < 0.0:
                low[kept], high[kept] = angle[n], high[n]
            else:
                low[kept], high[kept] = low[n], angle[n]
            angle[kept] = low[kept] + (high[kept] - low[kept]) * generator.random()
            at[kept], level[kept] = at[n], level[n]
            for k in range(hidden):
                old[k, kept], other[k, kept] = old[k, n], other[k, n]
            for unit in range(units):
                u[unit, kept] = u[unit, n]  # of units that are not hidden; the others are computed anew
            kept += 1
        going = kept


def _score(
    state: State,
    outputs: NDArray[np.int64],
    parents: NDArray[np.int64],
    many: NDArray[np.int64],
    at: NDArray[np.int64],
    u: Floats,
    e: Floats,
    scores: Floats,
) -> None:
    """Write the residuals of observed units, and add their log densities to the scores of rows."""
    for unit in outputs:
        for n in range(len(at)):
            e[unit, n] = state.a[unit, at[n]] - state.b[unit]
        for p in range(many[unit]):
            add_scaled(e[unit, : len(at)], -state.weight[parents[unit, p], unit], u[parents[unit, p]])
        for n in range(len(at)):
            scores[n] -= 0.5 * state.rho[unit] * e[unit, n] ** 2


def _sort_units(state: State) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return hidden units in decreasing order, observed units, and parents of each unit with their number."""
    units = state.size[UNITS]
    order = rank(state.theta, units)
    falling, outputs = np.empty(units, dtype=np.int64), np.empty(units, dtype=np.int64)
    hidden, observed = 0, 0
    for place in range(units):
        unit = order[units - 1 - place]
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
    return falling[:hidden], outputs[:observed], parents, many
