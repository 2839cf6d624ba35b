"""Options of estimators: checks, rules that fill in what is left open, plain JSON and back; errors made clear."""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from numbers import Integral, Real
from os import PathLike
from typing import Any, cast

import numpy as np
from torch import Tensor

from fathomless.data.rows import Rows, Stream
from fathomless.inference.training import Training
from fathomless.system.errors import DataError, FileError

__all__ = [
    "FUNCTION",
    "check",
    "decoded",
    "encoded",
    "explained",
    "fingerprint",
    "foreign",
    "real",
    "whole",
]

_MOST = 2**31 - 1  # of whole numbers
#: What a manifest holds in place of an option that was a function.
FUNCTION = {"function": True}  # stands for an option that was a function


def check(
    name: str, value: Any, kind: str, special: Sequence[Any], least: float | None, names: Sequence[str], flag: str = ""
) -> None:
    """Check an option against its declaration in :mod:`fathomless.estimators.options`, as far as it is plain."""
    plain = [other for other in special if not isinstance(other, type)]
    if any(isinstance(value, other) if isinstance(other, type) else value is other for other in special):
        return
    if isinstance(value, str) and value in plain:
        return
    match kind:
        case "whole":
            whole(name, value, *plain, least=1 if least is None else int(least))
        case "real":
            real(name, value, *plain)
            if least is not None and value < least:
                raise DataError(f"{name}={value!r} was given; {least:g} or more is allowed")
        case "flag" if not isinstance(value, bool | np.bool_):
            raise DataError(f"{name}={value!r} was given; allowed are True and False")


def whole(name: str, value: Any, *special: object, least: int = 1) -> int:
    """Return an option that must be a whole number; `special` are other values that the message tells of."""
    if not isinstance(value, Integral) or value < least:
        others = "".join(f", or {other!r}" for other in special)
        raise DataError(f"{name}={value!r} was given; at least {least} is needed, a whole number{others}")
    if int(value) > _MOST:
        raise DataError(f"{name}={value!r} was given; at most {_MOST:,} is allowed")
    return int(value)


def real(name: str, value: Any, *special: object) -> float:
    """Return an option that must be a finite number; `special` are other values that the message tells of."""
    if not isinstance(value, Real) or not math.isfinite(value):
        others = "".join(f", or {other!r}" for other in special)
        raise DataError(f"{name}={value!r} was given; a finite number is allowed{others}")
    return float(value)


def fingerprint(
    train: Rows | Stream, valid: Rows | None, start: Iterable[Tensor], training: Training, options: dict[str, Any]
) -> str:
    """Name the data, the start and the options of a fit, so that a checkpoint of another one is not taken up."""
    digest = hashlib.sha256(json.dumps([asdict(training), options], sort_keys=True, default=str).encode())
    if isinstance(train, Stream):
        digest.update(train.digest.encode())
    whole = [rows for rows in (train, valid) if isinstance(rows, Rows)]
    parts = [part for rows in whole for part in (rows.x, rows.y, rows.weight)]
    for tensor in (*start, *(part for part in parts if part is not None)):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Add to scikit-learn's refusal of an array what to do about it here."""
    try:
        yield
    except ValueError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        hints = {
            "contains NaN": "data frames may have gaps, and so may arrays with missing='impute'",
            "could not convert string": "arrays hold numbers: give text in a data frame (pandas, polars, pyarrow)",
        }
        for sign, hint in hints.items():
            if sign in reason:
                raise DataError(f"{reason}; {hint}") from error
        raise


@contextlib.contextmanager
def foreign(path: str | PathLike[str]) -> Iterator[None]:
    """Turn whatever a manifest that passed its checks may still do wrong into one clear error."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(
            f"{path} does not hold an estimator that this version can rebuild ({type(error).__name__}: {reason}); "
            "save it again with the version that wrote it"
        ) from error


def encoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Write options as plain JSON: values of our own by class and fields, functions by a mark."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return value.item()
        case list() | tuple():
            return [encoded(entry, classes) for entry in value]
    name = type(value).__name__
    if classes.get(name) is type(value):
        own = {f.name: encoded(getattr(value, f.name), classes) for f in fields(cast(Any, value)) if f.init}
        return {"class": name, "fields": own}
    if callable(value):
        return FUNCTION
    raise DataError(f"an option of type {name} cannot be saved; allowed are plain values and {', '.join(classes)}")


def decoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Undo :func:`encoded`; lists become tuples."""
    match value:
        case {"class": str(name), "fields": dict(entries)}:
            return classes[name](**decoded(entries, classes))
        case dict():
            return {name: decoded(entry, classes) for name, entry in value.items()}
        case list():
            return tuple(decoded(entry, classes) for entry in value)
    return value
