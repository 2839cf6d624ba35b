"""Time of the default fit and of its parts, compared with one network and with the former default.

    python benchmarks/times.py [--rows 100,300,1000,3000,10000,30000,100000] [--truths product,teacher4]

Each fit is a separate process with one thread. Seconds are wall-clock seconds of the fit, after all imports except
those of torch's first optimiser. ``steps`` and ``looks`` are the shares of training steps and of evaluations on
held-out rows; ``predict`` is the time for 10,000 rows; the peak memory is that of the whole process. On noisy rows of a
product of two columns the search over depths ends early; on rows of a residual network of four layers with little noise
it does not.
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
    """Fit one table; return times, memory and score."""
    import torch

    sys.path.append(str(Path(__file__).parents[1]))  # the experiments of this clone
    from experiments.structure import table
    from fathomless import UnboundedDepthRegressor
    from fathomless.inference.variational import svi

    torch.set_num_threads(1)
    epoch, look, score = (function.__name__ for function in (svi._epoch, svi._evaluate_search, svi.score))
    spent = dict.fromkeys((epoch, look, score), 0.0)

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
        "steps": spent[epoch] / seconds,
        "looks": (spent[look] + spent[score]) / seconds,
        "epochs": estimator.n_iter_,
        "predict": predict,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "log_likelihood": float(predicted.log_prob(y_test).mean()),
    }


def main() -> None:
    """Fit every cell in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="100,300,1000,3000,10000,30000,100000")
    parser.add_argument("--truths", default="product,teacher4")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cell", nargs=3)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(cell(args.cell[0], int(args.cell[1]), args.cell[2])))
        return
    for truth in args.truths.split(","):
        for rows in args.rows.split(","):
            for kind in args.kinds.split(","):
                command = [sys.executable, __file__, "--cell", truth, rows, kind]
                found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
                told = (f"{k} {v:.3g}" if k != "log_likelihood" else f"log-lik. {v:.3f}" for k, v in found.items())
                print(f"{truth:9} {int(rows):7,} {kind:8}", *told, flush=True)


if __name__ == "__main__":
    main()
