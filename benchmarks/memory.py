"""Peak memory by the number of rows, for tables streamed from files and tables in memory.

    python benchmarks/memory.py                   100,000 and 1,000,000 rows of 20 columns
    python benchmarks/memory.py 100000 4000000    other numbers of rows

Tables of noise are written in chunks, as .npy in double and single precision and as Parquet. Each line is a separate
process; its peak is the largest resident size on Linux (VmHWM; ru_maxrss would start at that of the parent process).
Fits have one epoch.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fathomless import UnboundedDepthRegressor
from fathomless.app import cli
from fathomless.data import streams

COLUMNS, PIECE = 20, 50_000
IN_MEMORY = 1_000_000  # largest number of rows of the fit in memory


def write(folder: Path, rows: int) -> None:
    """Write one table in all formats, in chunks of rows."""
    names = [*(f"x{i}" for i in range(COLUMNS)), "y"]
    kinds = {"double": np.float64, "single": np.float32}
    X = {k: np.lib.format.open_memmap(folder / f"{k}.npy", "w+", t, (rows, COLUMNS)) for k, t in kinds.items()}
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float64, (rows,))
    with pq.ParquetWriter(folder / "t.parquet", pa.schema([(name, pa.float64()) for name in names])) as parquet:
        for start in range(0, rows, PIECE):
            noise = np.random.default_rng(start).standard_normal((min(PIECE, rows - start), COLUMNS + 1))
            noise[:, -1] = np.sin(2 * noise[:, 0]) + noise[:, 1] * noise[:, 2] + 0.5 * noise[:, -1]
            for mapped in X.values():
                mapped[start : start + PIECE] = noise[:, :-1]
            y[start : start + PIECE] = noise[:, -1]
            parquet.write_table(pa.table(dict(zip(names, noise.T, strict=True))))


def regressor() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(epochs=1, batch_size=4096, width=32, random_state=0)


def fit_arrays(folder: Path, kind: str) -> None:
    regressor().fit_stream(streams.arrays(folder / f"{kind}.npy", folder / "y.npy"))


def fit_parquet(folder: Path) -> None:
    regressor().fit_stream(streams.parquet(folder / "t.parquet", "y")).save(folder / "model")


def fit_memory(folder: Path) -> None:
    regressor().fit(np.load(folder / "double.npy"), np.load(folder / "y.npy"))


def predict_arrays(folder: Path, kind: str) -> None:
    """Predict a mapped array; the peak includes the predictions, 8 bytes per row, twice during concatenation."""
    X = np.load(folder / f"{kind}.npy", mmap_mode="r")
    few = regressor().fit(np.array(X[:50]), np.array(X[:50, 0]))
    few.predict(X)


def predict_parquet(folder: Path) -> None:
    """Predict from file to file, with the command line."""
    assert cli.main(["predict", str(folder / "model"), str(folder / "t.parquet"), "--out", str(folder / "p.csv")]) == 0


TASKS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "fit, streamed from .npy, double": ("double.npy", lambda folder: fit_arrays(folder, "double")),
    "fit, streamed from .npy, single": ("single.npy", lambda folder: fit_arrays(folder, "single")),
    "fit, streamed from Parquet": ("t.parquet", fit_parquet),
    "fit, in memory": ("double.npy", fit_memory),
    "predict a mapped .npy, double": ("double.npy", lambda folder: predict_arrays(folder, "double")),
    "predict a mapped .npy, single": ("single.npy", lambda folder: predict_arrays(folder, "single")),
    "predict Parquet to CSV, command line": ("t.parquet", predict_parquet),
}


def measure_peak(folder: Path, task: str) -> int:
    """Run a task in a separate process; return its peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, __file__, "--task", task, "--folder", str(folder)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        if args.task != "imports alone":
            TASKS[args.task][1](args.folder)
        print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024)
        return
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread, {COLUMNS} columns")
    print(f"{'':<38}{'rows':>10}{'file':>12}{'peak':>12}")
    print(f"{'imports alone':<48}{'':>12}{measure_peak(Path(), 'imports alone'):>8} MiB")
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name), rows)
            for task, (file, _) in TASKS.items():
                if task != "fit, in memory" or rows <= IN_MEMORY:
                    peak = measure_peak(Path(name), task)
                    size = (Path(name) / file).stat().st_size / 2**20
                    print(f"{task:<38}{rows:>10,}{size:>8.0f} MiB{peak:>8} MiB", flush=True)


if __name__ == "__main__":
    main()
