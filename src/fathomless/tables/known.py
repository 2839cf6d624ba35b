"""Text in columns of known kinds: read as another table was, or as its own cells say."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fathomless.system.errors import DataWarning
from fathomless.tables.arrays import together
from fathomless.tables.csv import CELL, CODES, Form, bare, with_kinds
from fathomless.tables.notations import HEAD, MARKS, Known, as_before, is_numeric, mark_of
from fathomless.tables.oddities import Used

__all__ = ["known_of", "of_used"]


def known_of(
    ahead: Sequence[pa.RecordBatch],
    kinds: Mapping[str, str],
    notation: Mapping[str, str] | None,
    form: Form,
    delimiter: str,
    name: str,
) -> dict[str, Known]:
    """Say how the columns of a table are to be read, by its first block and what is known of another table.

    Warns
    -----
    DataWarning
        If the table has another decimal mark than that one.
    """
    numeric = [column for column, kind in kinds.items() if kind == "numeric"]
    if form.decimal != "auto":
        given = {column: Known(form.decimal, (form.decimal,)) for column in numeric}
        return given | {column: Known(way) for column, way in (notation or {}).items() if not is_numeric(way)}
    texts = {
        label: pa.chunked_array([column.slice(0, HEAD)])
        for batch in ahead
        for label, column in zip(batch.schema.names, batch.columns, strict=True)
        if column.type in (pa.string(), CODES, CELL)
    }
    heads = dict(zip(texts, together(texts.values(), bare), strict=True))
    if notation is None:
        mark = mark_of(heads.values(), delimiter)
        return dict.fromkeys(numeric, Known(marks=(mark, *(other for other in MARKS if other != mark))))
    known, moved = as_before(heads, notation, [column for column in numeric if column not in notation], delimiter)
    if moved is not None:
        own, other = ("points", "commas")[:: 1 if moved == "." else -1]
        warnings.warn(
            f"{name} is read with decimal {own}, as its columns are written, though the training had decimal {other} "
            "(--decimal changes that)",
            DataWarning,
            stacklevel=4,
        )
    return known


def of_used(
    table: pa.Table,
    used: Callable[[pa.Table], Used],
    kinds: Mapping[str, str],
    known: Mapping[str, Known],
    name: str,
) -> pa.Table:
    """Give the rows that are used their types; the others are emptied first, so that rows keep their numbers."""
    rows = pa.array(used(table).rows)
    emptied = [pc.if_else(rows, column, pa.scalar(None, column.type)) for column in table.columns]
    return with_kinds(pa.table(emptied, table.column_names), kinds, known, name, 1).filter(rows)
