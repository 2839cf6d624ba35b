"""What an experiment found, what was expected of it, and whether the two agree: plain values, written as JSON."""

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
    "expectations",
    "judge",
    "layout",
    "paired",
    "repeated",
    "summed_up",
]


@dataclass(frozen=True)
class Request:
    """What is asked of an experiment.

    Attributes
    ----------
    mode : {"smoke", "full"}
        Seconds, or the experiment.
    seed : int
        The same seed gives the same values.
    data : path, optional
        Folder with the data sets; else the environment variable FATHOMLESS_DATA.
    preset : {"default", "paper"}
        Settings of this library, or of the paper.
    out : path, optional
        Where parts and checkpoints are kept, for a run that may be interrupted.
    progress : Progress, optional
        Display of the parts that are done.
    """

    mode: str = "smoke"
    seed: int = 0
    data: str | PathLike[str] | None = None
    preset: str = "default"
    out: str | PathLike[str] | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Value:
    """A measured number.

    Attributes
    ----------
    value : float
        The mean.
    error : float or None
        Its standard error over `n` independent repetitions; None for a single one.
    n : int
        How many.
    """

    value: float
    error: float | None = None
    n: int = 1


@dataclass(frozen=True)
class Result:
    """What a run of an experiment found.

    Attributes
    ----------
    name, mode, preset, seed
        Which run.
    values : mapping of str to Value
        Numbers by name, with slashes between the parts of a name: ``"yacht/udn/rmse"``.
    settings : mapping
        Everything that was chosen, as plain JSON.
    seconds : float
        How long the computation took, over all its parts.
    curves : mapping
        More for the figure, as plain JSON.
    notes : tuple of str
        What a reader should know.
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
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_json`.

        Raises
        ------
        DataError
            If it is not what :meth:`to_json` returns.
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
    """What a value should be, and where that comes from.

    With neither bound nor tolerance, `value` is shown beside what was found, and nothing is demanded.

    Attributes
    ----------
    key : str
        Name of the value.
    source : str
        Table, figure or section.
    value, tolerance : float, optional
        |found − value| <= tolerance.
    at_least, at_most : float, optional
        Bounds.
    errors : float
        Bounds and tolerance give way by so many standard errors of what was found.
    """

    key: str
    source: str
    value: float | None = None
    tolerance: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    errors: float = 0.0

    def demands(self) -> bool:
        """Whether anything is demanded."""
        return not self.tolerance is self.at_least is self.at_most is None

    def holds(self, found: Value) -> bool:
        """Whether a value is as expected.

        Examples
        --------
        >>> Expectation("depth", "Figure 8", at_most=2.0, errors=1.0).holds(Value(2.1, error=0.2, n=5))
        True
        """
        slack = self.errors * (found.error or 0.0)
        low, high = -math.inf, math.inf
        if self.value is not None and self.tolerance is not None:
            low, high = self.value - self.tolerance, self.value + self.tolerance
        low = low if self.at_least is None else max(low, self.at_least)
        high = high if self.at_most is None else min(high, self.at_most)
        return low - slack <= found.value <= high + slack  # false for nan

    def text(self) -> str:
        """Say what is expected in a few characters."""
        words = []
        if self.value is not None:
            words.append(f"{self.value:.4g}" + ("" if self.tolerance is None else f" ± {self.tolerance:.2g}"))
        words += [] if self.at_least is None else [f"≥ {self.at_least:.4g}"]
        words += [] if self.at_most is None else [f"≤ {self.at_most:.4g}"]
        return ", ".join(words) + (f" (within {self.errors:g} s.e.)" if self.errors else "")


@dataclass(frozen=True)
class Verdict:
    """An expectation beside what was found; `holds` is None if nothing was demanded."""

    expectation: Expectation
    found: Value | None
    holds: bool | None


def expectations(table: Mapping[str, Any], name: str, mode: str, preset: str) -> tuple[Expectation, ...]:
    """Pick the expectations of one run out of ``expected.json``: those of mode/preset, or else of the mode."""
    own = table.get(name, {})
    return tuple(Expectation(**entry) for entry in own.get(f"{mode}/{preset}", own.get(mode, ())))


def judge(result: Result, expected: Sequence[Expectation]) -> tuple[Verdict, ...]:
    """Compare a result with what was expected of it; a demand on a value that is missing does not hold."""
    verdicts = []
    for entry in expected:
        found = result.values.get(entry.key)
        if entry.demands():
            verdicts.append(Verdict(entry, found, found is not None and entry.holds(found)))
        elif found is not None:
            verdicts.append(Verdict(entry, found, None))
    return tuple(verdicts)


def layout(verdicts: Sequence[Verdict]) -> str:
    """Lay out verdicts as a table: what, found, expected, verdict, where it comes from."""
    rows = [("value", "found", "expected", "verdict", "source")]
    for verdict in verdicts:
        word = {None: "-", True: "holds", False: "does not hold"}[verdict.holds]
        entry = verdict.expectation
        rows.append((entry.key, _measured(verdict.found), entry.text(), word, entry.source))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def summed_up(values: Sequence[float]) -> Value:
    """Return the mean of independent repetitions, with its standard error.

    Examples
    --------
    >>> summed_up([1.0, 2.0, 3.0])
    Value(value=2.0, error=0.577..., n=3)
    """
    n = len(values)
    if n == 0:
        raise DataError("0 repetitions were given; at least 1 is needed")
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else None
    return Value(mean, error, n)


def repeated(found: Mapping[str, Mapping[str, Any]], name: str, repetitions: int) -> dict[str, Value]:
    """Sum up the numbers of the parts `name`/0, `name`/1, ... as `name`/SCORE; what is no number is left out.

    Examples
    --------
    >>> repeated({"a/0": {"rmse": 1.0}, "a/1": {"rmse": 3.0}}, "a", 2)
    {'a/rmse': Value(value=2.0, error=1.0, n=2)}
    """
    each = [found[f"{name}/{s}"] for s in range(repetitions)]
    scores = [score for score, value in each[0].items() if isinstance(value, int | float)]
    return {f"{name}/{score}": summed_up([one[score] for one in each]) for score in scores}


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Value:
    """Return the mean difference of repetitions that share their data, with its standard error."""
    return summed_up([a - b for a, b in zip(ours, theirs, strict=True)])


def _measured(found: Value | None) -> str:
    if found is None:
        return "missing"
    return f"{found.value:.4g}" + ("" if found.error is None else f" ± {found.error:.2g} (n = {found.n})")
