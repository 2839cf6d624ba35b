"""Conversion of arrays and data frames to matrices; reading of targets, and splits.

All tables are read here. The computation of the encoding is in :mod:`fathomless.data.schema`, that of labels and
targets in :mod:`fathomless.data.targets`. Encoding uses fitted values only.

Sample weights are counts: a row of weight 2 is equivalent to two equal rows, a row of weight 0 to no row.
"""

import importlib.util
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.bins import choose_bin_count
from fathomless.data.cells import (
    WIDE,
    check_digits,
    check_missing,
    is_missing,
    read_integers,
    read_numbers,
    read_objects,
    read_series,
    to_narwhals,
    to_numpy,
)
from fathomless.data.schema import (
    FEW_LEVELS,
    MISSING,
    NUMBERS,
    UNSEEN,
    Bools,
    Cells,
    Column,
    Floats,
    Schema,
    check_option,
    check_unknown_effects,
    choose_max_levels,
    encode_as_numbers,
    encode_column,
    family,
    find_unknown_effects,
    fit_column,
    rows_of,
    some,
)
from fathomless.system import memory
from fathomless.system.draws import permutation
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmask

__all__ = [
    "as_numbers",
    "check_weight",
    "encode",
    "fit_schema",
    "load_bundled",
    "make_frame",
    "merge_duplicates",
    "ordered_categories",
    "read_cells",
    "read_columns",
    "read_labels",
    "read_target",
    "read_vector",
    "select_columns",
    "space_evenly",
    "split",
    "take",
    "to_readable",
]

_NUMBER = re.compile(r"\s*[-+]?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?\s*")  # without leading zeros, as of codes


def fit_schema(
    X: Any,
    *,
    names: Sequence[str] | None = None,
    weight: npt.NDArray[Any] | None = None,
    counts: npt.NDArray[Any] | None = None,
    missing: str = "auto",
    unseen: str = "warn",
    standardize: bool = True,
    max_levels: int | str = FEW_LEVELS,
    limit: bool = True,
    numbers: str = "plain",
) -> Schema:
    """Fit the encoding of a table.

    Parameters
    ----------
    X : ndarray of numbers, shape (N, C), or data frame
        Any eager data frame supported by narwhals: pandas, polars, pyarrow.
    names : sequence of str, optional
        Column names of an array; x0, x1, ... by default.
    weight : ndarray, shape (N,), optional
        Sample weights. Rows of weight 0 are ignored, with their categories.
    counts : ndarray, shape (N,), optional
        Positive weights of the rows in the counts of categories; those of `weight` by default.
    missing : {"auto", "error", "impute"}
        Missing values are allowed in data frames ("auto"), nowhere ("error"), or also in arrays ("impute"). In a column
        without missing values in training, "auto" warns of them.
    unseen : {"warn", "error", "ignore"}
        A category that was not in the training data is encoded as zeros, with or without a warning, or raises an error.
        Another value of a column that was constant is replaced by its value in the training data.
    standardize : bool
        Center and scale numbers and dates by their weighted mean and (population) standard deviation.
        Constant columns keep the scale 1, and are encoded as 0.
    max_levels : int or "auto"
        A column with more categories keeps the most frequent ``max_levels - 1`` of those with a total weight of two or
        more (two rows without weights), and one at least; all others, and unseen categories, share one level
        "(other)". With "auto", this applies to columns with more than 100 categories, and the largest number is that of
        :func:`~fathomless.data.schema.choose_max_levels`.
    limit : bool
        True to treat outliers of standardized columns (see :func:`~fathomless.data.outliers.find_outliers`). They are
        excluded from mean and standard deviation. Values are clipped to the range of the other values, extended by its
        length on both sides, or to the value of a constant column.
    numbers : {"plain", "binned"}
        Encoding of columns of numbers: one feature, or also a bounded copy, indicators of frequent values and bins
        (:mod:`fathomless.data.bins`).

    Warns
    -----
    DataWarning
        For outliers, for distinct integers beyond 2^53 that are equal in double precision, for columns without values,
        which are ignored, and for numbers that are stored as text, unless their data type is that of categories.

    Raises
    ------
    DataError
        For infinite values, missing values that are not allowed, mixed or nested types, repeated names, and tables
        without rows, columns or values.

    Examples
    --------
    >>> schema = fit_schema(np.array([[1.0, 5.0], [3.0, 7.0]]), names=["age", "height"])
    >>> encode(schema, np.array([[2.0, 5.0], [4.0, 7.0]]))
    array([[ 0., -1.],
           [ 2.,  1.]])
    """
    check_option("missing", missing, MISSING)
    check_option("unseen", unseen, UNSEEN)
    check_option("numbers", numbers, NUMBERS)
    if isinstance(max_levels, str):
        check_option("max_levels", max_levels, ("auto",))
    table = _read_table(X, names)
    counts = weight if counts is None else counts
    weight, keep = check_weight(weight, table.rows)
    if counts is not None:
        counts = np.asarray(unmask(counts), dtype=np.float64)[slice(None) if keep is None else keep]
    allowed = missing == "impute" or (missing == "auto" and table.framed)
    columns = []
    declared = table.declared_categories()
    options: dict[str, Any] = {"standardize": standardize, "limit": limit, "max_levels": max_levels}
    automatic = max_levels == "auto"
    if numbers == "binned" or automatic:  # a pass of its own, since the cells of all columns need not fit into memory
        kinds = [cells.kind for cells in table.cells()]
        options["bins"] = choose_bin_count(kinds.count("numeric")) if numbers == "binned" else 0
    if automatic:
        total = table.rows if counts is None else int(min(counts.sum(), 2.0**53))  # a row of weight w is w rows
        options["max_levels"] = choose_max_levels(total, kinds.count("category"))
        options["few_levels"] = FEW_LEVELS
    for name, cells in zip(table.names, table.cells(), strict=True):
        check_missing(name, cells, allowed)
        cells = cells if keep is None else cells.keep(keep)
        if cells.missing.all():
            columns.append(_skip_empty(name))
            continue
        if cells.kind == "category" and name not in declared:
            _warn_of_numbers(name, cells)
        columns.append(fit_column(name, cells, counts if cells.kind == "category" else weight, **options))
    if all(column.kind == "empty" for column in columns):
        raise DataError("no column has values in the training data; give columns with values")
    return Schema(tuple(columns), table.framed or names is not None, missing, unseen)


def _skip_empty(name: str) -> Column:
    """Return the encoding of a column without values, with a warning."""
    warnings.warn(f"column {name!r} has no values in the training data; it is ignored", DataWarning, stacklevel=3)
    return Column(name, "empty")


def _warn_of_numbers(name: str, cells: Cells) -> None:
    """Warn of text that is numbers: fractions, or more than 100 whole numbers. Leading zeros are those of codes."""
    texts = set(cells.levels()) - {None}
    if len(texts) < 2 or not all(isinstance(text, str) and _NUMBER.fullmatch(text) for text in texts):
        return
    if len(texts) > FEW_LEVELS or any("." in text for text in texts):
        listed = some(sorted(texts))
        warnings.warn(
            f"column {name!r} is text, but its {len(texts):,} distinct values are numbers: {listed}. They are "
            "encoded as categories. Convert measurements to numbers, and codes to the data type of categories",
            DataWarning,
            stacklevel=3,
        )


def encode(schema: Schema, X: Any) -> Floats:
    """Encode a table as a matrix, shape (N, D), with a fitted schema.

    Numbers are centered and scaled. Booleans become -1 and +1. Categories become one 0/1 feature per level. Dates
    become the scaled number of days since 1970-01-01 (in UTC if they have a time zone) and the sine and cosine of the
    day of the year and of the day of the week. A missing number or date becomes the training mean, other missing values
    become 0. If the column had missing values in training, the feature "NAME is missing" is 1.

    Parameters
    ----------
    schema : Schema
        Result of :func:`fit_schema`.
    X : ndarray or data frame
        Table with the columns of the training table. Columns of data frames are matched by name, in any order; columns
        of arrays by position.

    Warns
    -----
    DataWarning
        For missing values and categories that the training data did not have, and for other values of columns that
        were constant in it, unless the schema ignores or refuses them. For times with a time zone if those of the
        training data had none, and the reverse; times without a zone are taken as UTC.

    Raises
    ------
    DataError
        For absent or additional columns, columns of another type, infinite values, values whose encoding overflows,
        and for missing values, categories and other values of constant columns, if the schema refuses them.
    """
    table = _match(schema, _read_table(X, None))
    memory.require(
        3.0 * 8.0 * table.rows * schema.width,  # the matrix, a copy of it, and its split
        f"a table of {table.rows:,} rows, encoded as {schema.width:,} features,",
        lambda share: f"use about {int(share * table.rows):,} rows, reduce max_levels, or drop text columns",
    )
    out = np.zeros((table.rows, schema.width))
    if schema.numbers and isinstance(table.columns, np.ndarray) and np.isfinite(table.columns).all():
        schema.numbers.encode(table.columns, out, unseen=schema.unseen)
        return out
    start, unknown = 0, []
    missing = ("warn" if table.framed else "error") if schema.missing == "auto" else schema.missing
    for column, cells in zip(schema.columns, table.cells(), strict=True):
        stop = start + len(column.features)
        encode_column(column, cells, out[:, start:stop], missing=missing, unseen=schema.unseen)
        start = stop
        rows = find_unknown_effects(column, cells)
        unknown += [(column, cells, rows)] if rows.any() else []
    check_unknown_effects(unknown, schema.unseen)
    return out


def as_numbers(schema: Schema, X: Any) -> Floats:
    """Convert a table to plain numbers, shape (N, C), the input of exported modules; NaN for missing values.

    Numbers are unchanged. Booleans become 0 and 1, dates the days since 1970-01-01, and categories their index in the
    levels of the column, -1 for unseen ones.

    Raises
    ------
    DataError
        For absent or additional columns, columns of another type, and infinite values.

    Examples
    --------
    >>> as_numbers(fit_schema(np.array([[1.0, 5.0], [3.0, 5.0]])), np.array([[2.0, 5.0]]))
    array([[2., 5.]])
    """
    table = _match(schema, _read_table(X, None))
    numbers = [encode_as_numbers(column, cells) for column, cells in zip(schema.columns, table.cells(), strict=True)]
    return np.column_stack(numbers)


# --------------------------------------------------------------------------------------- reading a table


def read_columns(X: Any) -> tuple[bool, dict[str, Cells]]:
    """Read the cells of all columns by name, and True for a data frame. Raise errors as :func:`fit_schema` does."""
    table = _read_table(X, None)
    return table.framed, dict(zip(table.names, table.cells(), strict=True))


@dataclass(frozen=True)
class _Table:
    """Table with column names, and either a float matrix or one series per column."""

    names: tuple[str, ...]
    columns: "Floats | tuple[nw.Series[Any], ...]"
    rows: int
    framed: bool

    def declared_categories(self) -> set[str]:
        """Return the names of the columns whose data type is that of categories."""
        parts = () if isinstance(self.columns, np.ndarray) else self.columns
        named = zip(self.names, parts, strict=False)
        return {name for name, part in named if isinstance(part.dtype, nw.Categorical | nw.Enum)}

    def cells(self) -> "map[Cells]":
        if isinstance(self.columns, np.ndarray):
            # columns are read many times, so each is made contiguous first
            return map(read_numbers, self.names, np.ascontiguousarray(self.columns.T))
        return map(read_series, self.names, self.columns)


def _read_table(X: Any, names: Sequence[str] | None) -> _Table:
    X = unmask(X)
    if isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise DataError(
                f"X has shape {X.shape}; it must have two dimensions: use X.reshape(-1, 1) or X.reshape(1, -1)"
            )
        if X.dtype.kind not in "biuf":
            raise DataError(
                f"X is an array of dtype {X.dtype}; arrays must hold numbers: use a data frame for other types"
            )
        labels = tuple(f"x{i}" for i in range(X.shape[1])) if names is None else tuple(map(str, names))
        if X.dtype.kind in "iu":
            for name, column in zip(labels, X.T, strict=False):
                check_digits(name, column)
        table = _Table(labels, X.astype(np.float64, copy=False), len(X), framed=False)
    else:
        native = to_narwhals(X, "X")
        if not isinstance(native, nw.DataFrame):
            raise DataError(
                f"X is a {type(X).__module__}.{type(X).__name__}; allowed are 2-d NumPy arrays and eager "
                "data frames (pandas, polars, pyarrow): convert it, or call collect() on a lazy frame"
            )
        if names is not None:
            raise DataError("names were given for a data frame, which has column names; rename its columns instead")
        columns = tuple(native.iter_columns())
        table = _Table(tuple(str(s.name) for s in columns), columns, len(native), framed=True)
    width = X.shape[1] if isinstance(X, np.ndarray) else len(table.columns)
    if len(table.names) != width:
        raise DataError(f"{len(table.names)} names were given for {width} columns; give one name per column")
    if len(set(table.names)) < width:
        twice = sorted({name for name in table.names if table.names.count(name) > 1})
        raise DataError(f"X has the column names {twice} more than once; rename them")
    if width == 0 or table.rows == 0:
        raise DataError(f"X has {table.rows} rows (samples) and {width} columns; at least one of each is needed")
    return table


def _match(schema: Schema, table: _Table) -> _Table:
    """Reorder the columns of a table to match the schema."""
    expected = tuple(column.name for column in schema.columns)
    if not (table.framed and schema.named):
        if len(table.names) != len(expected):
            raise DataError(f"X has {len(table.names)} columns (features); the training data had {len(expected)}")
        return _Table(expected, table.columns, table.rows, table.framed)
    absent = [name for name in expected if name not in table.names]
    extra = [name for name in table.names if name not in expected]
    if absent or extra:
        parts = [f"lacks the columns {some(absent)}"] if absent else []
        parts += [f"has the columns {some(extra)}, which the training data did not have"] if extra else []
        raise DataError(f"X {' and '.join(parts)}; give the {len(expected)} training columns: {some(expected)}")
    series = cast("tuple[nw.Series[Any], ...]", table.columns)
    by_name = dict(zip(table.names, series, strict=True))
    return _Table(expected, tuple(by_name[name] for name in expected), table.rows, framed=True)


def check_weight(weight: npt.NDArray[Any] | None, rows: int) -> tuple[Floats | None, Bools | None]:
    """Return the positive weights, the largest scaled to [1/2, 1), and the mask of their rows (None for all rows)."""
    if weight is None:
        return None, None
    weights = np.asarray(unmask(weight), dtype=np.float64)
    if weights.shape != (rows,):
        raise DataError(f"weight has shape {weights.shape}; give one number for each of the {rows} rows")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        raise DataError(f"weight is negative or not finite in {rows_of(bad)}; give counts, at least one positive")
    if not weights.any():
        raise DataError("weight is zero in all rows; give counts, at least one positive")
    # only ratios matter: a power of two changes no digit and keeps sums from overflowing
    weights = np.ldexp(weights, -int(np.frexp(weights.max())[1]))
    keep = weights > 0
    return (weights, None) if keep.all() else (weights[keep], keep)


# --------------------------------------------------------------------------------------- reading a target


def ordered_categories(y: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical of pandas or an Enum of polars, ascending; None for others."""
    native = nw.from_native(y, series_only=True, pass_through=True)
    if not isinstance(native, nw.Series) or not isinstance(native.dtype, nw.Enum):
        return None
    return list(native.dtype.categories)


def read_labels(y: Any) -> npt.NDArray[Any]:
    """Read class labels for training: text, booleans or integers, all of one type, none missing.

    Raises
    ------
    DataError
        For missing or continuous labels, labels of mixed types, and labels of other types.
    """
    values = read_vector(y)
    if values.dtype.kind not in "biufUO":
        raise DataError(f"y has dtype {values.dtype}; class labels must be text, booleans or integers: convert them")
    try:
        distinct = set(values.tolist()) if values.dtype.kind == "O" else set(np.unique(values).tolist())
    except TypeError as error:
        raise DataError("Unknown label type: y holds nested values; give one label per row") from error
    if any(map(is_missing, distinct)):
        missing = np.array(list(map(is_missing, values.tolist())), dtype=np.bool_)
        raise DataError(
            f"Input y contains NaN. Labels are missing in {rows_of(missing)}; drop these rows, or use a label such as "
            "'none' if missing is a class"
        )
    families = {family(label) for label in distinct}
    if len(families) > 1 or "unknown" in families:
        kinds = ", ".join(sorted({type(label).__name__ for label in distinct}))
        raise DataError(
            f"Unknown label type: y holds class labels of type {kinds}; give text, booleans or integers of one type"
        )
    if any(isinstance(label, float) for label in distinct):
        from sklearn.utils.multiclass import check_classification_targets  # predictions do not need it

        try:
            with np.errstate(invalid="ignore"):  # scikit-learn casts numbers of any size to int64
                check_classification_targets(values.astype(np.float64))
        except ValueError as error:
            raise DataError(f"{error} Give class labels, or use a regressor") from error
    return values


def read_vector(y: Any) -> npt.NDArray[Any]:
    """Convert class labels to a one-dimensional array; missing objects are None."""
    y = unmask(y)
    if isinstance(y, np.ndarray):
        values = _pack(y.tolist(), "object") if y.dtype.kind == "T" else y
    elif isinstance(y, list | tuple):
        values = _pack(list(y), "str")
    else:
        series = to_narwhals(y, "y")
        if not isinstance(series, nw.Series):
            raise DataError(f"y is a {type(y).__name__}; allowed are NumPy arrays, lists and series")
        if series.dtype.is_numeric() and series.dtype not in WIDE:
            values = series.to_numpy()
        else:
            gaps = series.is_null().to_list()
            values = _pack([None if gap else v for v, gap in zip(series.to_list(), gaps, strict=True)], "object")
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"y has shape {values.shape}; give one value per row: use y.ravel()")
    return values


def _pack(values: list[Any], text: str) -> npt.NDArray[Any]:
    """Convert labels to an array: text to the data type ``text``, mixed labels to objects, others as NumPy does."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    families = {family(value) for value in plain}
    if families in ({"boolean"}, {"number"}):
        packed = np.array(plain)
        if packed.dtype.kind in "Of" and all(type(value) is int for value in plain):
            largest = max(plain, key=abs)
            raise DataError(
                f"y holds the class {largest}, and no NumPy integer type holds all classes; convert the labels to text"
            )
        return packed
    packed = np.empty(len(plain), dtype=object)
    packed[:] = plain
    return packed.astype(text) if families == {"text"} else packed


def read_cells(X: Any) -> Floats:
    """Read a data frame of numbers as float64, shape (N, C), with NaN for missing values.

    Raises
    ------
    DataError
        For columns that are not numeric, infinite values, and frames without rows.
    """
    if not len(X):
        raise DataError("X has no rows; give at least one")
    columns = []
    for series in to_narwhals(X, "X").iter_columns():
        cells = read_series(series.name, series)
        if cells.kind not in ("numeric", "empty"):
            raise DataError(f"column {series.name!r} has the type {series.dtype}; numbers are needed: encode it")
        columns.append(np.asarray(cells.values, dtype=np.float64))
    return np.column_stack(columns)


def read_target(y: Any) -> Floats:
    """Read a numeric target as float64, shape (N,) or (N, K), all finite.

    Raises
    ------
    DataError
        For text, missing or infinite values, and targets without rows.
    """
    y = unmask(y)
    if isinstance(y, np.ndarray | list | tuple):
        try:
            array = np.asarray(y)
        except ValueError as error:
            raise DataError(f"y cannot be read as an array of numbers: {error}") from error
        check_digits("y", array if array.dtype.kind in "iu" else np.zeros(0))
        values = array.astype(np.float64) if array.dtype.kind in "biuf" else _read_number_list(array.ravel().tolist())
        values = values.reshape(array.shape)
    else:
        native = to_narwhals(y, "y")
        if isinstance(native, nw.Series):
            values = _read_number_series(native, "y")
        elif isinstance(native, nw.DataFrame):
            values = np.column_stack(
                [_read_number_series(series, str(series.name)) for series in native.iter_columns()]
            )
        else:
            raise DataError(f"y is a {type(y).__name__}; give an array, a list, a series or a data frame")
    if values.ndim not in (1, 2) or values.size == 0:
        raise DataError(
            f"y has shape {values.shape}; allowed are (rows,) and (rows, outputs) with at least one of each"
        )
    by_row = values.reshape(len(values), -1)
    nan, infinite = (cast(Bools, test(by_row).any(axis=1)) for test in (np.isnan, np.isinf))
    if nan.any():
        raise DataError(f"Input y contains NaN. It is in {rows_of(nan)}; drop these rows")
    if infinite.any():
        raise DataError(
            "Input y contains infinity or a value too large for dtype('float64'). It is in "
            f"{rows_of(infinite)}; drop these rows"
        )
    return values


def _read_number_series(series: "nw.Series[Any]", name: str) -> Floats:
    if series.dtype.is_integer():
        return read_integers(series, name)
    if series.dtype.is_numeric():
        return to_numpy(series.cast(nw.Float64())).astype(np.float64)
    return _read_number_list([None if gap else v for v, gap in zip(series.to_list(), series.is_null(), strict=True)])


def _read_number_list(values: list[Any]) -> Floats:
    values = [None if is_missing(value) else value for value in values]
    cells = read_objects("y", values, np.array([value is None for value in values], dtype=np.bool_))
    if cells.kind == "boolean":  # coded as -1 and 1
        return 0.5 * (cast(Floats, cells.values) + 1.0)
    if cells.kind not in ("numeric", "empty"):
        first = next(value for value in values if value is not None)
        raise DataError(f"y holds {cells.kind} values such as {first!r}; give a numeric target")
    return cast(Floats, cells.values)


# ------------------------------------------------------------------------------------------ splits, frames


def split(
    n: int, fraction: float, generator: torch.Generator, *, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split rows at random into training rows and held-out rows.

    Parameters
    ----------
    n : int
        Number of rows.
    fraction : float
        Share of held-out rows, 0 <= fraction < 1; ``round(n * fraction)`` rows, but not all.
    generator : torch.Generator
        Generator of the random order; equal states give equal splits.
    strata : Tensor of int64, shape (n,), optional
        Classes. The split is stratified to within one row, and each class keeps at least one training row, even if
        fewer rows can then be held out.

    Returns
    -------
    train, held : Tensor of int64
        Ascending, disjoint row numbers, whose union is all rows.

    Raises
    ------
    DataError
        For a fraction outside [0, 1), no rows, or strata of another length.
    """
    if n < 1 or not 0.0 <= fraction < 1.0:
        raise DataError(f"cannot split {n} rows with fraction {fraction}; n must be at least 1, and 0 <= fraction < 1")
    if strata is not None and strata.shape != (n,):
        raise DataError(f"strata has shape {tuple(strata.shape)}; give one class for each of the {n} rows")
    order = permutation(n, generator, torch.device("cpu"))
    classes = torch.zeros(n, dtype=torch.int64) if strata is None else strata.cpu().unique(return_inverse=True)[1]
    counts = classes.bincount()
    quota = _allocate(counts.tolist(), min(round(n * fraction), n - 1))
    order = order[classes[order].argsort(stable=True)]  # sorted by class, in random order within a class
    place = torch.arange(n) - (counts.cumsum(0) - counts)[classes[order]]
    chosen = place < torch.tensor(quota)[classes[order]]
    return order[~chosen].sort().values, order[chosen].sort().values


def _allocate(counts: list[int], total: int) -> list[int]:
    """Distribute ``total`` in proportion to counts by largest remainders, but leave one row of each class."""
    shares = [total * count / sum(counts) for count in counts]
    quota = [min(int(share), count - 1) for share, count in zip(shares, counts, strict=True)]
    by_need = sorted(range(len(counts)), key=lambda k: quota[k] - shares[k])
    while (remaining := total - sum(quota)) > 0:
        eligible = [k for k in by_need if quota[k] < counts[k] - 1][:remaining]
        if not eligible:
            break
        for k in eligible:
            quota[k] += 1
    return quota


def make_frame(columns: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Build a data frame of named columns with the first installed library of pandas, polars and pyarrow.

    Raises
    ------
    DataError
        If none of them is installed.
    """
    for backend in ("pandas", "polars", "pyarrow"):
        if importlib.util.find_spec(backend) is not None:
            plain = {name: v.tolist() if v.dtype.kind == "O" else v for name, v in columns.items()}
            return nw.from_dict(plain, backend=backend).to_native()
    raise DataError("a data frame is needed, but none of pandas, polars and pyarrow is installed; pip install pandas")


def load_bundled(name: str) -> tuple[Floats, npt.NDArray[Any], tuple[str, ...], tuple[str, ...]]:
    """Load a data set that scikit-learn ships: X, y, feature names, and class names (none in regression)."""
    from sklearn import datasets

    loaders = {
        "breast_cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "digits": datasets.load_digits,
        "iris": datasets.load_iris,
        "wine_recognition": datasets.load_wine,
    }
    check_option("name", name, tuple(loaders))
    loaded = loaders[name](**({"scaled": False} if name == "diabetes" else {}))
    classes = tuple(map(str, loaded.get("target_names", ())))
    return loaded["data"].astype(np.float64), loaded["target"], tuple(map(str, loaded["feature_names"])), classes


def to_readable(y: Any) -> Any:
    """Convert a masked array, or an object that is no array, list, series or data frame, to an array; keep others."""
    y = unmask(y)
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and isinstance(y, pandas.Categorical | pandas.CategoricalIndex):
        y = pandas.Series(y)  # which narwhals reads with its order
    native = to_narwhals(y, "y")
    y = y if isinstance(native, nw.DataFrame | nw.Series | list | tuple) else np.asarray(y)
    if isinstance(y, np.ndarray) and y.ndim == 0:
        raise DataError(f"y is a single {type(y.item()).__name__}; give one value for each row of X")
    return y


def merge_duplicates(
    x: npt.NDArray[Any], z: npt.NDArray[Any], weight: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[Any]]:
    """Merge duplicate rows (bit-exact invariance to order and repetition); return the inverse index.

    Long training amplifies rounding errors: without this, a row of weight 2 and two equal rows would give different
    results.
    """
    columns = z.reshape(len(z), -1)
    rows, place = np.unique(np.column_stack([x, columns]), axis=0, return_inverse=True)
    weight = np.bincount(place.ravel(), weights=weight).astype(np.float64)
    target = rows[:, x.shape[1] :].astype(z.dtype).reshape(-1, *z.shape[1:])
    return rows[:, : x.shape[1]], target, None if (weight == 1.0).all() else weight, place.ravel()


def take(rows: Any, index: npt.NDArray[Any] | slice) -> Any:
    """Select rows of an array, a list or a data frame by position; a masked array becomes a plain one."""
    if isinstance(rows, np.ndarray):
        return np.asarray(unmask(rows[index]))
    native = nw.from_native(rows, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame | nw.Series):
        return native[index if isinstance(index, slice) else index.tolist()].to_native()
    return np.asarray(rows)[index]


def space_evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return the ascending indices of at most `most` of `count` rows, evenly spaced, with the first and the last.

    Examples
    --------
    >>> space_evenly(9, 3)
    array([0, 4, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def select_columns(schema: Schema, X: Any) -> Any:
    """Return the columns of a data frame that a schema has, in its order; other tables unchanged.

    Raises
    ------
    DataError
        If the frame lacks a column.
    """
    native = to_narwhals(X, "X")
    if not schema.named or not isinstance(native, nw.DataFrame):
        return X
    names = [column.name for column in schema.columns]
    if absent := [name for name in names if name not in native.columns]:
        raise DataError(f"X lacks the columns {some(absent)}; it has the columns {some(native.columns)}")
    return native.select(names).to_native()
