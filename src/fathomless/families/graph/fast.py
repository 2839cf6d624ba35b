"""Elementary functions of the moves, short enough for the compiler to be fast and to vectorise them.

Those with a version `_loop` have one version for NumPy and one for numba, as in
:mod:`fathomless.families.graph.passes`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.state import Floats, logistic

__all__ = [
    "add_scaled",
    "add_scaled_loop",
    "assign",
    "assign_loop",
    "dot",
    "exponentiate",
    "rank",
    "rank_loop",
    "sigmoid",
    "sigmoids",
    "sigmoids_loop",
]

_LARGEST = 708.0  # exp(±708) is a normal double
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, stored in the low bits of the sum
_SHIFT_BITS = int(np.float64(_SHIFT).view(np.int64))
_PER_LOG_2, _LOG_2_HIGH, _LOG_2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10


def exponentiate(x: Floats, shifted: Floats) -> None:
    """Replace x by exp(x), in place; |x| is clipped at 708. The relative error is below 1e-14.

    x = k log 2 + r with |r| <= log(2) / 2, a polynomial of degree 11 in r, and k added to the exponent's bits.

    Parameters
    ----------
    shifted
        Scratch array, at least as long as `x`.
    """
    for n in range(len(x)):
        value = min(max(x[n], -_LARGEST), _LARGEST)
        shifted[n] = value * _PER_LOG_2 + _SHIFT
        k = shifted[n] - _SHIFT
        r = (value - k * _LOG_2_HIGH) - k * _LOG_2_LOW
        p = 1.0 / 39916800
        p = p * r + 1.0 / 3628800
        p = p * r + 1.0 / 362880
        p = p * r + 1.0 / 40320
        p = p * r + 1.0 / 5040
        p = p * r + 1.0 / 720
        p = p * r + 1.0 / 120
        p = p * r + 1.0 / 24
        p = p * r + 1.0 / 6
        p = p * r + 0.5
        p = p * r + 1.0
        x[n] = p * r + 1.0
    whole, bits = shifted.view(np.int64), x.view(np.int64)
    for n in range(len(x)):
        bits[n] += (whole[n] - _SHIFT_BITS) << 52


def sigmoid(a: float) -> float:
    """Return 1 / (1 + exp(-a)) without overflow."""
    small = math.exp(-abs(a))
    return (1.0 if a >= 0.0 else small) / (1.0 + small)


def sigmoids(a: Floats, out: Floats, scratch: Floats) -> None:
    """Write 1 / (1 + exp(-a)) into `out`."""
    out[:] = logistic(a)


def sigmoids_loop(a: Floats, out: Floats, scratch: Floats) -> None:
    """Version of :func:`sigmoids` for the compiler; `scratch` is at least as long as `a`."""
    for n in range(len(a)):
        out[n] = -a[n]
    exponentiate(out, scratch)
    for n in range(len(a)):
        out[n] = 1.0 / (1.0 + out[n])


def assign(x: Floats, y: Floats) -> None:
    """Copy y into x."""
    x[:] = y


def assign_loop(x: Floats, y: Floats) -> None:
    """Version of :func:`assign` for the compiler, which compiles no message for different shapes."""
    for n in range(len(x)):
        x[n] = y[n]


def add_scaled(x: Floats, scale: float, y: Floats) -> None:
    """Add scale * y to x, in place."""
    x += scale * y


def add_scaled_loop(x: Floats, scale: float, y: Floats) -> None:
    """Version of :func:`add_scaled` for the compiler."""
    for n in range(len(x)):
        x[n] += scale * y[n]


def rank(x: Floats, many: int) -> NDArray[np.int64]:
    """Return the indices that sort the first elements of x, in increasing order; equal elements keep their order."""
    return np.argsort(x[:many], kind="stable")


def rank_loop(x: Floats, many: int) -> NDArray[np.int64]:
    """Version of :func:`rank` for the compiler: insertion, since there are few units."""
    order = np.empty(many, dtype=np.int64)
    for new in range(many):
        place = new
        while place > 0 and x[order[place - 1]] > x[new]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = new
    return order


def dot(x: Floats, y: Floats) -> float:
    """Return the inner product, by eight independent sums that the compiler can vectorise."""
    sums = np.zeros(8)
    whole = len(x) // 8 * 8
    for start in range(0, whole, 8):
        for lane in range(8):
            sums[lane] += x[start + lane] * y[start + lane]
    total = 0.0
    for lane in range(8):
        total += sums[lane]
    for n in range(whole, len(x)):
        total += x[n] * y[n]
    return total
