"""Checks of user input. Messages say what was given, what is allowed, and what to do.

They begin with the name and the value: ``width=0 was given; ...``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, cast

from fathomless.system.errors import DataError

__all__ = ["check_returned", "choice", "flag", "interval", "option", "positive", "real", "scale", "whole"]

_MOST = 2**31 - 1  # largest whole number
_SCALES = (1e-10, 1e10)  # range of standard deviations


def whole(name: str, value: Any, *special: object, least: int = 1, most: int = _MOST) -> int:
    """Return a value that must be a whole number; `special` are other values that the message names."""
    if not isinstance(value, Integral) or value < least:
        others = "".join(f", or {other!r}" for other in special)
        raise DataError(f"{name}={value!r} was given; at least {least} is needed, a whole number{others}")
    if int(value) > most:
        raise DataError(f"{name}={value!r} was given; at most {most:,} is allowed")
    return int(value)


def real(name: str, value: Any, *special: object) -> float:
    """Return a value that must be a finite number; `special` are other values that the message names."""
    if not isinstance(value, Real) or not math.isfinite(value):
        others = "".join(f", or {other!r}" for other in special)
        raise DataError(f"{name}={value!r} was given; a finite number is allowed{others}")
    return float(value)


def positive(name: str, value: Any, *special: object) -> float:
    """Return a value that must be a positive, finite number; `special` are other values that the message names."""
    if not isinstance(value, Real) or not 0.0 < float(value) < math.inf:
        others = "".join(f", or {other!r}" for other in special)
        raise DataError(f"{name}={value!r} was given; a positive, finite number is allowed{others}")
    return float(value)


def scale(name: str, value: Any, *special: object) -> float:
    """Return a standard deviation, or another number that is squared; single precision must hold it and its inverse."""
    number = positive(name, value, *special)
    least, most = _SCALES
    if not least <= number <= most:
        raise DataError(f"{name}={value!r} was given; from {least:g} to {most:g} is allowed")
    return number


def interval(name: str, value: Any, low: float, high: float, *, closed: bool = True) -> float:
    """Return a number that must satisfy ``low <= value < high``, or ``low < value < high`` without `closed`."""
    number = float(value) if isinstance(value, Real) else math.nan
    if not (low <= number < high if closed else low < number < high):
        if closed and high == math.inf:
            raise DataError(f"{name}={value!r} was given; {low:g} or more is allowed")
        sign = "<=" if closed else "<"
        raise DataError(f"{name}={value!r} was given; {low:g} {sign} {name} < {high:g} is allowed")
    return number


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return a string that must be one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        *others, last = map(repr, allowed)
        listed = f"{', '.join(others)} and {last}" if others else last
        raise DataError(f"{name}={value!r} was given; allowed {'are' if others else 'is'} {listed}")
    return value


def flag(name: str, value: Any) -> bool:
    """Return a value that must be true or false."""
    if type(value).__name__ not in ("bool", "bool_"):  # of Python or NumPy; this module does not import NumPy
        raise DataError(f"{name}={value!r} was given; allowed are True and False")
    return bool(value)


def check_returned(name: str, value: Any, kind: type) -> Any:
    """Return the result of a function of the user, which must be an instance of `kind`."""
    if not isinstance(value, kind):
        needed = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
        raise DataError(f"{name} returned {value!r:.80}, a {type(value).__name__}; it must return {needed}")
    return value


def option(
    name: str,
    value: Any,
    kind: str,
    special: Sequence[Any],
    least: float | None,
    most: float | None,
    names: Sequence[str],
    values: Mapping[Any, type],
    without: Sequence[str],
    usual: Any = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Check an option against its declaration in :mod:`fathomless.estimators.declaring`.

    Parameters
    ----------
    name, value
        Name and value of the option.
    kind, special, least, most, names, values, without, usual, above, below
        As :func:`~fathomless.estimators.declaring.option` declares them; `usual` needs no check.

    Raises
    ------
    DataError
        If the value, or an option nested in it, is not allowed.
    """
    plain = [value for value in special if not isinstance(value, type)]
    if isinstance(value, tuple(values.values())):
        _check_nested(name, value, without)
        return
    number = kind == "real" and isinstance(value, Real)  # `object` allows all values, and numbers have limits even so
    other = any(
        isinstance(value, allowed) and not number if isinstance(allowed, type) else value is allowed
        for allowed in special
    )
    if values and not other and (kind == "object" or (kind == "choice" and not isinstance(value, str))):
        _require_value(name, value, special, names, values)
    if kind == "choice" and isinstance(value, str):  # other types are checked by their users
        choice(name, value, names)
    if other:
        return
    if isinstance(value, str) and value in plain:
        return
    plain += [_Written(f"{class_.__name__}(...)") for class_ in values.values()]
    match kind:
        case "whole":
            if isinstance(value, bool):
                raise DataError(f"{name}={value!r} was given; a whole number is allowed")
            limits = {"least": 1 if least is None else int(least), "most": _MOST if most is None else int(most)}
            whole(name, value, *plain, **limits)
        case "real":
            real(name, value, *plain)
            if least is not None and value < least:
                raise DataError(f"{name}={value!r} was given; {least:g} or more is allowed")
            if (above is not None and value <= above) or (below is not None and value >= below):
                raise DataError(f"{name}={value!r} was given; {_describe_range(name, above, below, most, plain)}")
            if most is not None and value > most:
                raise DataError(f"{name}={value!r} was given; at most {most:,g} is allowed")
        case "flag":
            flag(name, value)
        case "order":
            _require_order(name, value)
        case "lists":
            _require_lists(name, value)


def _describe_range(
    name: str, above: float | None, below: float | None, most: float | None, special: Sequence[Any]
) -> str:
    """Return the numbers between two bounds, one of which is not allowed itself, and the other values of an option."""
    low = "" if above is None else f"{above:g} < "
    high = f" < {below:g}" if below is not None else "" if most is None else f" <= {most:,g}"
    alone = "a positive, finite number" if above == 0.0 else f"a number above {above:g}"
    numbers = f"{f'{low}{name}{high}' if high else alone} is allowed"
    return numbers + "".join(f", or {other!r}" for other in special)


def _require_order(name: str, value: Any) -> None:
    """Check True, False, or a sequence of at least two labels."""
    if isinstance(value, bool):
        return
    labels = isinstance(value, Sequence) and not isinstance(value, str)
    if not labels or len(value) < 2:
        raise DataError(f"{name}={value!r} was given; True, False and a list of at least two labels are allowed")


def _require_lists(name: str, value: Any) -> None:
    """Check a mapping of names to lists of values, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise DataError(f"{name}={value!r} was given; None and a dict of lists are allowed, one list for each option")


def _require_value(
    name: str, value: Any, special: Sequence[Any], names: Sequence[str], values: Mapping[Any, type]
) -> None:
    """Raise an error that lists the choices and the classes of values."""
    if value is None and None in values:
        return
    classes = [f"{kind.__name__}(...)" for kind in values.values()]
    paths = ["a path"] if str in special else []
    *others, last = [*map(repr, names), *(["None"] if None in (*special, *values) else []), *paths, *classes]
    allowed = f"are {', '.join(others)} and {last}" if others else f"is {last}"
    raise DataError(f"{name}={value!r} was given; allowed {allowed}")


class _Written(str):
    """String that messages show without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _check_nested(name: str, value: Any, without: Sequence[str]) -> None:
    """Check each option of a value with options."""
    for inner in fields(cast(Any, value)):
        given = getattr(value, inner.name)
        if inner.name not in without:
            option(f"{name}__{inner.name}", given, **inner.metadata)
        elif given != inner.default:
            raise DataError(f"{name}={value!r} was given; {inner.name} has no effect here: leave it out")
