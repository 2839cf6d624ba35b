"""Readers of the arrays, tables and images of public data sets; they never run code from a file."""

import bz2
import contextlib
import csv
import gzip
import hashlib
import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fathomless.system.errors import FileError
from fathomless.system.io import as_file_error

__all__ = ["hash_files", "map_array", "read_arrays", "read_image", "read_table"]

PathLike = str | os.PathLike[str]


def read_arrays(path: PathLike) -> dict[str, npt.NDArray[Any]]:
    """Read a NumPy ``.npz`` archive; archives that need pickle are refused.

    Raises
    ------
    FileError
        If the file is missing, damaged, a single array, or holds Python objects.
    """
    path = _check_exists(path)
    with as_file_error(f"{path} cannot be read"):
        try:
            with open(path, "rb") as file:
                archive = np.load(file, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise FileError(f"{path} holds one array, not an archive; write it with numpy.savez")
                return {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise FileError(f"{path} is not an .npz archive of plain arrays: {error}") from error


def hash_files(paths: Iterable[PathLike]) -> tuple[str, int]:
    """Return the SHA-256 and the number of the concatenated bytes of files."""
    sha = hashlib.sha256()
    size = 0
    for path in map(_check_exists, paths):
        with as_file_error(f"{path} cannot be read"), open(path, "rb") as file:
            while data := file.read(1 << 20):
                sha.update(data)
                size += len(data)
    return sha.hexdigest(), size


def map_array(path: PathLike) -> npt.NDArray[Any]:
    """Map a NumPy ``.npy`` file into memory; its pages are read on access.

    Raises
    ------
    FileError
        If the file is missing, empty, no ``.npy`` file, or holds Python objects.
    """
    path = _check_exists(path)
    with as_file_error(f"{path} cannot be read"):
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FileError(f"{path} is not a .npy file of numbers: {error}") from error
    if not isinstance(array, np.ndarray):
        raise FileError(f"{path} is an archive; give .npy files with one array each, as numpy.save writes them")
    return array


def read_table(path: PathLike) -> dict[str, npt.NDArray[Any]]:
    """Read a CSV table with a header, plain or compressed (``.xz``, ``.gz``, ``.bz2``), column by column.

    Fields are stripped of surrounding spaces; ``""`` and ``"?"`` are missing values. A column of integers becomes
    int64. Other columns of numbers, or integers with missing values, become float64 with NaN for missing. All other
    columns become object arrays of str with None for missing.

    Raises
    ------
    FileError
        If the file is missing, damaged, not UTF-8, has no header or a repeated name, or has a row whose length
        differs from that of the header.

    Notes
    -----
    Codes with leading zeros, such as ``007``, are read as integers.
    """
    path = _check_exists(path)
    with as_file_error(f"{path} cannot be read"):
        try:
            with _open_text(path) as file:
                header, rows = _read_rows(path, csv.reader(file))
        except (UnicodeDecodeError, csv.Error, lzma.LZMAError, zlib.error, EOFError) as error:
            raise FileError(f"{path} is not a readable CSV table: {error}") from error
    columns = zip(*rows, strict=True) if rows else iter([()] * len(header))
    return {name: _infer_column(values) for name, values in zip(header, columns, strict=True)}


def _open_text(path: Path) -> IO[str]:
    match path.suffix:
        case ".xz":
            return lzma.open(path, "rt", encoding="utf-8-sig", newline="")
        case ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        case ".bz2":
            return bz2.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _read_rows(path: Path, reader: Any) -> tuple[list[str], list[list[str]]]:
    header = [name.strip() for name in next(reader, [])]
    if not header:
        raise FileError(f"{path} is empty; a table needs a header line with column names")
    if len(set(header)) < len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise FileError(f"{path} has the column names {twice} more than once; rename them")
    rows = []
    for row in reader:
        if len(row) != len(header):
            if not row:
                continue
            counts = f"{len(row)} fields, the header has {len(header)}"
            raise FileError(f"{path}, line {reader.line_num}: {counts}; correct this line")
        rows.append(row)
    return header, rows


def _infer_column(fields: tuple[str, ...]) -> npt.NDArray[Any]:
    """Infer the type of one column."""
    values = [None if text in ("", "?") else text for text in map(str.strip, fields)]
    present = [text for text in values if text is not None]
    letters = set("".join(present))
    if "_" not in letters:  # Python reads "1_000" as a number, tables do not
        with contextlib.suppress(ValueError):
            numbers = np.array([math.nan if text is None else float(text) for text in values], dtype=np.float64)
            if len(present) == len(values) and letters <= set("+-0123456789"):
                with contextlib.suppress(OverflowError):
                    return np.array([int(text) for text in present], dtype=np.int64)
            return numbers
    return np.array(values, dtype=object)


def read_image(path: PathLike) -> npt.NDArray[np.uint8]:
    """Read an image as an array of shape (H, W, 3) with values 0 to 255.

    Raises
    ------
    FileError
        If the file is missing or not an image, or Pillow is not installed.
    """
    path = _check_exists(path)
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError(f"{path} needs Pillow, which is not installed: pip install 'fathomless[images]'") from error
    with as_file_error(f"{path} is not a readable image"):
        try:
            with Image.open(path) as picture:
                return np.asarray(picture.convert("RGB"), dtype=np.uint8)
        except (ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise FileError(f"{path} is not a readable image: {error}") from error


def _check_exists(path: PathLike) -> Path:
    path = Path(path)
    if not path.is_file():
        raise FileError(f"there is no file {path}; check the path")
    return path
