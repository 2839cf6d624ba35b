"""The header of CSV, and the names of columns of any file; it touches no files."""

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
    "headless",
    "named_by_place",
    "read_header",
    "short",
    "some",
]

_DELIMITERS = ",;\t|"
#: Names of the tab.
TAB = ("tab", "\\t", "\t")
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?")
_SEPARATOR = re.compile(r"""\s*"?sep=([ !#-~\t])"?[,;\t|]*[ ]*(?:\r\n?|\n)""", re.IGNORECASE)
_COMMENT = re.compile(r"\s*(#|~|//|%|--)")
_VALUE = re.compile(r"[-+.,]*\d[-+.,:/ T\d]*([eE][-+]?\d+)?")  # a number, a date or a time, one way or another
#: Bytes within which the header must end.
HEADER = 4 << 20
_BLOCK = 1 << 20  # characters in which comments are looked for


def read_header(head: bytes, delimiter: str, named: bool, name: str) -> tuple[list[str], list[str], str, int]:
    """Find the header of CSV.

    Parameters
    ----------
    head : bytes
        The beginning of the file, at most `HEADER` bytes.
    delimiter : str
        One character, "tab" or "auto".
    named : bool
        Whether the first line holds the names of the columns.
    name : str
        Of the file, for messages.

    Returns
    -------
    list of str
        The names of the columns.
    list of str
        Names, which begin with a space, for columns that have none, since all lines end with a delimiter.
    str
        The delimiter.
    int
        The number of bytes before the first row.

    Raises
    ------
    FileError
        For a header that cannot be read, or stands after comments.
    DataError
        For names that cannot serve.
    """
    text = head.decode("utf-8", errors="ignore")  # was checked: at most the last character is cut off
    mark = 3 * text.startswith("\ufeff")  # a byte-order mark
    text = text.removeprefix("\ufeff")
    hint = _SEPARATOR.match(text)  # the line that Excel reads and writes
    start = hint.end() if hint else 0
    _check_comments(text[start:], name)
    found = []
    candidates = (hint[1] if hint else _DELIMITERS) if delimiter == "auto" else delimiter
    for candidate in "\t" if candidates in TAB else candidates:
        lines = io.StringIO(text, newline="")
        lines.seek(start)
        reader = csv.reader(lines, delimiter=candidate, strict=True)
        with contextlib.suppress(csv.Error):
            cells = next((row for row in reader if len(row) > 1 or "".join(row).strip()), [])
            found.append((cells, candidate, lines.tell()))
    cells, own, stop = max(found, key=lambda option: len(option[0]), default=([""], "", 0))
    if cells == [""] or (len(cells) == 1 and len(found) < len(candidates)):
        raise FileError(f"{name} has a header that cannot be read; look for a stray quote in it")
    if not cells:
        raise FileError(f"{name} is empty; a table needs a header line with column names")
    used = mark + len(text[:stop].encode())
    if used >= HEADER - 4:  # a character may be cut off
        raise FileError(f"{name} has a header of more than {HEADER} bytes; is this a table?")
    if not named:
        return [f"column_{i}" for i in range(1, len(cells) + 1)], [], own, mark + len(text[:start].encode())
    if all(_NUMBER.fullmatch(cell.strip()) for cell in cells):
        raise DataError(
            f"{name} starts with numbers ({short(', '.join(cell.strip() for cell in cells))}); add a line with the "
            "column names, or say that there is none (--no-header)"
        )
    row: list[str] = []  # the first, to see a delimiter at the end of every line, of the header or not
    with contextlib.suppress(csv.Error):
        row = next((row for row in csv.reader(io.StringIO(text[stop:], newline=""), delimiter=own) if row), [])
    width = max(len(_without_end(cells)), min(len(cells), len(_without_end(row))))
    names = named_by_place(cells[:width])
    check_names(names, name)
    more = len(row) if width == len(cells) < len(row) and len(_without_end(row)) <= width else len(cells)
    return names, [f" {i}" for i in range(width + 1, more + 1)], own, used


def _without_end(cells: Sequence[str]) -> list[str]:
    """Return cells without those at the end that are empty; at least one."""
    filled = [i for i, cell in enumerate(cells) if cell.strip()]
    return list(cells[: 1 + max(filled, default=0)])


def _check_comments(text: str, name: str) -> None:
    """Refuse lines of comments before the header; a header whose first name begins with # is none."""
    lines = [line for line in text[:_BLOCK].splitlines() if line.strip()]
    comments = list(itertools.takewhile(_COMMENT.match, lines))
    if not comments or len(comments) == len(lines):
        return
    delimiter = max(_DELIMITERS, key=lines[len(comments)].count)
    if len(comments) > 1 or comments[0].count(delimiter) != lines[1].count(delimiter):
        raise FileError(
            f"{name} begins with {len(comments)} {'line' if len(comments) == 1 else 'lines'} of comments "
            f"({short(comments[0])}); remove what stands before the header"
        )


def named_by_place(cells: Sequence[str]) -> list[str]:
    """Strip the names of a header; a first one that is empty is the index that pandas writes."""
    names = [cell.strip() for cell in cells]
    return ["index", *names[1:]] if len(names) > 1 and not names[0] and "index" not in names else names


def check_names(names: Sequence[str], name: str) -> None:
    """Refuse names of columns that are none, empty or repeated."""
    if not names:
        raise DataError(f"{name}: there are no columns; at least one is needed")
    if empty := [i for i, column in enumerate(names, start=1) if not column]:
        raise DataError(
            f"{name}: column {empty[0]} of {len(names)} has no name; name it in the header, or remove it"
            f"{headless(names)}"
        )
    if twice := sorted(column for column, count in Counter(names).items() if count > 1):
        raise DataError(f"{name} has the column names {some(twice)} more than once; rename them{headless(names)}")


def headless(names: Sequence[str]) -> str:
    """Return what to say of names half of which are numbers or dates: that the first row may hold values, else nothing.

    Examples
    --------
    >>> headless(["12", "0.5", "red", "2024-02-29"])
    '. The first row seems to hold values: if so, give --no-header, and columns are column_1, column_2, ...'
    >>> headless(["size", "price", "2023", "area2"])
    ''
    """
    values = sum(bool(_VALUE.fullmatch(name)) for name in names)
    if 2 * values < len(names) or list(names) == [str(i) for i in range(len(names))]:  # as pandas calls columns
        return ""
    return ". The first row seems to hold values: if so, give --no-header, and columns are column_1, column_2, ..."


def check_present(wanted: Iterable[str], names: Sequence[str], name: str) -> None:
    """Refuse a table that lacks a column."""
    known = set(names)
    if absent := [column for column in wanted if column not in known]:
        raise DataError(f"{name} lacks the columns {some(absent)}; it has {some(names)}{headless(names)}")


def some(names: Sequence[str]) -> str:
    """List names for a message, at most ten of them."""
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown}, ... ({len(names)} in all)"


def short(text: str, limit: int = 60) -> str:
    """Quote text for a message, on one line and not too much of it."""
    plain = " ".join(text.split())
    return repr(plain) if len(plain) <= limit else f"{plain[:limit]!r}..."
