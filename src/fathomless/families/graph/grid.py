"""Grid proposals of births: moments of a new unit's output, and draws and densities of its activations.

Each loop over rows has two versions; see :mod:`fathomless.families.graph.passes`.
"""

import math

import numpy as np

from fathomless.families.graph.fast import exponentiate, sigmoid
from fathomless.families.graph.state import Floats, logistic

__all__ = ["draw_activations", "grid_moments", "weigh_activations"]

_REACH = 4.5  # the grid extends from -4.5 to 4.5 standard deviations of the noise of the new unit
_PRIOR_SHARE = 0.02  # share of the prior in the proposal, so that its density is positive everywhere
_LOG_TAU = math.log(2 * math.pi)


def grid_moments(centre: Floats, bias: float, rho: float, cells: int, orphan: bool) -> tuple[float, float, Floats]:
    """Return mean and variance of sigmoid(a) over rows and noise, a ~ N(centre, 1 / rho), and its values on the grid.

    The table has the shape (N, cells + 1). It is (1, cells + 1) for a unit without parents, for which all rows are
    equal, and without rows.
    """
    nodes = np.linspace(-_REACH, _REACH, cells + 1)
    if orphan or len(centre) == 0:
        centre = np.full(1, bias)
    table = logistic(centre[:, None] + nodes / math.sqrt(rho))
    density = np.exp(-0.5 * nodes**2)
    density /= density.sum()
    mean = float((table @ density).mean())
    return mean, float(((table - mean) ** 2 @ density).mean()), table


def grid_moments_loop(centre: Floats, bias: float, rho: float, cells: int, orphan: bool) -> tuple[float, float, Floats]:
    """Row-by-row version of :func:`grid_moments`."""
    rows = 1 if orphan or len(centre) == 0 else len(centre)
    table = np.empty((rows, cells + 1))
    scale = 1.0 / math.sqrt(rho)
    step = 2 * _REACH / cells
    density = np.empty(cells + 1)
    total = 0.0
    for g in range(cells + 1):
        density[g] = math.exp(-0.5 * (g * step - _REACH) ** 2)
        total += density[g]
    mean = 0.0
    scratch = np.empty(cells + 1)
    for n in range(rows):
        middle = bias if orphan or len(centre) == 0 else centre[n]
        for g in range(cells + 1):
            table[n, g] = -(middle + (g * step - _REACH) * scale)
        exponentiate(table[n], scratch)
        for g in range(cells + 1):
            table[n, g] = 1.0 / (1.0 + table[n, g])
            mean += table[n, g] * density[g]
    mean /= total * rows
    variance = 0.0
    for n in range(rows):
        for g in range(cells + 1):
            variance += (table[n, g] - mean) ** 2 * density[g]
    return mean, variance / (total * rows), table


def draw_activations(
    both: Floats,
    weight: float,
    centre: Floats,
    rho: float,
    rho_child: float,
    table: Floats,
    noise: Floats,
    generator: np.random.Generator,
) -> float:
    """Draw the noise z of a new unit's activations, a = centre + z / sqrt(rho); return the log weight of the draw.

    The proposal interpolates linearly between the nodes of the grid, where it is proportional to the conditional,

        h(z) = exp(-z^2 / 2 - rho_child (both - weight u(z))^2 / 2),

    mixed with 0.02 of the prior N(0, 1). The log weight is the sum over rows of the log of phi(z) times the child's
    exp(-rho_child (...)^2 / 2), over the density of the proposal.

    Parameters
    ----------
    both : (N,)
        Residual of the child without the new unit.
    centre : (N,)
        Mean of the new unit's activations.
    table : (N or 1, cells + 1)
        Outputs on the grid, from :func:`grid_moments`.
    noise : (N,)
        Output array for z.
    """
    if len(both) == 0:
        return 0.0
    rows, cells = len(both), table.shape[1] - 1
    values = _heights(both, weight, rho_child, table)
    areas = 0.5 * (values[:, 1:] + values[:, :-1])
    sums = np.cumsum(areas, 1)
    wanted = generator.random(rows) * sums[:, -1]
    cell = np.minimum((sums <= wanted[:, None]).sum(1), cells - 1)
    every = np.arange(rows)
    left, right = values[every, cell], values[every, cell + 1]
    inside = np.clip(wanted - (sums[every, cell] - areas[every, cell]), 0.0, None)
    # invert the quadratic distribution function within the cell, in the form without cancellation
    root = left + np.sqrt(left**2 + 2 * (right - left) * np.minimum(inside, areas[every, cell]))
    where = np.minimum(2 * inside / np.maximum(root, 1e-300), 1.0)
    from_prior = generator.random(rows) < _PRIOR_SHARE
    noise[:] = np.where(from_prior, generator.standard_normal(rows), (cell + where) * (2 * _REACH / cells) - _REACH)
    return _log_weight(both, weight, centre, rho, rho_child, values, sums[:, -1], noise)


def weigh_activations(
    both: Floats, weight: float, centre: Floats, rho: float, rho_child: float, table: Floats, noise: Floats
) -> float:
    """Return the log weight of given noise, as :func:`draw_activations` computes it for its draws."""
    if len(both) == 0:
        return 0.0
    values = _heights(both, weight, rho_child, table)
    total = (0.5 * (values[:, 1:] + values[:, :-1])).sum(1)
    return _log_weight(both, weight, centre, rho, rho_child, values, total, noise)


def _heights(both: Floats, weight: float, rho_child: float, table: Floats) -> Floats:
    """Return h at the nodes, with maximum 1 in each row, (N, cells + 1)."""
    nodes = np.linspace(-_REACH, _REACH, table.shape[1])
    logs = -0.5 * nodes**2 - 0.5 * rho_child * (both[:, None] - weight * table) ** 2
    return np.asarray(np.exp(logs - logs.max(1, keepdims=True)))


def _log_weight(
    both: Floats,
    weight: float,
    centre: Floats,
    rho: float,
    rho_child: float,
    values: Floats,
    total: Floats,
    noise: Floats,
) -> float:
    rows, cells = len(both), values.shape[1] - 1
    every = np.arange(rows)
    place = (noise + _REACH) * (cells / (2 * _REACH))
    within = (place >= 0) & (place < cells)
    cell = np.where(within, place, 0.0).astype(np.int64)
    part = place - cell
    linear = values[every, cell] * (1 - part) + values[every, cell + 1] * part
    density = np.where(within, linear / total, 0.0) * (cells / (2 * _REACH))
    log_prior = -0.5 * noise**2 - 0.5 * _LOG_TAU
    gap = both - weight * logistic(centre + noise / math.sqrt(rho))
    logs = log_prior - 0.5 * rho_child * gap**2
    return float((logs - np.log(_PRIOR_SHARE * np.exp(log_prior) + (1 - _PRIOR_SHARE) * density)).sum())


def draw_activations_loop(
    both: Floats,
    weight: float,
    centre: Floats,
    rho: float,
    rho_child: float,
    table: Floats,
    noise: Floats,
    generator: np.random.Generator,
) -> float:
    """Row-by-row version of :func:`draw_activations`."""
    cells = table.shape[1] - 1
    values = np.empty(cells + 1)
    curve, scratch = _curve(cells), np.empty(cells + 1)
    total_weight = 0.0
    scale = 1.0 / math.sqrt(rho)
    for n in range(len(both)):
        total = _row_of_heights(both[n], weight, rho_child, table[n if len(table) > 1 else 0], curve, values, scratch)
        if generator.random() < _PRIOR_SHARE:
            noise[n] = generator.standard_normal()
        else:
            left = generator.random() * total
            cell = 0
            area = 0.5 * (values[0] + values[1])
            while left > area and cell < cells - 1:
                left -= area
                cell += 1
                area = 0.5 * (values[cell] + values[cell + 1])
            left = min(left, area)
            low, high = values[cell], values[cell + 1]
            root = low + math.sqrt(max(low * low + 2 * (high - low) * left, 0.0))
            where = min(2 * left / root, 1.0) if root > 0.0 else 0.5
            noise[n] = (cell + where) * (2 * _REACH / cells) - _REACH
        total_weight += _weight_of_row(both[n], weight, centre[n], scale, rho_child, values, total, noise[n])
    return total_weight


def weigh_activations_loop(
    both: Floats, weight: float, centre: Floats, rho: float, rho_child: float, table: Floats, noise: Floats
) -> float:
    """Row-by-row version of :func:`weigh_activations`."""
    cells = table.shape[1] - 1
    values = np.empty(cells + 1)
    curve, scratch = _curve(cells), np.empty(cells + 1)
    total_weight = 0.0
    scale = 1.0 / math.sqrt(rho)
    for n in range(len(both)):
        total = _row_of_heights(both[n], weight, rho_child, table[n if len(table) > 1 else 0], curve, values, scratch)
        total_weight += _weight_of_row(both[n], weight, centre[n], scale, rho_child, values, total, noise[n])
    return total_weight


def _curve(cells: int) -> Floats:
    """Return -z^2 / 2 at the nodes."""
    nodes = np.empty(cells + 1)
    for g in range(cells + 1):
        nodes[g] = -0.5 * (g * (2 * _REACH / cells) - _REACH) ** 2
    return nodes


def _row_of_heights(
    both: float, weight: float, rho_child: float, outputs: Floats, curve: Floats, values: Floats, scratch: Floats
) -> float:
    """Write h at the nodes into `values`, with maximum 1; return its integral in units of cells."""
    best = -math.inf
    for g in range(len(values)):
        gap = both - weight * outputs[g]
        values[g] = curve[g] - 0.5 * rho_child * gap * gap
        best = max(best, values[g])
    for g in range(len(values)):
        values[g] -= best
    exponentiate(values, scratch)
    total = -0.5 * (values[0] + values[-1])
    for g in range(len(values)):
        total += values[g]
    return float(total)


def _weight_of_row(
    both: float,
    weight: float,
    centre: float,
    scale: float,
    rho_child: float,
    values: Floats,
    total: float,
    noise: float,
) -> float:
    cells = len(values) - 1
    place = (noise + _REACH) * (cells / (2 * _REACH))
    density = 0.0
    if 0.0 <= place < cells:
        cell = int(place)
        part = place - cell
        density = (values[cell] * (1 - part) + values[cell + 1] * part) / total * (cells / (2 * _REACH))
    log_prior = -0.5 * noise * noise - 0.5 * _LOG_TAU
    gap = both - weight * sigmoid(centre + noise * scale)
    log_proposal = math.log(_PRIOR_SHARE * math.exp(log_prior) + (1 - _PRIOR_SHARE) * density)
    return log_prior - 0.5 * rho_child * gap * gap - log_proposal
