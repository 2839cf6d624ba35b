"""Arrays and data frames to matrices: tables, targets, splits.

Tables of any origin are read here; the arithmetic of encoding is in :mod:`fathomless.data.schema`, that of labels
and targets in :mod:`fathomless.data.targets`. Encoding never learns anything.

Weights mean repetition: a row of weight 2 counts as two equal rows, a row of weight 0 as no row.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.cells import (
    WIDE,
    check_digits,
    check_missing,
    eager,
    is_gap,
    number_cells,
    numpy_of,
    object_cells,
    series_cells,
    whole,
)
from fathomless.data.schema import (
    MISSING,
    UNSEEN,
    Bools,
    Cells,
    Floats,
    Schema,
    check_encoded,
    check_option,
    column_numbers,
    encode_column,
    family,
    fit_column,
    rows_of,
    some,
)
from fathomless.system import memory
from fathomless.system.draws import permutation
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = [
    "as_numbers",
    "bundled",
    "check_weight",
    "encode",
    "fit_schema",
    "frame",
    "merged",
    "read_columns",
    "read_labels",
    "read_target",
    "read_vector",
    "readable",
    "split",
    "take",
]


def fit_schema(
    X: Any,
    *,
    names: Sequence[str] | None = None,
    weight: npt.NDArray[Any] | None = None,
    missing: str = "auto",
    unseen: str = "error",
    standardize: bool = True,
    max_levels: int = 100,
    limit: bool = True,
) -> Schema:
    """Learn how to encode a table.

    Parameters
    ----------
    X : ndarray of numbers, shape (N, C), or data frame
        Any eager data frame that narwhals reads: pandas, polars, pyarrow.
    names : sequence of str, optional
        Column names of an array; x0, x1, ... if left out.
    weight : ndarray, shape (N,), optional
        How often each row counts. Rows of weight 0 teach nothing, not even their categories.
    missing : {"auto", "error", "impute"}
        Missing values are allowed in data frames ("auto"), nowhere ("error"), or in arrays too, and at
        prediction also in columns that were complete in training ("impute").
    unseen : {"error", "ignore"}
        A category that training did not see is an error, or encoded as all zeros.
    standardize : bool
        Center and scale numbers and dates by their weighted mean and (population) standard deviation.
        Constant columns keep the scale 1, so that they are encoded as 0.
    max_levels : int
        A column with more categories keeps the most frequent ``max_levels - 1``; the rest, and any category
        that was not seen, share one level "(other)".
    limit : bool
        Where a few cells of a standardized column lie far from all others (see
        :func:`~fathomless.data.outliers.outlying`), the others alone give its mean and deviation, and values beyond
        their range, extended by its own length on both sides, are encoded as the nearer end of it.

    Warns
    -----
    DataWarning
        For such cells, and for whole numbers beyond 2^53 that double precision does not tell apart.

    Raises
    ------
    DataError
        For infinite or forbidden missing values, a column that is all missing, mixed or nested types,
        repeated names, and tables without rows or columns.

    Examples
    --------
    >>> schema = fit_schema(np.array([[1.0, 5.0], [3.0, 5.0]]), names=["age", "height"])
    >>> encode(schema, np.array([[2.0, 5.0], [4.0, 6.0]]))
    array([[0., 0.],
           [2., 1.]])
    """
    check_option("missing", missing, MISSING)
    check_option("unseen", unseen, UNSEEN)
    table = _read_table(X, names)
    weight, keep = check_weight(weight, table.rows)
    allowed = missing == "impute" or (missing == "auto" and table.framed)
    learned = []
    for name, cells in zip(table.names, table.cells(), strict=True):
        check_missing(name, cells, allowed)
        cells = cells if keep is None else cells.keep(keep)
        if cells.missing.all():
            raise DataError(f"column {name!r} has no value at all in training; drop the column")
        learned.append(fit_column(name, cells, weight, standardize=standardize, max_levels=max_levels, limit=limit))
    return Schema(tuple(learned), table.framed or names is not None, missing, unseen)


def encode(schema: Schema, X: Any) -> Floats:
    """Encode a table as a matrix, shape (N, D); nothing is learned.

    Numbers are centered and scaled. Booleans become -1 and +1. Categories become one 0/1 feature for each
    level. Dates become the scaled number of days since 1970-01-01 (in UTC where a time zone is known) and the
    sine and cosine of the day of the year and of the day of the week. A missing value becomes the training
    mean (numbers, dates) or 0 (all else); if training had gaps in that column, "NAME is missing" is 1.

    Parameters
    ----------
    schema : Schema
        From :func:`fit_schema`.
    X : ndarray or data frame
        With the columns of the training table: matched by name (in any order) in data frames, by position
        in arrays.

    Raises
    ------
    DataError
        For missing, additional or retyped columns, for infinite values and values whose encoding overflows,
        and for missing values or categories that training has not seen, unless the schema allows them.
    """
    table = _match(schema, _read_table(X, None))
    memory.require(
        3.0 * 8.0 * table.rows * schema.width,  # the matrix, a copy, and a split of it
        f"a table of {table.rows:,} rows, encoded as {schema.width:,} features,",
        lambda share: f"about {int(share * table.rows):,} rows fit; or lower max_levels, or drop text columns",
    )
    plain = all(column.kind == "numeric" and not column.gaps for column in schema.columns)
    if plain and isinstance(table.columns, np.ndarray) and np.isfinite(table.columns).all():
        with np.errstate(over="ignore"):
            out = table.columns.copy()
            for place, column in enumerate(schema.columns):
                if column.limits is not None:
                    out[:, place].clip(*column.limits, out=out[:, place])
            out -= np.array([column.center for column in schema.columns])
            out /= np.array([column.scale for column in schema.columns])
        if not np.isfinite(out).all():
            worst = int(np.argmin(np.isfinite(out).all(axis=0)))
            check_encoded(schema.columns[worst].name, out[:, worst])
        return out
    out = np.zeros((table.rows, schema.width))
    start = 0
    for column, cells in zip(schema.columns, table.cells(), strict=True):
        stop = start + len(column.features)
        encode_column(column, cells, out[:, start:stop], missing=schema.missing, unseen=schema.unseen)
        start = stop
    return out


def as_numbers(schema: Schema, X: Any) -> Floats:
    """Write a table as plain numbers, shape (N, C), which is what an exported module reads; NaN where missing.

    Numbers stay what they are, booleans become 0 and 1, dates the days since 1970-01-01, and categories their place
    among the levels of the column, -1 for those that training did not see.

    Raises
    ------
    DataError
        For missing, additional or retyped columns, and for infinite values.

    Examples
    --------
    >>> as_numbers(fit_schema(np.array([[1.0, 5.0], [3.0, 5.0]])), np.array([[2.0, 5.0]]))
    array([[2., 5.]])
    """
    table = _match(schema, _read_table(X, None))
    found = [column_numbers(column, cells) for column, cells in zip(schema.columns, table.cells(), strict=True)]
    return np.column_stack(found)


# --------------------------------------------------------------------------------------- reading a table


def read_columns(X: Any) -> tuple[bool, dict[str, Cells]]:
    """Read a table column by column: whether it is a data frame, and name -> cells; errors as :func:`fit_schema`."""
    table = _read_table(X, None)
    return table.framed, dict(zip(table.names, table.cells(), strict=True))


@dataclass(frozen=True)
class _Table:
    """A table that was looked at: names, and either a float matrix or a series for each column."""

    names: tuple[str, ...]
    columns: "Floats | tuple[nw.Series[Any], ...]"
    rows: int
    framed: bool

    def cells(self) -> "map[Cells]":
        if isinstance(self.columns, np.ndarray):
            # columns are read many times: each is laid out in one piece first
            return map(number_cells, self.names, np.ascontiguousarray(self.columns.T))
        return map(series_cells, self.names, self.columns)


def _read_table(X: Any, names: Sequence[str] | None) -> _Table:
    X = unmask(X)
    if isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise DataError(f"X has shape {X.shape}; a table has two dimensions: use X.reshape(-1, 1) or (1, -1)")
        if X.dtype.kind not in "biuf":
            raise DataError(f"X is an array of dtype {X.dtype}; arrays hold numbers: use a data frame for other types")
        found = tuple(f"x{i}" for i in range(X.shape[1])) if names is None else tuple(map(str, names))
        if X.dtype.kind in "iu":
            for name, column in zip(found, X.T, strict=False):
                check_digits(name, column)
        table = _Table(found, X.astype(np.float64, copy=False), len(X), framed=False)
    else:
        found_frame = eager(X, "X")
        if not isinstance(found_frame, nw.DataFrame):
            raise DataError(
                f"X is a {type(X).__module__}.{type(X).__name__}; allowed are 2-d NumPy arrays and eager "
                "data frames (pandas, polars, pyarrow): convert it, or collect() a lazy one"
            )
        if names is not None:
            raise DataError("names were given for a data frame, which has its own; rename its columns instead")
        columns = tuple(found_frame.iter_columns())
        table = _Table(tuple(str(s.name) for s in columns), columns, len(found_frame), framed=True)
    width = X.shape[1] if isinstance(X, np.ndarray) else len(table.columns)
    if len(table.names) != width:
        raise DataError(f"{len(table.names)} names were given for {width} columns; give one for each")
    if len(set(table.names)) < width:
        twice = sorted({name for name in table.names if table.names.count(name) > 1})
        raise DataError(f"X has the column names {twice} more than once; rename them")
    if width == 0 or table.rows == 0:
        raise DataError(f"X has {table.rows} rows (samples) and {width} columns; at least one of each is needed")
    return table


def _match(schema: Schema, table: _Table) -> _Table:
    """Bring the columns of a table into the order of the schema."""
    expected = tuple(column.name for column in schema.columns)
    if not (table.framed and schema.named):
        if len(table.names) != len(expected):
            raise DataError(f"X has {len(table.names)} columns (features); training had {len(expected)}")
        return _Table(expected, table.columns, table.rows, table.framed)
    absent = [name for name in expected if name not in table.names]
    extra = [name for name in table.names if name not in expected]
    if absent or extra:
        parts = [f"lacks the columns {some(absent)}"] if absent else []
        parts += [f"has the columns {some(extra)} that training did not see"] if extra else []
        raise DataError(f"X {' and '.join(parts)}; give the {len(expected)} columns of training: {some(expected)}")
    series = cast("tuple[nw.Series[Any], ...]", table.columns)
    by_name = dict(zip(table.names, series, strict=True))
    return _Table(expected, tuple(by_name[name] for name in expected), table.rows, framed=True)


def check_weight(weight: npt.NDArray[Any] | None, rows: int) -> tuple[Floats | None, Bools | None]:
    """Return the positive weights, the largest scaled to [1/2, 1), and which rows have them (None: all rows)."""
    if weight is None:
        return None, None
    found = np.asarray(unmask(weight), dtype=np.float64)
    if found.shape != (rows,):
        raise DataError(f"weight has shape {found.shape}; one number for each of the {rows} rows is needed")
    bad = ~(np.isfinite(found) & (found >= 0))
    if bad.any() or not found.any():
        which = rows_of(bad) if bad.any() else "all rows being zero"
        raise DataError(f"weight is negative, not finite or zero throughout ({which}); give counts, some positive")
    # only ratios matter: sums cannot overflow, and a power of two leaves every digit as it is
    found = np.ldexp(found, -int(np.frexp(found.max())[1]))
    keep = found > 0
    return (found, None) if keep.all() else (found[keep], keep)


# --------------------------------------------------------------------------------------- reading a target


def read_labels(y: Any) -> npt.NDArray[Any]:
    """Read class labels for training: text, booleans or whole numbers, none missing, all alike.

    Raises
    ------
    DataError
        For missing, continuous or mixed labels, and labels of other types.
    """
    values = read_vector(y)
    if values.dtype.kind not in "biufUO":
        raise DataError(f"y has dtype {values.dtype}; class labels are text, booleans or integers: convert them")
    try:
        distinct = set(values.tolist()) if values.dtype.kind == "O" else set(np.unique(values).tolist())
    except TypeError as error:
        raise DataError("Unknown label type: y holds nested values; give one label for each row") from error
    if any(map(is_gap, distinct)):
        missing = np.array(list(map(is_gap, values.tolist())), dtype=np.bool_)
        raise DataError(
            f"Input y contains NaN. Labels are missing in {rows_of(missing)}; drop these rows, or write a word such as "
            "'none' in them if it is a class that nothing is there"
        )
    families = {family(label) for label in distinct}
    if len(families) > 1 or "unknown" in families:
        kinds = ", ".join(sorted({type(label).__name__ for label in distinct}))
        raise DataError(
            f"Unknown label type: y holds class labels of type {kinds}; give text, booleans or whole "
            "numbers, all of one type"
        )
    if any(isinstance(label, float) for label in distinct):
        from sklearn.utils.multiclass import check_classification_targets  # predictions do without

        try:
            with np.errstate(invalid="ignore"):  # scikit-learn casts to int64, whatever the size
                check_classification_targets(values.astype(np.float64))
        except ValueError as error:
            raise DataError(f"{error} Give class labels, or use a regressor") from error
    return values


def read_vector(y: Any) -> npt.NDArray[Any]:
    """Read class labels as a one-dimensional array; None stands for a missing object."""
    y = unmask(y)
    if isinstance(y, np.ndarray):
        values = _tight(y.tolist(), "object") if y.dtype.kind == "T" else y
    elif isinstance(y, list | tuple):
        values = _tight(list(y), "str")
    else:
        series = eager(y, "y")
        if not isinstance(series, nw.Series):
            raise DataError(f"y is a {type(y).__name__}; allowed are NumPy arrays, lists and series")
        if series.dtype.is_numeric() and series.dtype not in WIDE:
            values = series.to_numpy()
        else:
            gaps = series.is_null().to_list()
            values = _tight([None if gap else v for v, gap in zip(series.to_list(), gaps, strict=True)], "object")
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"y has shape {values.shape}; one value for each row is needed: use y.ravel()")
    return values


def _tight(values: list[Any], text: str) -> npt.NDArray[Any]:
    """Pack labels that are alike as NumPy would, but text in the data type ``text``; others as objects."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    families = {family(value) for value in plain}
    if families in ({"boolean"}, {"number"}):
        packed = np.array(plain)
        if packed.dtype.kind in "Of" and all(type(value) is int for value in plain):
            largest = max(plain, key=abs)
            raise DataError(
                f"y holds the class {largest}, and no integer type of NumPy holds all classes; write them as text"
            )
        return packed
    packed = np.empty(len(plain), dtype=object)
    packed[:] = plain
    return packed.astype(text) if families == {"text"} else packed


def read_target(y: Any) -> Floats:
    """Read a numeric target as float64, shape (N,) or (N, K), all finite.

    Raises
    ------
    DataError
        For text, missing and infinite values, and targets without rows.
    """
    y = unmask(y)
    if isinstance(y, np.ndarray | list | tuple):
        try:
            given = np.asarray(y)
        except ValueError as error:
            raise DataError(f"y cannot be read as an array of numbers: {error}") from error
        check_digits("y", given if given.dtype.kind in "iu" else np.zeros(0))
        values = given.astype(np.float64) if given.dtype.kind in "biuf" else _numbers(given.ravel().tolist())
        values = values.reshape(given.shape)
    else:
        found = eager(y, "y")
        if isinstance(found, nw.Series):
            values = _numbers_of(found, "y")
        elif isinstance(found, nw.DataFrame):
            values = np.column_stack([_numbers_of(series, str(series.name)) for series in found.iter_columns()])
        else:
            raise DataError(f"y is a {type(y).__name__}; give an array, a list, a series or a frame")
    if values.ndim not in (1, 2) or values.size == 0:
        raise DataError(f"y has shape {values.shape}; (rows,) or (rows, outputs) with at least one of each is needed")
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


def _numbers_of(series: "nw.Series[Any]", name: str) -> Floats:
    if series.dtype.is_integer():
        return whole(series, name)
    if series.dtype.is_numeric():
        return numpy_of(series.cast(nw.Float64())).astype(np.float64)
    return _numbers([None if gap else v for v, gap in zip(series.to_list(), series.is_null(), strict=True)])


def _numbers(values: list[Any]) -> Floats:
    values = [None if is_gap(value) else value for value in values]
    cells = object_cells("y", values, np.array([value is None for value in values], dtype=np.bool_))
    if cells.kind not in ("numeric", "empty"):
        first = next(value for value in values if value is not None)
        raise DataError(f"y holds {cells.kind} values such as {first!r}; a numeric target is needed")
    return cast(Floats, cells.values)


# ------------------------------------------------------------------------------------------ splits, frames


def split(
    n: int, fraction: float, generator: torch.Generator, *, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split rows at random into a part to train on and a part to hold out.

    Parameters
    ----------
    n : int
        Number of rows.
    fraction : float
        Share of rows to hold out, 0 <= fraction < 1; ``round(n * fraction)`` rows, but never all.
    generator : torch.Generator
        Source of randomness; equal states give equal splits.
    strata : Tensor of int64, shape (n,), optional
        Classes. Each is held out in proportion, to within one row, and keeps at least one row to train on,
        even if fewer rows than asked for can then be held out.

    Returns
    -------
    train, held : Tensor of int64
        Row numbers, ascending, disjoint, together all rows.

    Raises
    ------
    DataError
        For a fraction outside [0, 1), no rows, or strata of another length.
    """
    if n < 1 or not 0.0 <= fraction < 1.0:
        raise DataError(f"a split of {n} rows with fraction {fraction} was asked; need n >= 1 and 0 <= fraction < 1")
    if strata is not None and strata.shape != (n,):
        raise DataError(f"strata have shape {tuple(strata.shape)}; one class for each of the {n} rows is needed")
    order = permutation(n, generator, torch.device("cpu"))
    classes = torch.zeros(n, dtype=torch.int64) if strata is None else strata.cpu().unique(return_inverse=True)[1]
    counts = classes.bincount()
    quota = _quota(counts.tolist(), min(round(n * fraction), n - 1))
    order = order[classes[order].argsort(stable=True)]  # by class, at random within
    place = torch.arange(n) - (counts.cumsum(0) - counts)[classes[order]]
    chosen = place < torch.tensor(quota)[classes[order]]
    return order[~chosen].sort().values, order[chosen].sort().values


def _quota(counts: list[int], total: int) -> list[int]:
    """Share out ``total`` in proportion to counts by largest remainders, leaving one of each class."""
    shares = [total * count / sum(counts) for count in counts]
    quota = [min(int(share), count - 1) for share, count in zip(shares, counts, strict=True)]
    by_need = sorted(range(len(counts)), key=lambda k: quota[k] - shares[k])
    while (left := total - sum(quota)) > 0:
        room = [k for k in by_need if quota[k] < counts[k] - 1][:left]
        if not room:
            break
        for k in room:
            quota[k] += 1
    return quota


def frame(columns: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Make a data frame of named columns with the first of pandas, polars and pyarrow that is installed.

    Raises
    ------
    DataError
        If none of them is installed.
    """
    for backend in ("pandas", "polars", "pyarrow"):
        if importlib.util.find_spec(backend) is not None:
            plain = {name: v.tolist() if v.dtype.kind == "O" else v for name, v in columns.items()}
            return nw.from_dict(plain, backend=backend).to_native()
    raise DataError("a data frame is needed and none of pandas, polars and pyarrow is installed; pip install pandas")


def bundled(name: str) -> tuple[Floats, npt.NDArray[Any], tuple[str, ...], tuple[str, ...]]:
    """Return a data set that scikit-learn ships: X, y, feature names, class names (none in regression)."""
    from sklearn import datasets

    loaders = {
        "breast_cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "digits": datasets.load_digits,
        "iris": datasets.load_iris,
        "wine_recognition": datasets.load_wine,
    }
    check_option("name", name, tuple(loaders))
    found = loaders[name](**({"scaled": False} if name == "diabetes" else {}))
    classes = tuple(map(str, found.get("target_names", ())))
    return found["data"].astype(np.float64), found["target"], tuple(map(str, found["feature_names"])), classes


def readable(y: Any) -> Any:
    """Return arrays, lists, series and frames as they are, masked arrays as plain ones, anything else as an array."""
    y = unmask(y)
    native = eager(y, "y")
    y = y if isinstance(native, nw.DataFrame | nw.Series | list | tuple) else np.asarray(y)
    if isinstance(y, np.ndarray) and y.ndim == 0:
        raise DataError(f"y is a single {type(y.item()).__name__}; one value for each row of X is needed")
    return y


def merged(
    x: npt.NDArray[Any], z: npt.NDArray[Any], weight: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[Any]]:
    """Sort rows and merge equal ones, so that order and repetition do not matter to the last bit; say which is where.

    Long trainings magnify rounding errors: without this, a row of weight two and two equal rows would part.
    """
    columns = z.reshape(len(z), -1)
    rows, place = np.unique(np.column_stack([x, columns]), axis=0, return_inverse=True)
    weight = np.bincount(place.ravel(), weights=weight).astype(np.float64)
    target = rows[:, x.shape[1] :].astype(z.dtype).reshape(-1, *z.shape[1:])
    return rows[:, : x.shape[1]], target, None if (weight == 1.0).all() else weight, place.ravel()


def take(rows: Any, index: npt.NDArray[Any] | slice) -> Any:
    """Return rows of an array, a list or a data frame, by position; of a masked array, as a plain one."""
    if isinstance(rows, np.ma.MaskedArray):
        return unmask(rows[index])
    native = nw.from_native(rows, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame | nw.Series):
        return native[index if isinstance(index, slice) else index.tolist()].to_native()
    return np.asarray(rows)[index]
