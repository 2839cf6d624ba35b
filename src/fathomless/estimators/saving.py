"""Options of estimators: checks, rules that fill in what is left open, plain JSON and back; errors made clear."""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from os import PathLike
from typing import Any, cast

import numpy as np
from torch import Tensor

from fathomless.data.folds import is_splits
from fathomless.data.rows import Rows, Stream
from fathomless.estimators.declaring import OptionValue, shortened
from fathomless.estimators.values import FoldArray, Splitter
from fathomless.system.errors import DataError, FileError
from fathomless.system.masked import unmask

__all__ = [
    "FUNCTION",
    "current",
    "decoded",
    "encoded",
    "explained",
    "fingerprint",
    "foreign",
    "saved_folds",
]

#: What a manifest holds in place of an option that was a function.
FUNCTION = {"function": True}  # stands for an option that was a function

# what version 0.1.0 called what is written now, and the options that families had and did not use
_RENAMED_OPTIONS = {"structure": "predict_by", "progress": "verbose"}
_RENAMED_CLASSES = {"ClippedPoisson": "TruncatedPoisson", "Clip": "HardTruncation", "Taper": "SmoothTruncation"}
_RENAMED_FIELDS = {"clip": "truncation"}
# what a manifest that passed its checks may cause
_MISTAKES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_LONGEST = 300  # characters of a reason
_OF_TYPE = ("must be a string or a real number",)
_WITHOUT_EFFECT = {"weight_draws", "structure_rate", "structure_optimizer", "structure_radius", "structure_delay"}


def fingerprint(
    train: Rows | Stream,
    valid: Rows | None,
    start: Iterable[Tensor],
    training: Any,
    options: dict[str, Any],
    without: Collection[str] = (),
) -> str:
    """Name the data, the start and the options of a fit, so that a checkpoint of another one is not taken up.

    `training` is a dataclass: how the inference goes. What is named by `without` does not count: a fit may go on
    with more of it.
    """
    told = [{name: v for name, v in of.items() if name not in without} for of in (asdict(training), options)]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
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
    except (OverflowError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        hints = {
            "contains NaN": "data frames may have gaps, and so may arrays with missing='impute'",
            "could not convert string": "arrays hold numbers: give text in a data frame (pandas, polars, pyarrow); a "
            "ColumnTransformer or a pipeline hands one on after set_output(transform='pandas')",
            "int too large": "X has a whole number of more than 308 digits, which double precision does not hold: "
            "rescale its column",
            "setting an array element with a sequence": "X has rows of several lengths, or cells that hold several "
            "values: give one number for each cell",
            "must be a string or a real number": "arrays hold numbers: give other types in a data frame (pandas, "
            "polars, pyarrow)",
            "Feature names are only supported if all": "the columns have names of several types: rename them, with "
            "X.columns = X.columns.astype(str)",
            "Sparse data": "or make it dense at its source: OneHotEncoder(sparse_output=False), ColumnTransformer(..., "
            "sparse_threshold=0), and TruncatedSVD after TfidfVectorizer",
        }
        for sign, hint in hints.items():
            if sign in reason:
                known = TypeError if sign in _OF_TYPE else DataError  # as scikit-learn's estimators raise it
                raise known(f"{reason}; {hint}") from error
        raise


@contextlib.contextmanager
def foreign(path: str | PathLike[str]) -> Iterator[None]:
    """Turn whatever a manifest that passed its checks may still do wrong into one clear error."""
    try:
        yield
    except _MISTAKES as error:
        reason = str(error).partition("\n")[0]
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
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
        case np.ndarray():
            return encoded(value.tolist(), classes)
        case dict():
            return {"pairs": [[encoded(key, classes), encoded(entry, classes)] for key, entry in value.items()]}
    name = type(value).__name__
    if classes.get(name) is type(value):
        entries = {f.name: encoded(getattr(value, f.name), classes) for f in fields(cast(Any, value)) if f.init}
        return {"class": name, "fields": entries}
    if callable(value):
        return FUNCTION
    raise DataError(f"an option of type {name} cannot be saved; allowed are plain values and {', '.join(classes)}")


def saved_folds(cv: Any, made: tuple[Any, Any]) -> Any:
    """Return the option `cv` of a fit with the folds in place of a splitter, and a plain array in place of others.

    Parameters
    ----------
    cv : object
        The option.
    made : tuple
        The splitter of the fit, and its folds of the rows of the table, shape (R, N).

    Raises
    ------
    DataError
        For a splitter that was set after the fit.
    """
    if isinstance(cv, Splitter) or is_splits(cv):
        if made[0] is not cv:
            raise DataError(
                f"cv={shortened(cv)} was set after the fit, and the folds of a splitter are saved in its place: fit "
                "again, or set another cv"
            )
        cv = made[1]
    return np.asarray(unmask(cv)) if isinstance(cv, FoldArray) else cv


def current(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return encoded options by the names that they have now; those that a family has no more are left out.

    Version 0.1.0 had other names for some options and laws, and gave every family options that had no effect on it.
    Until `class_weight` meant what it means in scikit-learn, it was what `class_cost` is now.
    """
    known = set(names)
    if "class_weight" in options and "class_cost" not in options:  # what it was called before
        options = {
            **{name: v for name, v in options.items() if name != "class_weight"},
            "class_cost": options["class_weight"],
        }
    renamed = {_RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}
    return {name: value for name, value in renamed.items() if name in known or name not in _WITHOUT_EFFECT}


def decoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Undo :func:`encoded`; lists become tuples."""
    match value:
        case {"class": str(name), "fields": dict(entries)}:
            renamed = {_RENAMED_FIELDS.get(field, field): entry for field, entry in entries.items()}
            return classes[_RENAMED_CLASSES.get(name, name)](**decoded(renamed, classes))
        case {"pairs": list(pairs)} if len(value) == 1:
            return {key: decoded(entry, classes) for key, entry in pairs}
        case dict():
            return {name: decoded(entry, classes) for name, entry in value.items()}
        case OptionValue():  # of options that an older version wrote under other names
            inner = {f.name: decoded(getattr(value, f.name), classes) for f in fields(cast(Any, value))}
            return type(value)(**inner)
        case list():
            return tuple(decoded(entry, classes) for entry in value)
    return value
