"""Results of experiments, expected values and verdicts: plain values that are saved as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Self

from fathomless.system.errors import DataError
from fathomless.system.progress import Progress

__all__ = [
    "Expectation",
    "Request",
    "Result",
    "Value",
    "Verdict",
    "average",
    "average_parts",
    "expectations",
    "judge",
    "layout",
    "paired_difference",
]


@dataclass(frozen=True)
class Request:
    """Options of a run of an experiment.

    Attributes
    ----------
    mode : {"smoke", "full"}
        A short version that takes seconds, or the complete experiment.
    seed : int
        Seed; the same seed gives the same values.
    data : path, optional
        Folder of the data sets; by default the environment variable FATHOMLESS_DATA.
    preset : {"default", "paper"}
        Settings of this library, or of the paper.
    out : path, optional
        Folder for parts and checkpoints, from which an interrupted run resumes.
    progress : Progress, optional
        Display of the number of completed parts.
    """

    mode: str = "smoke"
    seed: int = 0
    data: str | PathLike[str] | None = None
    preset: str = "default"
    out: str | PathLike[str] | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Value:
    """Measured number with its standard error.

    Attributes
    ----------
    value : float
        The mean.
    error : float or None
        Its standard error over `n` independent repetitions; None for a single one.
    n : int
        Number of repetitions.
    """

    value: float
    error: float | None = None
    n: int = 1


@dataclass(frozen=True)
class Result:
    """Result of a run of an experiment.

    Attributes
    ----------
    name, mode, preset, seed
        Name of the experiment, and options of the run.
    values : mapping of str to Value
        Numbers by name, with slashes between the parts of a name: ``"yacht/udn/rmse"``.
    settings : mapping
        All settings of the run, as plain JSON.
    seconds : float
        Computation time, summed over all parts.
    curves : mapping
        Additional data for the figure, as plain JSON.
    notes : tuple of str
        Remarks for the reader.
    """

    name: str
    mode: str
    preset: str
    seed: int
    values: Mapping[str, Value]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    curves: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Self:
        """Return the result from the output of :meth:`to_json`.

        Raises
        ------
        DataError
            If `obj` is not an output of :meth:`to_json`.
        """
        try:
            values = {name: Value(**value) for name, value in obj["values"].items()}
            return cls(**{**obj, "values": values, "notes": tuple(obj["notes"])})
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(
                f"this is not the result of an experiment ({error}); give a result.json that reproduce wrote"
            ) from error


@dataclass(frozen=True)
class Expectation:
    """Expected value of an experiment, with its source.

    With neither bound nor tolerance, `value` is only shown for comparison, and there is no verdict.

    Attributes
    ----------
    key : str
        Name of the value.
    source : str
        Table, figure or section.
    value, tolerance : float, optional
        |measured − value| <= tolerance.
    at_least, at_most : float, optional
        Bounds.
    errors : float
        Number of standard errors of the measured value by which bounds and tolerance are widened.
    """

    key: str
    source: str
    value: float | None = None
    tolerance: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    errors: float = 0.0

    def demands(self) -> bool:
        """Return True if there is a bound or a tolerance."""
        return not self.tolerance is self.at_least is self.at_most is None

    def holds(self, found: Value) -> bool:
        """Return True if a measured value satisfies the bounds and the tolerance.

        Examples
        --------
        >>> Expectation("depth", "Figure 8", at_most=2.0, errors=1.0).holds(Value(2.1, error=0.2, n=5))
        True
        """
        slack = self.errors * (found.error or 0.0)
        low = -math.inf
        high = math.inf
        if self.value is not None and self.tolerance is not None:
            low, high = self.value - self.tolerance, self.value + self.tolerance
        low = low if self.at_least is None else max(low, self.at_least)
        high = high if self.at_most is None else min(high, self.at_most)
        return low - slack <= found.value <= high + slack  # false for nan

    def text(self) -> str:
        """Return the expectation as a short text."""
        words = []
        if self.value is not None:
            words.append(f"{self.value:.4g}" + ("" if self.tolerance is None else f" ± {self.tolerance:.2g}"))
        words += [] if self.at_least is None else [f"≥ {self.at_least:.4g}"]
        words += [] if self.at_most is None else [f"≤ {self.at_most:.4g}"]
        return ", ".join(words) + (f" (within {self.errors:g} s.e.)" if self.errors else "")


@dataclass(frozen=True)
class Verdict:
    """Expectation with the measured value; `holds` is None if there is no bound or tolerance."""

    expectation: Expectation
    found: Value | None
    holds: bool | None


def expectations(table: Mapping[str, Any], name: str, mode: str, preset: str) -> tuple[Expectation, ...]:
    """Return the expectations of one run from ``expected.json``: those of mode/preset, otherwise of the mode."""
    own = table.get(name, {})
    return tuple(Expectation(**entry) for entry in own.get(f"{mode}/{preset}", own.get(mode, ())))


def judge(result: Result, expected: Sequence[Expectation]) -> tuple[Verdict, ...]:
    """Compare a result with its expectations; a bound or tolerance on a missing value does not hold."""
    verdicts = []
    for entry in expected:
        found = result.values.get(entry.key)
        if entry.demands():
            verdicts.append(Verdict(entry, found, found is not None and entry.holds(found)))
        elif found is not None:
            verdicts.append(Verdict(entry, found, None))
    return tuple(verdicts)


def layout(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table with the columns value, found, expected, verdict and source."""
    rows = [("value", "found", "expected", "verdict", "source")]
    for verdict in verdicts:
        word = {None: "-", True: "holds", False: "does not hold"}[verdict.holds]
        entry = verdict.expectation
        rows.append((entry.key, _format_value(verdict.found), entry.text(), word, entry.source))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def average(values: Sequence[float]) -> Value:
    """Return the mean of independent repetitions, with its standard error.

    Examples
    --------
    >>> average([1.0, 2.0, 3.0])
    Value(value=2.0, error=0.577..., n=3)
    """
    n = len(values)
    if n == 0:
        raise DataError("0 repetitions were given; at least 1 is needed")
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else None
    return Value(mean, error, n)


def average_parts(found: Mapping[str, Mapping[str, Any]], name: str, repetitions: int) -> dict[str, Value]:
    """Average the numbers of the parts `name`/0, `name`/1, ... as `name`/SCORE; other entries are ignored.

    Examples
    --------
    >>> average_parts({"a/0": {"rmse": 1.0}, "a/1": {"rmse": 3.0}}, "a", 2)
    {'a/rmse': Value(value=2.0, error=1.0, n=2)}
    """
    each = [found[f"{name}/{s}"] for s in range(repetitions)]
    scores = [score for score, value in each[0].items() if isinstance(value, int | float)]
    return {f"{name}/{score}": average([one[score] for one in each]) for score in scores}


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Value:
    """Return the mean difference of repetitions that share their data, with its standard error."""
    return average([a - b for a, b in zip(ours, theirs, strict=True)])


def _format_value(found: Value | None) -> str:
    if found is None:
        return "missing"
    return f"{found.value:.4g}" + ("" if found.error is None else f" ± {found.error:.2g} (n = {found.n})")
