"""Fit and predict every family in several threads: results are bit-identical to a single thread.

python tests/threads.py --threads 8
"""

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from altered import fits
from battery.cases import predicted


def all_bytes(estimator: Any, X: Any) -> bytes:
    """Return the predictions of an estimator for rows, and its tensors."""
    said = [np.asarray(one).tobytes() for one in predicted(estimator, X)]
    state = [value.numpy().tobytes() for _, value in sorted(estimator.model_.state_dict().items())]
    return b"|".join([*said, *state])


def differing(fit: Callable[[], tuple[Any, Any]], threads: int) -> tuple[int, int]:
    """Return the numbers of fits and of predictions in several threads that differ from those in a single thread."""
    estimator, X = fit()
    expected, said = all_bytes(estimator, X), all_bytes(estimator, X)
    with ThreadPoolExecutor(threads) as pool:
        fitted = list(pool.map(lambda _: all_bytes(*fit()), range(threads)))
        shared = list(pool.map(lambda _: all_bytes(estimator, X), range(threads)))
    return sum(one != expected for one in fitted), sum(one != said for one in shared)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--only", default="", help="models whose names contain this")
    given = parser.parse_args()
    sys.setswitchinterval(1e-5)
    counts = collections.Counter[str]()
    for name, fit in fits().items():
        if given.only not in name:
            continue
        begun = time.perf_counter()
        try:
            of_fits, of_predictions = differing(fit, given.threads)
        except Exception as error:
            counts["failed"] += 1
            print(f"{name}: wrong: {type(error).__name__}: {error}", flush=True)
            continue
        counts.update(models=1, fits=given.threads, predictions=given.threads)
        counts.update(fits_differ=of_fits, predictions_differ=of_predictions)
        told = f"{of_fits} fits and {of_predictions} predictions of {given.threads} differ"
        print(f"{name}: {told}, {time.perf_counter() - begun:.1f} s", flush=True)
    print(f"threads: {dict(counts)}")
    sys.exit(counts["failed"] + counts["fits_differ"] + counts["predictions_differ"] > 0)
