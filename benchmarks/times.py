"""How long the default takes, and where the time goes, beside one network and what was the default before.

    python benchmarks/times.py [--rows 100,300,1000,3000,10000,30000,100000] [--truths product,teacher4]

Each fit is a process of its own with one thread. Seconds are of the wall clock, for the fit alone and after everything
is imported but what torch loads at its first optimiser; ``steps`` and ``looks`` are the shares of training steps and of
scoring unseen rows; ``predict`` is for 10,000 rows; the peak is of the whole process. Noisy rows of a product of two
columns end exploring early, those of a residual network of four layers with little noise never do.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {"default": {}, "one": {"cv": 1}, "before": {"structure_from": "elbo"}}


def cell(truth: str, rows: int, kind: str) -> dict[str, float]:
    """Fit one table."""
    import torch

    sys.path.append(str(Path(__file__).parents[1]))  # the experiments of this clone
    from experiments.structure import table
    from fathomless import UnboundedDepthRegressor
    from fathomless.inference.variational import svi

    torch.set_num_threads(1)
    spent = {"_epoch": 0.0, "_look": 0.0, "score": 0.0}

    def timed(name: str) -> Callable[..., Any]:
        function = getattr(svi, name)

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    for name in spent:
        setattr(svi, name, timed(name))
    (X, y), (X_test, y_test) = table(truth, rows, 0), table(truth, 10_000, 0)
    estimator = UnboundedDepthRegressor(random_state=0, **KINDS[kind])
    start = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        estimator.fit(X, y)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    predicted = estimator.predict_dist(X_test)
    predict = time.perf_counter() - start
    return {
        "seconds": seconds,
        "steps": spent["_epoch"] / seconds,
        "looks": (spent["_look"] + spent["score"]) / seconds,
        "epochs": estimator.n_iter_,
        "predict": predict,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "log_likelihood": float(predicted.log_prob(y_test).mean()),
    }


def main() -> None:
    """Fit every cell in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="100,300,1000,3000,10000,30000,100000")
    parser.add_argument("--truths", default="product,teacher4")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cell", nargs=3)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(cell(asked.cell[0], int(asked.cell[1]), asked.cell[2])))
        return
    for truth in asked.truths.split(","):
        for rows in asked.rows.split(","):
            for kind in asked.kinds.split(","):
                command = [sys.executable, __file__, "--cell", truth, rows, kind]
                found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
                told = (f"{k} {v:.3g}" if k != "log_likelihood" else f"log-lik. {v:.3f}" for k, v in found.items())
                print(f"{truth:9} {int(rows):7,} {kind:8}", *told, flush=True)


if __name__ == "__main__":
    main()
