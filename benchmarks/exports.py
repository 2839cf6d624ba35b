"""Accuracy and cost of exported modules of every structure, compared with their estimators.

    python benchmarks/exports.py diabetes wine_recognition mixed

Trainings are short, because the cost of an export does not depend on them; networks have their default width. The
output is the largest difference to the estimator (of means and standard deviations in standard deviations of the
target, of probabilities, and of quantiles in probability), the size of both in bytes, and the milliseconds of
predictions.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import fathomless
from fathomless.data import datasets
from fathomless.families.registry import estimator_class, families, options
from fathomless.system.errors import FathomlessError

SHORT = {"epochs": 5, "sweeps": 40, "states": 10, "chains": 2, "candidates": 12, "candidate_steps": 50}
SHORT |= {"decoder_steps": 50, "latent_steps": 20, "passes": 8}
LEVELS = (0.05, 0.5, 0.95)


def table(name: str) -> tuple[Any, Any, str]:
    """Return X, y and the task of a table."""
    if name != "mixed":
        data = datasets.load(name)
        return data.X, data.y, "regression" if name == "diabetes" else "classification"
    import pandas as pd

    rng = np.random.default_rng(0)
    rows = 400
    days = pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 9000, rows), unit="D")
    X = pd.DataFrame({"size": rng.normal(size=rows), "street": rng.choice(list("abcdefgh"), rows), "sold": days})
    X["garden"] = rng.random(rows) < 0.3
    X.loc[::9, "size"] = np.nan
    return X, X["size"].fillna(0.5) + X["garden"] + rng.normal(size=rows), "regression"


def estimator_quantiles(estimator: Any, X: Any) -> Any:
    """Return the quantiles of the estimator, the last output of a module."""
    return estimator.predict_dist(X).quantiles(LEVELS)


def milliseconds(call: Callable[..., Any], *given: Any) -> float:
    """Return the minimum of five times of a call, in milliseconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call(*given)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def compare(name: str, task: str, X: Any, y: Any, folder: Path) -> str:
    """Fit one structure, export it, and return the line of the comparison."""
    family = families()[name]
    known = options(family, task)
    given: dict[str, Any] = {option: value for option, value in SHORT.items() if option in known}
    estimator: Any = estimator_class(family.tasks[task])(random_state=0, **given).fit(X, y)
    start = time.perf_counter()
    told = estimator.export(folder / f"{name}.onnx", LEVELS)
    taken = time.perf_counter() - start
    choice = onnxruntime.SessionOptions()
    choice.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(told.path, choice, providers=["CPUExecutionProvider"])
    numbers = estimator.to_numbers(X)
    difference = told.difference
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": numbers}), strict=True))
    dist = estimator.predict_dist(X)
    if task == "regression":
        p = [dist.cdf(found["quantiles"][:, k]).numpy() - level for k, level in enumerate(LEVELS)]
        difference = max(difference, float(np.abs(p).max()))
        own = [milliseconds(estimator_quantiles, estimator, X[:n]) for n in (1, 300)]
    else:
        own = [milliseconds(estimator.predict_proba, X[:n]) for n in (1, 300)]
    theirs = [milliseconds(session.run, None, {"x": numbers[:n]}) for n in (1, 300)]
    saved = estimator.save(folder / f"{name}-saved")
    size = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
    return (
        f"{name:11} {difference:9.1e} {size:11,} {told.bytes:11,} {own[0]:9.1f} {theirs[0]:8.2f} "
        f"{own[1]:10.1f} {theirs[1]:9.1f} {taken:7.1f}"
    )


def main() -> None:
    """Print one line for every structure and table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="TABLE")
    parser.add_argument("--structures", default=",".join(families()), help="names, separated by commas")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, onnxruntime {onnxruntime.__version__},",
        "one thread",
    )
    for name in args.tables:
        X, y, task = table(name)
        print(f"\n{name}: {len(X)} rows, {X.shape[1]} columns, {task}", flush=True)
        print("structure   difference  bytes saved  bytes onnx   1 row ms  onnx ms  300 rows ms  onnx ms  export s")
        for structure in args.structures.split(","):
            if task not in families()[structure].tasks:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    print(compare(structure, task, X, y, Path(folder)), flush=True)
                except FathomlessError as error:
                    print(f"{structure:11} {error}", flush=True)


if __name__ == "__main__":
    main()
