"""Default fits by one, two and four processes, which train shares of the networks: seconds, memory, and differences.

    python benchmarks/ranks.py                         3,000 and 30,000 rows by 20 columns
    python benchmarks/ranks.py 3000 --processes 1 2    one table, and two of the numbers of processes
    python benchmarks/ranks.py 1000 --width 256        wider networks than those of the default
    python benchmarks/ranks.py --messages              seconds of sums of tensors over processes, by their size

Every process has one thread, and a gloo group connects them. Wall seconds until the end of the training and of the
whole fit, CPU seconds and peak memory are those of the first process. The difference is the largest one between the
means of the networks and those of the fit by one process, for 1,000 new rows.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fathomless import UnboundedDepthRegressor
from fathomless.inference.runs.distributed import start_group
from fathomless.posterior.ensemble import list_members


def table(rows: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return a table of 20 columns, of which five have an influence."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 20))
    mean = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3])
    return X, mean + 0.3 * np.exp(0.5 * X[:, 4]) * rng.normal(size=rows)


def be_process(rows: int, width: int | None, out: Path) -> None:
    """Fit as one of the processes; the first one saves its times and predictions."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ends: list[float] = []  # of the epochs
    with start_group() as group:
        X, y = table(rows + 1000)
        start, cpu = time.perf_counter(), time.process_time()
        chosen: dict[str, Any] = {} if width is None else {"width": width}
        callbacks = [lambda _: ends.append(time.perf_counter())]
        model = UnboundedDepthRegressor(random_state=0, callbacks=callbacks, **chosen).fit(X[:rows], y[:rows])
        seconds = [ends[-1] - start, time.perf_counter() - start, time.process_time() - cpu]
        if group.rank == 0:
            law: Any = model.predict_dist(X[rows:])
            density = float(law.log_prob(y[rows:]).mean())
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
            mean = law.network_mixture.mean.numpy()
            np.savez(out, mean=mean, numbers=[*seconds, memory, density, len(list_members(model.model_))])


def send_messages() -> None:
    """Print the milliseconds of sums over all processes, as the first process measures them."""
    torch.set_num_threads(1)
    with start_group() as group:
        for size in (4, 40, 400, 4000, 40000):  # kB
            message = [torch.zeros(size * 250)]
            times = []
            for _ in range(60):
                start = time.perf_counter()
                group.add(message)
                times.append(time.perf_counter() - start)
            if group.rank == 0:
                print(f"{group.count} processes, {size:6,} kB: {1000.0 * float(np.median(times)):8.2f} ms", flush=True)


def launch(count: int, *words: str) -> None:
    """Run this file in a number of processes."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    line = [sys.executable, *(several if count > 1 else []), __file__, *words]
    subprocess.run(line, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def main() -> None:
    """Print a line for each table and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[3000, 30000])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--width", type=int)
    parser.add_argument("--messages", action="store_true")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.messages and "RANK" in os.environ:
        send_messages()
        return
    if options.out is not None:
        be_process(options.rows[0], options.width, options.out)
        return
    print(
        f"fathomless {version('fathomless')}, torch {version('torch')}, {os.cpu_count()} cores of "
        f"{platform.machine()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    for count in (2, 4) if options.messages else ():
        launch(count, "--messages")
    for rows in () if options.messages else options.rows:
        first: npt.NDArray[Any] | None = None
        for count in options.processes:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder, "fit.npz")
                width = [] if options.width is None else ["--width", str(options.width)]
                launch(count, str(rows), *width, "--out", str(out))
                found = np.load(out)
                training, wall, cpu, memory, density, networks = found["numbers"]
                mean = found["mean"]
            first = mean if first is None else first
            print(
                f"{rows:9,} rows, width {options.width or 'auto'}, {networks:.0f} networks, {count} processes: "
                f"training {training:6.1f} s, fit {wall:6.1f} s, CPU {cpu:6.1f} s, {memory:6,.0f} MiB, log-likelihood "
                f"{density:.4f}, difference {np.abs(mean - first).max():.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
