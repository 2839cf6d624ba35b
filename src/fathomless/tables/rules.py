"""Reading rules of text columns of known kinds, from the notation of the training table or from the cells."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fathomless.system.errors import DataWarning
from fathomless.tables.anomalies import UsedRows
from fathomless.tables.arrays import map_columns
from fathomless.tables.csv import CELL, CODES, Dialect, cast_columns, strip_missing
from fathomless.tables.notations import HEAD, MARKS, ColumnRule, infer_decimal_mark, infer_rules, is_numeric

__all__ = ["cast_used_rows", "find_rules"]


def find_rules(
    ahead: Sequence[pa.RecordBatch],
    kinds: Mapping[str, str],
    notation: Mapping[str, str] | None,
    form: Dialect,
    delimiter: str,
    name: str,
) -> dict[str, ColumnRule]:
    """Determine how the columns of a table are read, from its first block and the notation of the training table.

    Warns
    -----
    DataWarning
        If the table has another decimal mark than the training table.
    """
    numeric = [column for column, kind in kinds.items() if kind == "numeric"]
    if form.decimal != "auto":
        rules = {column: ColumnRule(form.decimal, (form.decimal,)) for column in numeric}
        return rules | {column: ColumnRule(way) for column, way in (notation or {}).items() if not is_numeric(way)}
    texts = {
        label: pa.chunked_array([column.slice(0, HEAD)])
        for batch in ahead
        for label, column in zip(batch.schema.names, batch.columns, strict=True)
        if column.type in (pa.string(), CODES, CELL)
    }
    heads = dict(zip(texts, map_columns(texts.values(), strip_missing), strict=True))
    if notation is None:
        mark = infer_decimal_mark(heads.values(), delimiter)
        return dict.fromkeys(numeric, ColumnRule(marks=(mark, *(other for other in MARKS if other != mark))))
    known, moved = infer_rules(heads, notation, [column for column in numeric if column not in notation], delimiter)
    if moved is not None:
        here, before = ("points", "commas")[:: 1 if moved == "." else -1]
        warnings.warn(
            f"the numbers of {name} are read with decimal {here}, although the training data had decimal {before} "
            "(--decimal sets the mark)",
            DataWarning,
            stacklevel=4,
        )
    return known


def cast_used_rows(
    table: pa.Table,
    used: Callable[[pa.Table], UsedRows],
    kinds: Mapping[str, str],
    known: Mapping[str, ColumnRule],
    name: str,
) -> pa.Table:
    """Convert the rows that are used to their types; others are emptied before, so that errors give row numbers."""
    rows = pa.array(used(table).rows)
    emptied = [pc.if_else(rows, column, pa.scalar(None, column.type)) for column in table.columns]
    return cast_columns(pa.table(emptied, table.column_names), kinds, known, name, 1).filter(rows)
