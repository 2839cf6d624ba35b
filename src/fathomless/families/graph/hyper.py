"""Moves that do not use the data: orders of units, and concentration, mass and popularity of the prior over graphs.

Plain functions over arrays, interpreted or compiled, as in :mod:`fathomless.families.graph.edges`.
"""

import math

import numpy as np

from fathomless.families.graph.edges import count_links
from fathomless.families.graph.fast import rank
from fathomless.families.graph.state import ALPHA, GAMMA, IBP, ICP, KIND, OBSERVED, PHI, UNITS, Floats, State

__all__ = ["draw_hyperparameters", "draw_orders", "exposures"]

_WIDEST = 18.0  # bound of |log alpha| and |log phi|: the prior of alpha has very heavy tails
_STEP, _STEPS = 1.5, 15  # width and largest number of steps of the slice sampler, on each side


def draw_orders(state: State, generator: np.random.Generator) -> int:
    """Draw each order that is not fixed from its piecewise exponential conditional; return the number of units passed.

    Between its children and its parents, with j other units below, the log density rises by alpha gamma / (alpha + j)
    per unit of order. Passing a unit w upwards it jumps by

        log (alpha + phi_w + d_w) / (alpha + d_w - m_w) + log (alpha + d_i - m_i) / (alpha + phi_i + d_i),

    with d_w counted without i, and d_i before passing w.
    """
    passed = 0
    if state.size[KIND] == ICP:
        children, below = count_links(state, -1)
        for unit in range(state.size[UNITS]):
            if state.movable[unit]:
                passed += _draw_order(state, unit, children, below, generator)
    return passed


def _draw_order(
    state: State, unit: int, children: np.ndarray, below: np.ndarray, generator: np.random.Generator
) -> int:
    units, observed = state.size[UNITS], state.size[OBSERVED]
    alpha, gamma, phi = state.law[ALPHA], state.law[GAMMA], state.law[PHI]
    old = state.theta[unit]
    low = 0.0
    high = 1.0
    for other in range(units):
        if state.edge[unit, other]:
            low = max(low, state.theta[other])
        if state.edge[other, unit]:
            high = min(high, state.theta[other])
    inside, orders = np.empty(units, dtype=np.int64), np.empty(units)
    many = 0
    level = 0
    for other in range(units):
        if other != unit and low < state.theta[other] < high:
            inside[many], orders[many] = other, state.theta[other]
            many += 1
        elif other != unit and state.theta[other] <= low:
            level += 1
    inside = inside[rank(orders, many)]
    extra = phi if unit < observed else 0.0
    logs, slopes, starts = np.empty(many + 1), np.empty(many + 1), np.empty(many + 2)
    starts[0], starts[many + 1] = low, high
    height = 0.0  # log density at the left end of a piece
    best = -math.inf  # largest log mass of a piece
    for piece in range(many + 1):
        if piece > 0:
            other = inside[piece - 1]
            starts[piece] = state.theta[other]
            d_other = below[other] - (1 if old < state.theta[other] else 0)
            d_own = level + piece - 1
            height += math.log(alpha + (phi if other < observed else 0.0) + d_other)
            height -= math.log(alpha + d_other - children[other])
            height += math.log(alpha + d_own - children[unit]) - math.log(alpha + extra + d_own)
        slope = alpha * gamma / (alpha + level + piece)
        end = starts[piece + 1] if piece == many else state.theta[inside[piece]]
        length = end - starts[piece]
        height += slope * length  # log density at the right end of the piece
        slopes[piece] = slope
        logs[piece] = height + math.log(-math.expm1(-slope * length) / slope) if length > 0.0 else -math.inf
        best = max(best, logs[piece])
    if best == -math.inf:
        return 0
    piece = _draw_index(logs, best, generator)
    length = starts[piece + 1] - starts[piece]
    uniform = generator.random()
    new = starts[piece] + length
    new += math.log(uniform + (1.0 - uniform) * math.exp(-slopes[piece] * length)) / slopes[piece]
    if not starts[piece] < new < starts[piece + 1]:  # rounded to an end: keep the old order
        return 0
    passed = 0
    for step in range(many):  # units that were passed have one unit more or one less below
        other = inside[step]
        change = int(new < state.theta[other]) - int(old < state.theta[other])
        below[other] += change
        passed += abs(change)
    below[unit] = level + piece
    state.theta[unit] = new
    return passed


def _draw_index(logs: Floats, best: float, generator: np.random.Generator) -> int:
    """Draw an index by its log mass; `best` is the largest."""
    total = 0.0
    for index in range(len(logs)):
        total += math.exp(logs[index] - best)
    wanted = generator.random() * total
    index, mass = 0, math.exp(logs[0] - best)
    while mass <= wanted and index < len(logs) - 1:
        index += 1
        mass += math.exp(logs[index] - best)
    return index


def exposures(state: State) -> Floats:
    """Return c with S = sum_j c_j Psi(j), shape (K + 1,): gaps between orders, or numbers of layers by size."""
    units, kind, observed = state.size[UNITS], state.size[KIND], state.size[OBSERVED]
    lengths = np.zeros(units + 1)
    if kind == IBP:
        lengths[observed] = 1.0
        return lengths
    order = rank(state.theta, units)
    same = 0
    for unit in range(units):
        last = unit == units - 1
        if kind == ICP:
            lengths[unit + 1] = (1.0 if last else state.theta[order[unit + 1]]) - state.theta[order[unit]]
        else:
            same += 1
            if last or state.theta[order[unit + 1]] > state.theta[order[unit]]:
                lengths[same] += 1.0
                same = 0
    return lengths


def _log_graph(
    state: State, alpha: float, phi: float, lengths: Floats, children: np.ndarray, below: np.ndarray
) -> float:
    """Return the log prior of the graph as a function of alpha and phi."""
    units = state.size[UNITS]
    observed = state.size[OBSERVED]
    gamma = state.law[GAMMA]
    psi, exposure = 0.0, 0.0
    logs = np.empty(units + 1)  # cumulative sums of log(alpha + r)
    logs[0] = 0.0
    for step in range(units):
        psi += 1.0 / (alpha + step)
        exposure += lengths[step + 1] * psi
        logs[step + 1] = logs[step] + math.log(alpha + step)
    total = -alpha * gamma * exposure + (units - observed) * math.log(alpha * gamma)
    for unit in range(units):
        total += logs[below[unit] - children[unit]]
        if unit >= observed:
            total -= logs[below[unit]]
        else:
            for step in range(below[unit]):
                total -= math.log(alpha + phi + step)
            for step in range(children[unit]):
                total += math.log(phi + step)
    return float(total)


def draw_hyperparameters(state: State, priors: Floats, popular: bool, generator: np.random.Generator) -> int:
    """Draw gamma from its Gamma conditional, and alpha and phi by slice sampling of their logarithms.

    Parameters
    ----------
    priors : (3, 2)
        Shape and rate of 1 / alpha, gamma and phi, each a Gamma variable.
    popular : bool
        True to draw phi; False if no observed unit can have a child, so that phi has no effect.

    Returns
    -------
    int
        Number of slices cut at the bound, |log| = 18.
    """
    lengths = exposures(state)
    children, below = count_links(state, -1)
    cuts = _slice_sample(state, ALPHA, priors, lengths, children, below, generator)
    if popular:
        cuts += _slice_sample(state, PHI, priors, lengths, children, below, generator)
    psi, exposure = 0.0, 0.0
    for step in range(state.size[UNITS]):
        psi += 1.0 / (state.law[ALPHA] + step)
        exposure += lengths[step + 1] * psi
    shape = priors[GAMMA, 0] + state.size[UNITS] - state.size[OBSERVED]
    state.law[GAMMA] = generator.standard_gamma(shape) / (priors[GAMMA, 1] + state.law[ALPHA] * exposure)
    return cuts


def _slice_sample(
    state: State,
    which: int,
    priors: Floats,
    lengths: Floats,
    children: np.ndarray,
    below: np.ndarray,
    generator: np.random.Generator,
) -> int:
    """Draw log alpha or log phi by slice sampling; return the number of ends cut at the bound."""
    here = math.log(state.law[which])
    level = _log_target(state, which, here, priors, lengths, children, below) + math.log(1.0 - generator.random())
    left = here - _STEP * generator.random()
    right = left + _STEP
    for _ in range(_STEPS):
        if left <= -_WIDEST or _log_target(state, which, left, priors, lengths, children, below) <= level:
            break
        left -= _STEP
    for _ in range(_STEPS):
        if right >= _WIDEST or _log_target(state, which, right, priors, lengths, children, below) <= level:
            break
        right += _STEP
    cuts = int(left < -_WIDEST) + int(right > _WIDEST)
    left, right = max(left, -_WIDEST), min(right, _WIDEST)
    while True:
        new = left + (right - left) * generator.random()
        if _log_target(state, which, new, priors, lengths, children, below) > level:
            state.law[which] = math.exp(new)
            return cuts
        if new < here:
            left = new
        else:
            right = new


def _log_target(
    state: State,
    which: int,
    log_value: float,
    priors: Floats,
    lengths: Floats,
    children: np.ndarray,
    below: np.ndarray,
) -> float:
    value = math.exp(log_value)
    shape = priors[which, 0]
    rate = priors[which, 1]
    if which == ALPHA:  # 1 / alpha is Gamma
        graph = _log_graph(state, value, state.law[PHI], lengths, children, below)
        return float(graph - shape * log_value - rate / value)
    graph = _log_graph(state, state.law[ALPHA], value, lengths, children, below)
    return float(graph + shape * log_value - rate * value)
