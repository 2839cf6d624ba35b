r"""Lattices and atoms of numeric columns, in memory or part by part.

A lattice is a set of points :math:`a + k \delta` with whole numbers k. Counts, grades and rounded measurements lie on
one. An atom is a single value that many rows share, such as zero in a column of amounts.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["NO_LATTICE", "AtomTally", "Lattice", "LatticeTally", "find_atoms", "find_hurdle", "find_lattice"]

Floats: TypeAlias = npt.NDArray[np.float64]

_CLOSE = 1e-3  # largest distance from a point of the lattice, in steps, that can be rounding
_DOUBLE, _SINGLE = 1e-12, 2.4e-7  # relative rounding errors of numbers in double and in single precision
_FINEST = 1e-4  # step of a lattice in standard deviations below which it is ignored
_SMALLEST = 1e-12  # step in units of the range below which the search ends
_LEAST_SHARE = 0.05  # share of the rows of an atom
_LEAST_ROWS = 10  # number of rows of an atom
_PROMINENT = 3.0  # rows of an atom on a lattice, relative to those of the most frequent point near it
_NEAR = 3  # distance of these points in steps
_LEAST_OTHERS = 30  # number of rows without atoms
_LEAST_DISTINCT = 10  # number of their distinct values
_KEPT = 2000  # distinct values that are counted in a stream


@dataclass(frozen=True)
class Lattice:
    """The points offset + k step, with whole numbers k.

    Attributes
    ----------
    step : float
        Distance of neighbouring points in units of the column: 1, 2 or 5 times a power of ten; 0 if there is no
        lattice.
    offset : float
        The smallest non-negative point, below the step.
    """

    step: float
    offset: float = 0.0


NO_LATTICE = Lattice(0.0)  #: a column without a lattice


def find_lattice(values: Floats) -> Lattice:
    r"""Find the lattice of a column: the largest step of the form 1, 2 or 5 times a power of ten.

    All differences between values are multiples of the step, up to the rounding error of the values and to a thousandth
    of a step. The error is that of single precision if all values are numbers of single precision. A column has no
    lattice if all values are equal, or if the step is below 1e-4 standard deviations.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite numbers.

    Examples
    --------
    >>> find_lattice(np.array([3.0, 5.0, 6.0, 5.0]))
    Lattice(step=1.0, offset=0.0)
    >>> find_lattice(np.array([0.1, 0.1 * 3, 0.7]))
    Lattice(step=0.2, offset=0.1)
    >>> find_lattice(np.array([0.0, math.pi, math.e]))
    Lattice(step=0.0, offset=0.0)
    """
    tally = LatticeTally()
    tally.add(values)
    return tally.finish(float(values.min()), float(values.std()))


@dataclass
class LatticeTally:
    """Largest step on which all values of a stream lie.

    All valid steps are divisors of the largest one. A step that fails on later values is therefore replaced by the
    largest of its divisors that is valid for them.

    Attributes
    ----------
    anchor : float, optional
        The first value.
    exponent, digit : int
        The step is digit times ten to the power of the exponent. The digit is 0 after the search ended without a step.
    started : bool
        True if two different values were seen.
    """

    anchor: float | None = None
    exponent: int = 0
    digit: int = 1
    started: bool = False

    def add(self, values: Floats) -> None:
        """Add values, which must be finite."""
        if not len(values) or not self.digit:
            return
        if self.anchor is None:
            self.anchor = float(values[0])
        distance = np.abs(values - self.anchor)
        largest = float(distance.max())
        if largest == 0.0:
            return
        if not self.started:
            self.exponent, self.digit, self.started = math.floor(math.log10(largest)) + 1, 1, True
        least = max(_SMALLEST * largest, np.finfo(np.float64).tiny)
        with np.errstate(over="ignore"):
            single = bool((values.astype(np.float32) == values).all())
        rounding = (_SINGLE if single else _DOUBLE) * (np.abs(values) + abs(self.anchor))
        few = slice(None, None, max(1, len(distance) // 64))  # most steps fail on a few values
        started_at_five = self.digit == 5
        while not (_lies_on(distance[few], rounding[few], self.step) and _lies_on(distance, rounding, self.step)):
            self._descend(skip_two=started_at_five)
            started_at_five = False
            if self.step < least:
                self.digit = 0
                return

    @property
    def step(self) -> float:
        """The current step; 0 if there is none."""
        return float(f"{self.digit}e{self.exponent}")  # the nearest float of a decimal fraction, unlike products

    def finish(self, low: float, deviation: float) -> Lattice:
        """Return the lattice.

        Parameters
        ----------
        low, deviation : float
            Minimum and standard deviation of all values.
        """
        if not self.started or not self.digit or self.step < _FINEST * deviation:
            return NO_LATTICE
        share = round(math.fmod(low / self.step, 1.0), 6) % 1.0  # fmod keeps the sign
        return Lattice(self.step, share * self.step if _CLOSE < share < 1.0 - _CLOSE else 0.0)

    def _descend(self, *, skip_two: bool) -> None:
        """Go to the next smaller step; 2 is not a divisor of 5, on which earlier values lie."""
        match self.digit:
            case 1:
                self.exponent, self.digit = self.exponent - 1, 5
            case 5 if not skip_two:
                self.digit = 2
            case _:
                self.digit = 1


def _lies_on(distance: Floats, rounding: Floats, step: float) -> bool:
    """Return whether distances are multiples of a step, up to rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = distance / step
        rest = np.abs(quotient - np.round(quotient))
    return bool((rest <= np.minimum(rounding / step, _CLOSE)).all())


def find_atoms(values: Floats) -> tuple[float, ...]:
    """Return the values that at least 5 % and at least 10 of the rows share, ascending.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite numbers.

    Examples
    --------
    >>> find_atoms(np.array([0.0] * 20 + [0.3, 1.7, 2.9]))
    (0.0,)
    """
    distinct, counts = np.unique(values, return_counts=True)
    return tuple(distinct[counts >= _least_count(len(values))].tolist())


def find_hurdle(values: Floats, lattice: Lattice) -> tuple[float, ...]:
    """Return the atoms of a column that a law of its other values does not describe, ascending.

    On a lattice, an atom has at least 3 times as many rows as every point within 3 steps of it: the number 0 of a
    column of counts often has many rows, as 1 and 2 have. There are none if fewer than 30 rows, or fewer than 10
    distinct values, are left.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite numbers.
    lattice : Lattice
        Lattice of the column.

    Examples
    --------
    >>> amounts = np.concatenate([np.zeros(20), np.arange(40.0) ** 1.5])
    >>> find_hurdle(amounts, find_lattice(amounts))
    (0.0,)
    """
    atoms = find_atoms(values)
    if lattice.step:
        distinct, counts = np.unique(values, return_counts=True)
        atoms = tuple(
            atom
            for atom in atoms
            if counts[distinct == atom][0] >= _PROMINENT * _count_near(distinct, counts, atom, lattice.step)
        )
    others = values[~np.isin(values, atoms)]
    enough = len(others) >= _LEAST_OTHERS and len(np.unique(others)) >= _LEAST_DISTINCT
    return atoms if enough else ()


def _count_near(distinct: Floats, counts: npt.NDArray[np.int64], atom: float, step: float) -> int:
    """Return the number of rows of the most frequent value near an atom."""
    distance = np.abs(distinct - atom)
    near = (distance > 0.5 * step) & (distance < (_NEAR + 0.5) * step)
    return int(counts[near].max(initial=0))


def _least_count(rows: int) -> float:
    return max(_LEAST_ROWS, _LEAST_SHARE * rows)


@dataclass
class AtomTally:
    """Counts of frequent values of a stream, in bounded memory.

    If there are too many distinct values, the count of the most frequent value to be dropped is subtracted from all
    counts. The error of a count is at most the number of rows divided by 2,000.

    References
    ----------
    Misra and Gries, *Finding repeated elements*, Science of Computer Programming 2 (1982).
    """

    rows: int = 0
    lost: int = 0
    counts: Counter[float] = field(default_factory=Counter)

    def add(self, values: Floats) -> None:
        """Add values, which must be finite."""
        distinct, counts = np.unique(values, return_counts=True)
        for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self.counts[value] += count
        self.rows += len(values)
        if len(self.counts) > _KEPT:
            subtracted = self.counts.most_common(_KEPT + 1)[-1][1]
            self.lost += subtracted
            self.counts = Counter({value: n - subtracted for value, n in self.counts.items() if n > subtracted})

    def finish(self) -> tuple[float, ...]:
        """Return the atoms as :func:`find_atoms` does; exact up to 2,000 distinct values."""
        least = _least_count(self.rows)
        return tuple(sorted(value for value, n in self.counts.items() if n + self.lost >= least))
