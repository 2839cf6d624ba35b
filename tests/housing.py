"""Table of houses with a column of every type, and calls of the command line on it."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import run_folders
from commands import Call, Said
from fathomless.tables import files as tables
from fathomless.tables.writers import writer

N = 90
QUICK = ["--epochs", "4", "--width", "8", "--cv", "2"]  # an analysis asks every network
COLOURS = ("red", "green", "blue")
SCORES = [
    "log_likelihood",
    "rmse",
    "mae",
    "r2",
    "crps",
    "interval_score_90",
    "coverage_50",
    "coverage_90",
    "coverage_95",
]


def houses(rows: int = N, seed: int = 0, **changes: Any) -> pa.Table:
    """Return a table with a column of every type."""
    rng = np.random.default_rng(seed)
    size, colour = rng.normal(size=rows), rng.choice(COLOURS, rows)
    price = np.sin(2 * size) + (colour == "red") + 0.1 * rng.normal(size=rows)
    columns = {
        "id": [f"h{i}" for i in range(rows)],
        "size": size,
        "rooms": rng.integers(1, 30, rows),
        "colour": colour,
        "new": rng.random(rows) < 0.5,
        "built": np.datetime64("2001-02-03") + rng.integers(0, 9999, rows),
        "price": price,
        "rent": price / 7 - size,
        "grade": np.where(price > 0.4, "high", "low"),
        "level": np.digitize(price, [0.0, 1.0]),
        "sold": price > 0.4,
    }
    return pa.table({name: pa.array(values) for name, values in {**columns, **changes}.items()})


def write(name: str, table: pa.Table) -> str:
    with writer(name) as put:
        put(table)
    return name


TARGETS = ("price", "rent", "grade", "level", "sold")


def fit(call: Call, target: str = "price", *words: str, data: str = "houses.csv", out: str = "run") -> Said:
    """Fit a target quickly, with all columns that are not targets."""
    others = [name for name in TARGETS if name not in (target, *words)]
    drops = [word for name in others for word in ("--drop", name)]
    said = call("fit", data, "--target", target, "--key", "id", *drops, "--out", out, *QUICK, *words)
    assert said.code == 0, said.err
    return said


FITTED: dict[str, dict[Path, bytes]] = {}  # the runs of the small table, each fitted once


def fitted(call: Call, target: str = "price") -> None:
    """Write the run of a target to a folder, bit-identical to that of its fit."""
    if target not in FITTED:
        fit(call, target)
        FITTED[target] = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for path, data in FITTED[target].items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def predicted(call: Call, *words: str, run: str = "run", data: str = "houses.csv") -> pa.Table:
    said = call("predict", run, data, "--out", "predictions.csv", *words)
    assert said.code == 0, said.err
    return tables.read("predictions.csv").frame


def column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(table[name].to_numpy())


def refused(said: Said, message: str) -> None:
    """Check that an error of the user is reported in one line, possibly after notes."""
    assert (said.code, said.out) == (2, ""), said
    *notes, line = said.err.splitlines()
    assert all(note.startswith("note: ") for note in notes)
    assert re.match(r"fathomless [a-z]+: error: ", line)
    assert message in line
    assert "Traceback" not in line
    assert len(line) < 600


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def model_of(folder: str) -> dict[str, bytes]:
    """Return the model of a finished run, without its history."""
    return {name: data for name, data in run_folders.model_of(folder).items() if not name.startswith("history")}
