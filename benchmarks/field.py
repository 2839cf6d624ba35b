"""The field: the default and other libraries with default options on public tables, by five splits.

    python benchmarks/field.py run                          compute the missing results
    python benchmarks/field.py run --tables pima,airfoil --methods constant,depth --splits 0-4 --minutes 30
    python benchmarks/field.py report                       print the summary and write results/field.txt

``public_tables`` has the tables and the splits, ``field_rivals`` the methods. Every fit has at most 10,000 training
rows, one thread, its own process, and a limit of processor time. One JSON line is appended to the file of results when
a fit is finished or has failed, so that the same command resumes an interrupted run. All tables are run with the cheap
methods, then with slower ones, and then with the next split; small tables are first.

Scores of numbers are in units of the standard deviation of the training targets, so that tables can be compared.
``log_likelihood`` is the mean over test rows, in nats: of the log density of the standardised target; or of the log
probability of the value, if the training targets are on a lattice with a step above a twentieth of a standard
deviation, and for rows at atoms. If there is a lattice, all laws are rounded to it; the density is then the probability
divided by the step. If the training targets have atoms, methods without atoms get their shares of the training rows.
These are the laws of :func:`fathomless.app.compare.compare`. The other scores are those of the rounded laws too if the
step is above a twentieth, and otherwise of the laws themselves. ``coverage_90`` is that of central 90 % intervals,
``thirds`` the same for rows in thirds by the width of the interval, or null if the widths are equal.

Of classes, ``log_likelihood`` is minus the log loss. ``ece_chance`` is the mean calibration error of labels that are
drawn from the predictions, and ``ece_95`` its 95th percentile.

``seconds`` are those of the processor for fit and predictions, without imports of this library, and ``mib`` is the
peak memory of the process, with all imports.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from field_rivals import METHODS, is_installed, left_out, make, use_one_thread
from public_tables import TABLES, TRAIN_ROWS, PackageMissingError, Split, Table, load, splits

from fathomless.app.comparison import comparable_law
from fathomless.data.targets import fit_target
from fathomless.estimators.number_predictions import summarize_numbers
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.metrics import expected_calibration_error, interval_score

Array = npt.NDArray[Any]
Record = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "field.jsonl"
SPLITS = 5
LIMIT = 1200  #: seconds of processor time of a fit and its predictions
COARSE = 0.05  #: step of a lattice in standard deviations above which all scores are those of rounded laws
DRAWS = 200  #: sets of labels for the calibration error by chance
_EQUAL = 1e-9  # relative difference below which widths are equal
_SLOWER = 3, 60  # wall-clock seconds after which a process is ended: per second of processor time, and in addition


@dataclass(frozen=True)
class Task:
    """One fit: a method on a split of a table."""

    table: str
    split: int
    method: str

    @property
    def key(self) -> tuple[str, int, str]:
        """Table, split and method."""
        return self.table, self.split, self.method


# ------------------------------------------------------------------------------------------------------------ scores


def score_numbers(p: NumberPredictive, y_train: Array, y: Array) -> dict[str, Any]:
    """Return the scores of a prediction of numbers."""
    with warnings.catch_warnings(action="ignore"):
        target = fit_target(y_train, hurdle=True)
    unit = float(y_train.std()) or 1.0
    step, atoms = target.lattice[0].step, target.hurdle
    number = target.number_atoms(target.encode(y_train))
    shares = np.bincount(number, minlength=len(atoms) + 1) / len(number)
    rounded = comparable_law(p, target, atoms, shares)
    law = rounded if step > COARSE * unit else comparable_law(p, None, atoms, shares)
    rows = summarize_numbers(law, y[:, None], torch.Generator().manual_seed(0))
    log_p = rounded.log_prob(y).numpy()
    if step <= COARSE * unit:  # the density of the standardised target
        log_p = log_p + math.log(unit / (step or 1.0)) * ~np.isin(y, atoms)
    inside = (rows.distance <= 0.45)[:, 0]
    width = (rows.high - rows.low)[:, 0]
    thirds = None
    if np.ptp(width) > _EQUAL * float(width.max()):
        order = np.argsort(width, kind="stable")
        thirds = [float(inside[part].mean()) for part in np.array_split(order, 3)]
    return {
        "log_likelihood": float(log_p.mean()),
        "crps": float(rows.crps.mean()) / unit,
        "interval_score_90": float(interval_score(y[:, None], rows.low, rows.high, 0.9).mean()) / unit,
        "rmse": float(np.sqrt(np.mean((rows.mean[:, 0] - y) ** 2))) / unit,
        "coverage_90": float(inside.mean()),
        "thirds": thirds,
        "width_90": float(width.mean()) / unit,
        "worst_row": float(log_p.min()),
        "median_row": float(np.median(log_p)),
        "step": step / unit,
        "atoms": list(atoms),
    }


def score_classes(p: ClassPredictive, labels: Sequence[Any], y: Array) -> dict[str, Any]:
    """Return the scores of a prediction of classes."""
    names = np.asarray(labels)
    probs = p.probs.numpy()
    code = np.searchsorted(names, y)
    log_p = p.log_prob(y).numpy()
    ends = probs.cumsum(1)[:, :-1]
    rng = np.random.default_rng(0)
    chance = [
        expected_calibration_error((rng.random((len(probs), 1)) > ends).sum(1), probs)  # one label for each row
        for _ in range(DRAWS)
    ]
    return {
        "log_likelihood": float(log_p.mean()),
        "accuracy": float(np.mean(probs.argmax(1) == code)),
        "brier": float(np.mean(np.square(probs - np.eye(len(names))[code]).sum(1))),
        "ece": expected_calibration_error(code, probs),
        "ece_chance": float(np.mean(chance)),
        "ece_95": float(np.quantile(chance, 0.95)),
        "worst_row": float(log_p.min()),
    }


def fit_and_score(table: Table, split: Split, method: str) -> Record:
    """Fit a method to the training rows, and score it on the test rows."""
    task = "classification" if table.declaration.kind == "classification" else "regression"
    known, new = (table.X.iloc[rows].reset_index(drop=True) for rows in (split.train, split.test))
    y_train, y = table.y[split.train], table.y[split.test]
    start = time.process_time()
    fitted = make(method, task, int(split.name)).fit(known, y_train)
    middle = time.process_time()
    p = fitted.predict_dist(new)
    seconds = [middle - start, time.process_time() - middle]
    scores = score_classes(p, fitted.target_.labels, y) if task == "classification" else score_numbers(p, y_train, y)
    return {"scores": scores, "fit_seconds": seconds[0], "predict_seconds": seconds[1]}


# --------------------------------------------------------------------------------------------------------- processes


def run_apart(function: Callable[[], Record], limit: int) -> Record:
    """Call a function in a process with a limit of processor time; return its record, or its error message."""
    context = multiprocessing.get_context("fork")  # imports of this process are not repeated
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, limit, sender))
    with warnings.catch_warnings(action="ignore"):  # of threads, from Python 3.12
        process.start()
    sender.close()
    found: Record = {}
    longest = _SLOWER[0] * limit + _SLOWER[1]
    if receiver.poll(longest):
        try:
            found = receiver.recv()
        except EOFError:
            found = {}
    else:
        process.kill()
        found = {"error": f"time limit: {longest} s of wall-clock time"}
    process.join()
    if found:
        return found
    if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        over = process.exitcode == -signal.SIGXCPU
        return {"error": f"time limit: {limit} s of processor time" if over else "killed, perhaps for its memory"}
    return {"error": f"process ended with the exit status {process.exitcode}"}


def _call(function: Callable[[], Record], limit: int, sender: Any) -> None:
    """Call a function and send its record; in the separate process."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 60))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        found = function()
    except (Exception, RecursionError) as error:  # one failed method does not end the run
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    sender.send(found | {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0})


# ------------------------------------------------------------------------------------------------------------ records


def read(path: Path) -> list[Record]:
    """Return the records of a file; the last one of repeated fits, and no interrupted line."""
    found: dict[tuple[str, int, str], Record] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[record["table"], record["split"], record["method"]] = record
    return list(found.values())


def append(path: Path, record: Record) -> None:
    """Append a record to a file; a line that an interrupted run left is ended before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    broken = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if broken else "") + json.dumps(_round(record)) + "\n")


def _round(value: Any) -> Any:
    """Return a value with six digits; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: _round(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_round(own) for own in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


@cache
def versions(method: str) -> dict[str, str]:
    """Return the versions that the results of a method depend on, and the commit of this library."""
    found = {}
    for package in dict.fromkeys(("fathomless", "torch", "scikit-learn", "numpy", METHODS[method].package)):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    root = Path(__file__).parent.parent
    line = ["git", "-C", str(root), "log", "-1", "--format=%h", "--", "src"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return found | ({"commit": done.stdout.strip()} if done.returncode == 0 else {})


def machine() -> str:
    """Return the processor, the number of cores and the version of Python."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


# ---------------------------------------------------------------------------------------------------------------- run


def plan(tables: Iterable[str], methods: Iterable[str], numbers: Iterable[int]) -> list[Task]:
    """Return the fits in the order in which they are run.

    Examples
    --------
    >>> [task.key for task in plan(["airfoil"], ["bde", "depth"], [1, 0])][:3]
    [('airfoil', 0, 'depth'), ('airfoil', 0, 'bde'), ('airfoil', 1, 'depth')]
    """
    order = list(METHODS)
    every = [Task(table, split, method) for table in tables for split in numbers for method in methods]
    return sorted(
        every,
        key=lambda task: (
            task.split,
            METHODS[task.method].stage,
            size(task.table),
            task.table,
            order.index(task.method),
        ),
    )


@cache
def size(name: str) -> int:
    """Return the number of values of the training rows, times the number of classes if the package is installed."""
    declaration = TABLES[name]
    values = min(declaration.shape[0], TRAIN_ROWS) * declaration.shape[1]
    if declaration.kind != "classification":
        return values
    try:
        return values * len(np.unique(load(name).y))
    except PackageMissingError:
        return values


@lru_cache(maxsize=1)
def prepare(name: str) -> tuple[Table, list[Split]]:
    """Return a table and its splits."""
    table = load(name)
    return table, splits(table, SPLITS)


def run(tasks: Sequence[Task], out: Path, limit: int = LIMIT, minutes: float = math.inf) -> Iterator[Record]:
    """Run the fits that are not in a file of results; append and yield each record as soon as it is done."""
    done = {(r["table"], r["split"], r["method"]): r["digest"] for r in read(out)}
    end = time.monotonic() + 60.0 * minutes
    absent: set[str] = set()
    for task in tasks:
        if time.monotonic() > end:
            return
        if task.table in absent:
            continue
        try:
            table, parts = prepare(task.table)
        except PackageMissingError as error:
            print(f"left out: {error}", flush=True)
            absent.add(task.table)
            continue
        split = parts[task.split]
        if done.get(task.key) == split.digest:
            continue
        kind = "classification" if table.declaration.kind == "classification" else "regression"
        record: Record = dict(zip(("table", "split", "method"), task.key, strict=True))
        record |= {"digest": split.digest, "rows": len(split.train), "columns": table.X.shape[1]}
        record |= {"test_rows": len(split.test), "versions": versions(task.method), "machine": machine()}
        if reason := left_out(task.method, kind, len(split.train), table.X.shape[1]):
            record["left_out"] = reason
        else:
            record |= run_apart(partial(fit_and_score, table, split, task.method), limit)
        append(out, record)
        yield record


def describe(record: Record) -> str:
    """Return one line on a record."""
    text = f"{record['table']} {record['split']} {record['method']}: "
    if "scores" not in record:
        return text + str(record.get("left_out") or record["error"])
    names = ("log_likelihood", "crps", "rmse", "coverage_90", "accuracy", "ece", "ece_95")
    scores = {name: record["scores"][name] for name in names if name in record["scores"]}
    told = ", ".join(f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in scores.items())
    return f"{text}{told}; {record['fit_seconds'] + record['predict_seconds']:.1f} s, {record['mib']:.0f} MiB"


def span(text: str) -> list[int]:
    """Return the numbers of splits: "0-2,4" is 0, 1, 2 and 4."""
    parts = [part.partition("-") for part in text.split(",")]
    return [number for low, _, high in parts for number in range(int(low), int(high or low) + 1)]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--tables", default="", help="names of tables with commas; without it all")
    parser.add_argument("--methods", default="", help=f"{', '.join(METHODS)}; without it all that are installed")
    parser.add_argument("--splits", default=f"0-{SPLITS - 1}", help="numbers of splits")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time after which no fit is started")
    parser.add_argument("--limit", type=int, default=LIMIT, help="limit of a fit in seconds of processor time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results")
    args = parser.parse_args()
    tables = args.tables.split(",") if args.tables else list(TABLES)
    methods = args.methods.split(",") if args.methods else list(METHODS)
    for names, known in ((tables, [*TABLES]), (methods, [*METHODS])):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"{unknown[0]!r} was given; known are {', '.join(known)}")
    if args.command == "report":
        from field_report import write

        write(read(args.out), args.out.with_suffix(".txt"))
        return 0
    torch.set_num_threads(1)
    for name in [name for name in methods if not is_installed(name)]:
        print(f"left out: {name} needs {METHODS[name].package}: pip install {METHODS[name].package}", flush=True)
        methods.remove(name)
    for record in run(plan(tables, methods, span(args.splits)), args.out, args.limit, args.minutes):
        print(describe(record), flush=True)
    return 0


if __name__ == "__main__":
    use_one_thread()
    sys.exit(main())
