"""Every family, every baseline and other libraries with default options, on the tables of the literature.

    python benchmarks/all_families.py --data FOLDER --tables uci --splits 0,1     compute the missing results
    python benchmarks/all_families.py --summary                                   write the page of all results

``--tables`` are ``uci`` (nine regressions with their standard splits), ``classes`` (six classifications, stratified
splits of 90 and 10 %) or names of tables. ``--methods`` are ``ours``, ``others`` (see ``family_peers``) or names.
Each method is fitted with default options in a separate process with one thread. Its peak memory is the resident set of
that process, of which imports take about 400 MiB. CPU seconds are those without imports; unlike wall-clock seconds they
do not depend on other work on the machine. Each result is one JSON line, written as soon as it is done, so the same
command resumes an interrupted run. ``--jobs`` processes run in parallel with joblib's back end ``--backend``: ``loky``,
or ``dask`` with the cluster at ``--scheduler``, or with a new local cluster of ``--jobs`` workers.
"""

import argparse
import hashlib
import itertools
import json
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from joblib import delayed, parallel_config

from fathomless.system.jobs import call_in_parallel

UCI = ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm", "power", "naval", "protein")
CLASSES = ("german_credit", "spambase", "magic_telescope", "letter", "bank_marketing_additional", "adult")
#: Methods of this library, the fast ones first.
OURS = (
    *("constant", "linear", "boosting", "gp"),
    *(
        "finite",
        "laplace",
        "swag",
        "subspace",
        "matrix-normal",
        "meanfield",
        "depth-uncertainty",
        "dropout",
        "ensemble",
    ),
    *("depth", "manifold", "continuous", "sparse", "graph", "depth-hmc"),
)
OTHERS = ("catboost", "ngboost", "laplace-torch", "bayesian-torch", "torch-uncertainty")
ROWS = {"depth-hmc": 500, "graph": 1100, "gp": 2000}  #: largest number of training rows of a method
SIZES = {"yacht": 277, "boston": 455, "energy": 691, "concrete": 927, "wine_red": 1439, "german_credit": 900}
RENAMED = {"mvg": "matrix-normal", "dun": "depth-uncertainty"}  #: former names in the file of results
RESULTS = Path(__file__).parent / "results" / "families.jsonl"
_PACKAGES = ("torch", "scikit-learn", "numpy", "numba", "fathomless", *OTHERS)


def left_out(table: str, method: str) -> str:
    """Return the reason for which a method is not run on a table, or an empty string.

    Examples
    --------
    >>> left_out("boston", "depth-hmc"), left_out("energy", "depth-hmc")
    ('', 'left out above 500 rows')
    """
    if method == "gp" and table in CLASSES:
        return "a regression"
    return f"left out above {ROWS[method]:,} rows" if SIZES.get(table, 10**6) > ROWS.get(method, 10**9) else ""


def part(table: str, split: int, method: str, data: Path) -> dict[str, Any]:
    """Fit one method to one split and score it; large packages are imported here, in the separate process."""
    import numpy as np
    import torch
    from defaults import data as read

    from fathomless.app.compare import evaluate_split
    from fathomless.app.compare import method as ours

    torch.set_num_threads(1)
    task = "classification" if table in CLASSES else "regression"
    X, y, X_test, y_test = read(data, table, split)

    def make() -> Any:
        if method in ("gp", *OTHERS):
            from family_peers import PEERS

            return PEERS[method](method, task, split)
        if method == "depth-hmc":
            return ours("depth", task, split, weights="hmc")
        return ours(method, task, split)

    before = _cpu_seconds()
    found = evaluate_split(make, (X, y), (X_test, y_test))
    found["processor_seconds"] = _cpu_seconds() - before
    found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if "failed" not in found:
        rows = np.array(found.pop("log_density"))
        found["scores"]["worst"] = float(np.median(rows) - rows.min())
    return {key: _round(value) for key, value in found.items()}


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(own) for key, own in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def run(table: str, split: int, method: str, data: Path, limit: int) -> dict[str, Any] | None:
    """Run one part in a separate process; return None if it was killed, so that it is run again."""
    command = [
        sys.executable,
        __file__,
        "--part",
        table,
        str(split),
        method,
        "--data",
        str(data),
        "--limit",
        str(limit),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    line = {"table": table, "split": split, "method": method}
    if done.returncode == -signal.SIGXCPU:
        return {**line, "failed": f"stopped after {limit} CPU seconds"}
    if done.returncode < 0:
        print(
            f"{table} {split} {method} was killed (signal {-done.returncode}); run the command again to compute it",
            file=sys.stderr,
        )
        return None
    if done.returncode:
        return {**line, "failed": done.stderr.strip().splitlines()[-1][:300]}
    return {**line, **json.loads(done.stdout.splitlines()[-1])}


def parts(
    tables: Sequence[str], splits: Sequence[int], methods: Sequence[str], done: Iterable[dict[str, Any]]
) -> list[Any]:
    """Return the missing parts: all methods of a split of a table, then the next table, then the next split."""
    known = {(line["table"], line["split"], line["method"]) for line in done}
    every = [(t, s, m) for s, t, m in itertools.product(splits, tables, methods) if not left_out(t, m)]
    return [one for one in every if one not in known and (one[0] != "protein" or one[1] < 5)]


@contextmanager
def backend(name: str, jobs: int, scheduler: str) -> Iterator[None]:
    """Select joblib's back end; for Dask, the cluster at this address or a new local one."""
    if name != "dask":
        with parallel_config(name, n_jobs=jobs):
            yield
        return
    from dask.distributed import Client

    client = Client(scheduler) if scheduler else Client(n_workers=jobs, threads_per_worker=1)
    with client, parallel_config("dask", n_jobs=jobs):
        yield


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the machines and the parts of a file of results; of repeated parts, the last."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    last: dict[tuple[str, int, str], dict[str, Any]] = {}
    for line in lines:
        if "table" in line:
            line["method"] = RENAMED.get(line["method"], line["method"])
            last[line["table"], line["split"], line["method"]] = line
    return [line for line in lines if "table" not in line], list(last.values())


def machine() -> dict[str, Any]:
    """Return processor, cores and versions that the numbers depend on, with a short digest as their name."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:
        names = []
    processor = names[0].partition(": ")[2] if names else platform.machine()
    told = {"processor": processor, "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}
    return {"machine": hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8], **told}


def work(todo: Sequence[Any], data: Path, out: Path, limit: int) -> None:
    """Run parts and write each as soon as it is done."""
    here = machine()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        if here not in read(out)[0]:
            file.write(json.dumps(here) + "\n")
        for line in call_in_parallel(delayed(run)(*one, data, limit) for one in todo):
            if line is not None:
                file.write(json.dumps({**line, "machine": here["machine"]}) + "\n")
                file.flush()
                told = line.get("failed") or {
                    k: v for k, v in line["scores"].items() if k in ("log_likelihood", "rmse")
                }
                print(line["table"], line["split"], line["method"], told, line.get("processor_seconds"), flush=True)


def expand_groups(asked: str, groups: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the names of a comma-separated list, with groups expanded."""
    return [name for one in asked.split(",") for name in groups.get(one, (one,))]


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default="uci,classes", help="uci, classes, or names")
    parser.add_argument("--splits", default="0")
    parser.add_argument("--methods", default="ours", help="ours, others, or names")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of JSON lines")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", default="loky", choices=("loky", "dask"))
    parser.add_argument("--scheduler", default="", help="address of a Dask scheduler")
    parser.add_argument("--limit", type=int, default=1800, help="limit in CPU seconds for one part")
    parser.add_argument("--summary", action="store_true", help="write results/families.md and the picture of the costs")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        resource.setrlimit(resource.RLIMIT_CPU, (args.limit, args.limit + 5))
        table, split, method = args.part
        print(json.dumps(part(table, int(split), method, args.data)))
    elif args.summary:
        from family_summary import write

        write(args.out)
    else:
        tables = expand_groups(args.tables, {"uci": UCI, "classes": CLASSES})
        methods = expand_groups(args.methods, {"ours": OURS, "others": OTHERS})
        todo = parts(tables, [int(split) for split in args.splits.split(",")], methods, read(args.out)[1])
        with backend(args.backend, args.jobs, args.scheduler):
            work(todo, args.data, args.out, args.limit)


if __name__ == "__main__":
    main()
