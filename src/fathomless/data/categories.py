"""Categories of encoded rows."""

import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Column, Floats, Schema

__all__ = ["category_columns", "category_name", "read_categories"]

_KINDS = ("category", "boolean")


def category_columns(schema: Schema) -> tuple[str, ...]:
    """Return the names of the categorical and boolean columns, in order."""
    return tuple(column.name for column in schema.columns if column.kind in _KINDS)


def read_categories(schema: Schema, x: Floats) -> npt.NDArray[np.int64]:
    """Return the number of the category of each row in every categorical and boolean column, shape (N, C).

    Categories have the order of the levels of the column, followed by "(other)" and missing values, if they occurred in
    training. Booleans are 0, 1, and 2 for missing values. It is −1 for values that training rows cannot have.

    Parameters
    ----------
    schema : Schema
        Fitted encoding.
    x : ndarray, shape (N, D)
        Encoded rows.
    """
    codes = []
    start = 0
    for column in schema.columns:
        end = start + len(column.features)
        if column.kind in _KINDS:
            codes.append(_read_column(column, np.asarray(x)[:, start:end]))
        start = end
    return np.stack(codes, 1) if codes else np.zeros((len(x), 0), dtype=np.int64)


def _read_column(column: Column, block: Floats) -> npt.NDArray[np.int64]:
    values = block[:, :-1] if column.gaps else block
    if column.kind == "boolean":
        count = 2
        code = np.where(values[:, 0] == 0.0, -1, (values[:, 0] > 0.0).astype(np.int64))
    else:
        count = values.shape[1]
        code = np.where(values.max(1) > 0.5, values.argmax(1), -1)
    if column.gaps:
        code = np.where(block[:, -1] > 0.5, count, code)
    return code.astype(np.int64)


def category_name(schema: Schema, name: str, code: int) -> str:
    """Return the name of a category of a column, for messages.

    Parameters
    ----------
    schema : Schema
        Fitted encoding.
    name : str
        Name of the column.
    code : int
        Number of the category, from :func:`read_categories`.
    """
    column = next(column for column in schema.columns if column.name == name)
    levels = ["False", "True"] if column.kind == "boolean" else [repr(level) for level in column.levels]
    levels += ["(other)"] if column.other else []
    if code < 0:
        return "a category without training rows"
    return levels[code] if code < len(levels) else "missing"
