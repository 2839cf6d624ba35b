"""CSV headers, and checks of column names; no file is opened here."""

import contextlib
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from fathomless.system.errors import DataError, FileError

__all__ = [
    "HEADER",
    "TAB",
    "check_names",
    "check_present",
    "quote",
    "read_header",
    "some",
    "strip_names",
    "suggest_no_header",
]

_DELIMITERS = ",;\t|"
#: Accepted names of the tab character.
TAB = ("tab", "\\t", "\t")
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?")
_SEPARATOR = re.compile(r"""\s*"?sep=([ !#-~\t])"?[,;\t|]*[ ]*(?:\r\n?|\n)""", re.IGNORECASE)
_COMMENT = re.compile(r"\s*(#|~|//|%|--)")
_VALUE = re.compile(r"[-+.,]*\d[-+.,:/ T\d]*([eE][-+]?\d+)?")  # a number, a date or a time, in any notation
#: Maximum size of a header in bytes.
HEADER = 4 << 20
_BLOCK = 1 << 20  # characters that are searched for comments


def read_header(head: bytes, delimiter: str, named: bool, name: str) -> tuple[list[str], list[str], str, int]:
    """Read the header of a CSV file.

    Parameters
    ----------
    head : bytes
        The beginning of the file, at most `HEADER` bytes.
    delimiter : str
        One character, "tab" or "auto".
    named : bool
        True if the first line holds the column names.
    name : str
        Name of the file, for messages.

    Returns
    -------
    list of str
        The names of the columns.
    list of str
        Placeholder names, which begin with a space, of unnamed columns: all lines end with a delimiter.
    str
        The delimiter.
    int
        The number of bytes before the first row.

    Raises
    ------
    FileError
        If the header cannot be parsed, or comments precede it.
    DataError
        If a name is empty or repeated, or the first line holds numbers only.
    """
    text = head.decode("utf-8", errors="ignore")  # checked already: only the last character may be incomplete
    mark = 3 * text.startswith("\ufeff")  # a byte-order mark
    text = text.removeprefix("\ufeff")
    hint = _SEPARATOR.match(text)  # the line sep=; of Excel
    start = hint.end() if hint else 0
    _check_comments(text[start:], name)
    options = []
    candidates = (hint[1] if hint else _DELIMITERS) if delimiter == "auto" else delimiter
    for candidate in "\t" if candidates in TAB else candidates:
        lines = io.StringIO(text, newline="")
        lines.seek(start)
        reader = csv.reader(lines, delimiter=candidate, strict=True)
        with contextlib.suppress(csv.Error):
            cells = next((row for row in reader if len(row) > 1 or "".join(row).strip()), [])
            options.append((cells, candidate, lines.tell()))
    # the delimiter that cuts the header into the most cells is taken
    cells, chosen, stop = max(options, key=lambda option: len(option[0]), default=([""], "", 0))
    if cells == [""] or (len(cells) == 1 and len(options) < len(candidates)):
        raise FileError(f"{name} has a header that cannot be parsed; remove stray quotes from it")
    if not cells:
        raise FileError(f"{name} is empty; a table needs a header line with column names")
    used = mark + len(text[:stop].encode())
    if used >= HEADER - 4:  # the last character may be incomplete
        raise FileError(f"{name} has a header of more than {HEADER:,} bytes; check that the file is a table")
    if not named:
        return [f"column_{i}" for i in range(1, len(cells) + 1)], [], chosen, mark + len(text[:start].encode())
    if all(_NUMBER.fullmatch(cell.strip()) for cell in cells):
        raise DataError(
            f"{name} has only numbers in its first line ({quote(', '.join(cell.strip() for cell in cells))}); add a "
            "header line with the column names, or give --no-header"
        )
    # The first row shows whether every line ends with a delimiter, which makes no column.
    row: list[str] = []
    with contextlib.suppress(csv.Error):
        row = next((row for row in csv.reader(io.StringIO(text[stop:], newline=""), delimiter=chosen) if row), [])
    width = max(len(_drop_empty_end(cells)), min(len(cells), len(_drop_empty_end(row))))
    names = strip_names(cells[:width])
    check_names(names, name)
    more = len(row) if width == len(cells) < len(row) and len(_drop_empty_end(row)) <= width else len(cells)
    return names, [f" {i}" for i in range(width + 1, more + 1)], chosen, used


def _drop_empty_end(cells: Sequence[str]) -> list[str]:
    """Drop empty cells at the end, but keep at least one cell."""
    filled = [i for i, cell in enumerate(cells) if cell.strip()]
    return list(cells[: 1 + max(filled, default=0)])


def _check_comments(text: str, name: str) -> None:
    """Raise an error for comment lines before the header; a header may itself begin with #."""
    lines = [line for line in text[:_BLOCK].splitlines() if line.strip()]
    comments = list(itertools.takewhile(_COMMENT.match, lines))
    if not comments or len(comments) == len(lines):
        return
    delimiter = max(_DELIMITERS, key=lines[len(comments)].count)
    if len(comments) > 1 or comments[0].count(delimiter) != lines[1].count(delimiter):
        raise FileError(
            f"{name} begins with {len(comments)} comment {'line' if len(comments) == 1 else 'lines'} "
            f"({quote(comments[0])}); remove everything before the header"
        )


def strip_names(cells: Sequence[str]) -> list[str]:
    """Strip the names of a header, and name an empty first column "index", as pandas writes it."""
    names = [cell.strip() for cell in cells]
    return ["index", *names[1:]] if len(names) > 1 and not names[0] and "index" not in names else names


def check_names(names: Sequence[str], name: str) -> None:
    """Raise an error if there are no column names, or empty or repeated ones."""
    if not names:
        raise DataError(f"{name}: there are no columns; at least one is needed")
    if empty := [i for i, column in enumerate(names, start=1) if not column]:
        raise DataError(
            f"{name}: column {empty[0]} of {len(names)} has no name; name it in the header, or remove it"
            f"{suggest_no_header(names)}"
        )
    if twice := sorted(column for column, count in Counter(names).items() if count > 1):
        raise DataError(
            f"{name} has the column names {some(twice)} more than once; rename them{suggest_no_header(names)}"
        )


def suggest_no_header(names: Sequence[str]) -> str:
    """Return a hint at --no-header if at least half of the names are numbers or dates, else an empty string.

    Examples
    --------
    >>> suggest_no_header(["12", "0.5", "red", "2024-02-29"])
    '. The first row seems to hold values: if so, give --no-header, which names the columns column_1, column_2, ...'
    >>> suggest_no_header(["size", "price", "2023", "area2"])
    ''
    """
    values = sum(bool(_VALUE.fullmatch(name)) for name in names)
    if 2 * values < len(names) or list(names) == [str(i) for i in range(len(names))]:  # as pandas calls columns
        return ""
    return (
        ". The first row seems to hold values: if so, give --no-header, which names the columns column_1, column_2, ..."
    )


def check_present(wanted: Iterable[str], names: Sequence[str], name: str) -> None:
    """Raise an error if a table lacks a requested column."""
    known = set(names)
    if absent := [column for column in wanted if column not in known]:
        raise DataError(
            f"{name} lacks the columns {some(absent)}; its columns are {some(names)}{suggest_no_header(names)}"
        )


def some(names: Sequence[str]) -> str:
    """List up to ten names for a message."""
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown}, ... ({len(names)} in all)"


def quote(text: str, limit: int = 60) -> str:
    """Quote text for a message, on one line of at most `limit` characters."""
    plain = " ".join(text.split())
    return repr(plain) if len(plain) <= limit else f"{plain[:limit]!r}..."
