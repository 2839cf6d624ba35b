"""Arrow arrays to values and back, without pandas, which pyarrow would import for it: a third of a second."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

__all__ = ["blocks", "column", "nothing", "numpy_of", "text", "together"]

_AT_ONCE = 1 << 18  # cells of several columns


def column(values: Any) -> "pa.Array | pa.ChunkedArray":
    """Return values as an Arrow column.

    Examples
    --------
    >>> column(np.array([0.5, np.nan])).to_pylist(), column(np.array(["a", "é"])).to_pylist()
    ([0.5, nan], ['a', 'é'])
    """
    if isinstance(values, np.ndarray) and values.dtype in (np.float64, np.int64) and values.ndim == 1:
        return pa.Array.from_buffers(
            pa.float64() if values.dtype == np.float64 else pa.int64(),
            len(values),
            [None, pa.py_buffer(np.ascontiguousarray(values))],
        )
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU" and all(type(v) is str for v in values.tolist()):
        return text(values.tolist(), pa.string())
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


def text(words: Sequence[str], type_: "pa.DataType") -> "pa.Array":
    """Return words as an Arrow array, of the type string or large string."""
    cells = [word.encode() for word in words]
    width = np.int64 if types.is_large_string(type_) else np.int32
    ends = np.cumsum([0, *map(len, cells)], dtype=width)
    return pa.Array.from_buffers(type_, len(cells), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(cells))])


def nothing(type_: "pa.DataType") -> "pa.Scalar":
    """Return a missing value."""
    return pa.nulls(1, type_)[0]


def numpy_of(column: "pa.ChunkedArray") -> npt.NDArray[Any]:
    """Return numbers, booleans or dates as :meth:`pyarrow.ChunkedArray.to_numpy` does: missing as NaN or NaT.

    Examples
    --------
    >>> numpy_of(pa.chunked_array([[1, None], [3]])), numpy_of(pa.chunked_array([[True, False]]))
    (array([ 1., nan,  3.]), array([ True, False]))
    """
    type_ = column.type
    if types.is_boolean(type_) and not column.null_count:
        return numpy_of(pc.cast(column, pa.uint8())).astype(np.bool_)
    if types.is_date(type_):
        return numpy_of(pc.cast(column, pa.timestamp("s" if types.is_date32(type_) else "ms")))
    if types.is_timestamp(type_):
        kind = f"datetime64[{type_.unit}]"
        column = pc.cast(column, pa.int64())
    elif types.is_integer(type_) or types.is_float32(type_) or types.is_float64(type_):
        kind = str(np.dtype(type_.to_pandas_dtype()))
    else:
        return np.asarray(column.to_numpy())
    size = np.dtype(kind).itemsize
    chunks = [c for c in column.chunks if len(c)]
    parts = [np.frombuffer(c.buffers()[1], kind, len(c), c.offset * size) for c in chunks]
    found = np.concatenate(parts) if parts else np.zeros(0, kind)
    if column.null_count:
        found = found.astype(np.float64) if found.dtype.kind in "iu" else found
        found[numpy_of(column.is_null())] = np.nan if found.dtype.kind == "f" else np.datetime64("NaT")
    return found


def blocks(columns: "Iterable[pa.ChunkedArray]") -> "Iterator[tuple[pa.Array, list[int]]]":
    """Yield the cells of neighbouring columns of one type as one array, and how many each column has.

    What is asked of an array costs as much as of thousands of cells, however few there are.
    """
    held: list[pa.ChunkedArray] = []
    cells = 0
    for one in columns:
        if held and (one.type != held[0].type or cells + len(one) > _AT_ONCE):
            yield _joined(held)
            held, cells = [], 0
        held.append(one)
        cells += len(one)
    if held:
        yield _joined(held)


def _joined(columns: "Sequence[pa.ChunkedArray]") -> "tuple[pa.Array, list[int]]":
    empty = pa.nulls(0, columns[0].type)  # pa.array imports pandas
    return pa.concat_arrays([empty, *(chunk for one in columns for chunk in one.chunks)]), [len(one) for one in columns]


def together(
    columns: "Iterable[pa.ChunkedArray]", work: "Callable[[pa.ChunkedArray], pa.ChunkedArray]"
) -> "list[pa.ChunkedArray]":
    """Apply a function of single cells to many columns at once.

    Examples
    --------
    >>> [c.to_pylist() for c in together([pa.chunked_array([["A"]]), pa.chunked_array([["B"]])], pc.utf8_lower)]
    [['a'], ['b']]
    """
    found = []
    for cells, sizes in blocks(columns):
        done = work(pa.chunked_array([cells])).combine_chunks()
        start = 0
        for size in sizes:
            found.append(pa.chunked_array([done.slice(start, size)]))
            start += size
    return found
