"""Fit of a small table, and the content of its run folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fathomless.tables.writers import writer

N = 80
FIT = ["fit", "data.csv", "--target", "price", "--out", "run", "--epochs", "24", "--width", "4", "--quiet"]
FIT += ["--cv", "2"]  # an analysis asks every network


def write_table(name: str, seed: int = 0, rows: int = N, **more: Any) -> pa.Table:
    rng = np.random.default_rng(seed)
    size, colour = rng.normal(size=rows), rng.choice(["red", "green"], rows)
    table = pa.table({"size": size, "colour": colour, "price": np.sin(2 * size) + (colour == "red"), **more})
    with writer(name) as write:
        write(table)
    return table


def model_of(folder: str | Path) -> dict[str, bytes]:
    """Return the content of a finished run that is determined by the seed."""
    names = [path.name for path in Path(folder).iterdir() if path.name.startswith(("manifest", "tensors", "history"))]
    found = {name: (Path(folder) / name).read_bytes() for name in names}
    assert len(found) == 4
    return found


def events(folder: str | Path) -> list[str]:
    lines = (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["event"] for line in lines]
