"""Conversion of options to plain JSON and back, fingerprints of fits, and clearer error messages."""

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
from fathomless.estimators.declaring import OptionValue, shorten
from fathomless.estimators.values import FoldArray, Splitter
from fathomless.system.errors import DataError, FileError
from fathomless.system.masked import unmask

__all__ = [
    "FUNCTION",
    "convert_errors",
    "decode",
    "encode",
    "explain_errors",
    "fingerprint",
    "restore_on_error",
    "saved_folds",
    "update_names",
]

#: Placeholder in a manifest for an option that was a function.
FUNCTION = {"function": True}

# names of version 0.1.0 and their current names
_RENAMED_OPTIONS = {"structure": "predict_by", "progress": "verbose"}
_RENAMED_CLASSES = {"ClippedPoisson": "TruncatedPoisson", "Clip": "HardTruncation", "Taper": "SmoothTruncation"}
_RENAMED_FIELDS = {"clip": "truncation"}
# errors that an altered manifest may cause although it passed the checks of its format
_MISTAKES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_LONGEST = 300  # maximum number of characters of a reason
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
    """Return a digest of the data, the start and the options of a fit; a checkpoint is only resumed if it matches.

    `training` is a dataclass of the options of the inference. Options in `without` are ignored, such as the number of
    epochs of a fit that can be extended.
    """
    included = [{name: v for name, v in of.items() if name not in without} for of in (asdict(training), options)]
    digest = hashlib.sha256(json.dumps(included, sort_keys=True, default=str).encode())
    if isinstance(train, Stream):
        digest.update(train.digest.encode())
    in_memory = [rows for rows in (train, valid) if isinstance(rows, Rows)]
    parts = [part for rows in in_memory for part in (rows.x, rows.y, rows.weight)]
    for tensor in (*start, *(part for part in parts if part is not None)):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Add a remedy to scikit-learn's errors about arrays."""
    try:
        yield
    except (OverflowError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        hints = {
            "contains NaN": "missing values are allowed in data frames, and in arrays with missing='impute'",
            "could not convert string": "arrays must be numeric: pass text in a data frame (pandas, polars, pyarrow); "
            "a ColumnTransformer or pipeline returns one after set_output(transform='pandas')",
            "int too large": "X has an integer of more than 308 digits, which is too large for double precision: "
            "rescale its column",
            "setting an array element with a sequence": "X has rows of different lengths, or cells with several "
            "values: give one number for each cell",
            "must be a string or a real number": "arrays must be numeric: pass other types in a data frame (pandas, "
            "polars, pyarrow)",
            "Feature names are only supported if all": "the names of the columns have different types: rename them "
            "with X.columns = X.columns.astype(str)",
            "Sparse data": "or avoid sparse output: OneHotEncoder(sparse_output=False), ColumnTransformer(..., "
            "sparse_threshold=0), and TruncatedSVD after TfidfVectorizer",
        }
        for sign, hint in hints.items():
            if sign in reason:
                kind = TypeError if sign in _OF_TYPE else DataError  # scikit-learn tests the type of this error
                raise kind(f"{reason}; {hint}") from error
        raise


@contextlib.contextmanager
def convert_errors(path: str | PathLike[str]) -> Iterator[None]:
    """Convert errors caused by the content of a manifest to a FileError."""
    try:
        yield
    except _MISTAKES as error:
        reason = str(error).partition("\n")[0]
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
        raise FileError(
            f"{path} does not contain an estimator that this version can load ({type(error).__name__}: {reason}); "
            "save it again with the version that wrote it"
        ) from error


@contextlib.contextmanager
def restore_on_error(estimator: object) -> Iterator[None]:
    """Restore the attributes of an estimator if its fit fails or is interrupted."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise


def encode(value: Any, classes: Mapping[str, type]) -> Any:
    """Encode options as plain JSON: known classes by name and fields, functions by a placeholder."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return value.item()
        case list() | tuple():
            return [encode(entry, classes) for entry in value]
        case np.ndarray():
            return encode(value.tolist(), classes)
        case dict():
            return {"pairs": [[encode(key, classes), encode(entry, classes)] for key, entry in value.items()]}
    name = type(value).__name__
    if classes.get(name) is type(value):
        entries = {f.name: encode(getattr(value, f.name), classes) for f in fields(cast(Any, value)) if f.init}
        return {"class": name, "fields": entries}
    if callable(value):
        return FUNCTION
    raise DataError(f"an option of type {name} cannot be saved; allowed are plain values and {', '.join(classes)}")


def saved_folds(cv: Any, made: tuple[Any, Any]) -> Any:
    """Return the option `cv` of a fit for saving: folds in place of a splitter, a NumPy array in place of a series.

    Parameters
    ----------
    cv : object
        Value of the option.
    made : tuple
        Splitter of the fit, and its folds of the rows of the table, shape (R, N).

    Raises
    ------
    DataError
        If the splitter was set after the fit.
    """
    if isinstance(cv, Splitter) or is_splits(cv):
        if made[0] is not cv:
            raise DataError(
                f"cv={shorten(cv)} was set after the fit, and the folds of a splitter are only known after a fit: fit "
                "again, or set another cv"
            )
        cv = made[1]
    return np.asarray(unmask(cv)) if isinstance(cv, FoldArray) else cv


def update_names(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return encoded options under their current names, without options that a family no longer has.

    Version 0.1.0 had other names for some options and laws, and every family had options without effect on it. Before
    `class_weight` had its meaning of scikit-learn, it was the name of the present `class_cost`.
    """
    known = set(names)
    if "class_weight" in options and "class_cost" not in options:  # the former name of class_cost
        options = {
            **{name: v for name, v in options.items() if name != "class_weight"},
            "class_cost": options["class_weight"],
        }
    renamed = {_RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}
    return {name: value for name, value in renamed.items() if name in known or name not in _WITHOUT_EFFECT}


def decode(value: Any, classes: Mapping[str, type]) -> Any:
    """Decode the result of :func:`encode`; lists become tuples."""
    match value:
        case {"class": str(name), "fields": dict(entries)}:
            renamed = {_RENAMED_FIELDS.get(field, field): entry for field, entry in entries.items()}
            return classes[_RENAMED_CLASSES.get(name, name)](**decode(renamed, classes))
        case {"pairs": list(pairs)} if len(value) == 1:
            return {key: decode(entry, classes) for key, entry in pairs}
        case dict():
            return {name: decode(entry, classes) for name, entry in value.items()}
        case OptionValue():  # from options that an older version wrote under other names
            inner = {f.name: decode(getattr(value, f.name), classes) for f in fields(cast(Any, value))}
            return type(value)(**inner)
        case list():
            return tuple(decode(entry, classes) for entry in value)
    return value
