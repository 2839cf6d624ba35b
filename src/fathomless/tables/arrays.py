"""Conversion between Arrow and NumPy arrays without pandas, whose import by pyarrow takes a third of a second."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

__all__ = ["join_columns", "map_columns", "missing_value", "to_column", "to_number_array", "to_numpy", "to_text_array"]

_AT_ONCE = 1 << 18  # maximum cells of a block of several columns


def to_column(values: Any) -> "pa.Array | pa.ChunkedArray":
    """Return values as an Arrow column.

    Examples
    --------
    >>> to_column(np.array([0.5, np.nan])).to_pylist(), to_column(np.array(["a", "é"])).to_pylist()
    ([0.5, nan], ['a', 'é'])
    """
    if isinstance(values, np.ndarray) and values.dtype in (np.float64, np.int64) and values.ndim == 1:
        return pa.Array.from_buffers(
            pa.float64() if values.dtype == np.float64 else pa.int64(),
            len(values),
            [None, pa.py_buffer(np.ascontiguousarray(values))],
        )
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU" and all(type(v) is str for v in values.tolist()):
        return to_text_array(values.tolist(), pa.string())
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


def to_text_array(words: Sequence[str | None], type_: "pa.DataType") -> "pa.Array":
    """Return words as an Arrow array of type string or large string; None is missing.

    Examples
    --------
    >>> to_text_array(["a", None, "é"], pa.string()).to_pylist()
    ['a', None, 'é']
    """
    cells = [b"" if word is None else word.encode() for word in words]
    width = np.int64 if types.is_large_string(type_) else np.int32
    ends = np.cumsum([0, *map(len, cells)], dtype=np.int64)
    if ends[-1] > np.iinfo(width).max:
        raise pa.ArrowCapacityError(f"a column has {ends[-1]:,} bytes of text")
    buffers = [_to_bitmap(words), pa.py_buffer(ends.astype(width)), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(type_, len(cells), buffers)


def to_number_array(numbers: Sequence[float | None]) -> "pa.Array":
    """Return numbers as an Arrow array of float64; None is missing.

    Examples
    --------
    >>> to_number_array([0.5, None]).to_pylist()
    [0.5, None]
    """
    values = np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)
    return pa.Array.from_buffers(pa.float64(), len(values), [_to_bitmap(numbers), pa.py_buffer(values)])


def _to_bitmap(values: Sequence[Any]) -> "pa.Buffer | None":
    """Return the bitmap of the values that are not None, in the order of Arrow; None if all are present."""
    present = np.array([value is not None for value in values], dtype=np.bool_)
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def missing_value(type_: "pa.DataType") -> "pa.Scalar":
    """Return a missing value of the given type."""
    return pa.nulls(1, type_)[0]


def to_numpy(column: "pa.ChunkedArray") -> npt.NDArray[Any]:
    """Return numbers, booleans or dates as :meth:`pyarrow.ChunkedArray.to_numpy` does: missing values are NaN or NaT.

    Examples
    --------
    >>> to_numpy(pa.chunked_array([[1, None], [3]])), to_numpy(pa.chunked_array([[True, False]]))
    (array([ 1., nan,  3.]), array([ True, False]))
    """
    type_ = column.type
    if types.is_boolean(type_) and not column.null_count:
        return to_numpy(pc.cast(column, pa.uint8())).astype(np.bool_)
    if types.is_date(type_):
        return to_numpy(pc.cast(column, pa.timestamp("s" if types.is_date32(type_) else "ms")))
    if types.is_timestamp(type_):
        kind = f"datetime64[{type_.unit}]"
        column = pc.cast(column, pa.int64())
    elif types.is_integer(type_) or types.is_float32(type_) or types.is_float64(type_):
        kind = {"float": "float32", "double": "float64"}.get(str(type_), str(type_))  # to_pandas_dtype imports pandas
    else:
        return np.asarray(column.to_numpy())
    size = np.dtype(kind).itemsize
    chunks = [c for c in column.chunks if len(c)]
    parts = [np.frombuffer(c.buffers()[1], kind, len(c), c.offset * size) for c in chunks]
    values = np.concatenate(parts) if parts else np.zeros(0, kind)
    if column.null_count:
        values = values.astype(np.float64) if values.dtype.kind in "iu" else values
        values[to_numpy(column.is_null())] = np.nan if values.dtype.kind == "f" else np.datetime64("NaT", type_.unit)
    return values


def join_columns(columns: "Iterable[pa.ChunkedArray]") -> "Iterator[tuple[pa.Array, list[int]]]":
    """Yield the cells of neighbouring columns of one type as one array, and the number of cells of each column.

    An Arrow function has a fixed cost per call, equal to that of thousands of cells; blocks avoid it for short columns.
    """
    block: list[pa.ChunkedArray] = []
    cells = 0
    for column in columns:
        if block and (column.type != block[0].type or cells + len(column) > _AT_ONCE):
            yield _concatenate(block)
            block = []
            cells = 0
        block.append(column)
        cells += len(column)
    if block:
        yield _concatenate(block)


def _concatenate(columns: "Sequence[pa.ChunkedArray]") -> "tuple[pa.Array, list[int]]":
    empty = pa.nulls(0, columns[0].type)  # pa.array imports pandas
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.concat_arrays([empty, *chunks]), [len(column) for column in columns]


def map_columns(
    columns: "Iterable[pa.ChunkedArray]", work: "Callable[[pa.ChunkedArray], pa.ChunkedArray]"
) -> "list[pa.ChunkedArray]":
    """Apply an elementwise function to many columns, in blocks of columns.

    Examples
    --------
    >>> [c.to_pylist() for c in map_columns([pa.chunked_array([["A"]]), pa.chunked_array([["B"]])], pc.utf8_lower)]
    [['a'], ['b']]
    """
    results = []
    for cells, sizes in join_columns(columns):
        values = work(pa.chunked_array([cells])).combine_chunks()
        start = 0
        for size in sizes:
            results.append(pa.chunked_array([values.slice(start, size)]))
            start += size
    return results
