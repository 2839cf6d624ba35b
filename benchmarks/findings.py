"""How often a fit is told that the width of its intervals depends on the row, on tables of benchmarks/recalibration.py.

For each kind of table and seed there are two fits, without and with the recalibration. Their out-of-fold rows are
evaluated, and the fits are counted whose findings include "Row-dependent width". The kinds "even" and "friedman" have
noise of one scale, where each such finding is a false alarm; that of "uneven" depends on a column.

    python benchmarks/findings.py --kinds even uneven --rows 300 --seeds 10
"""

import argparse
import platform
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from recalibration import KINDS, make

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.app.diagnose import diagnose
from fathomless.estimators.evaluation import evaluate

TITLE = "Row-dependent width on out-of-fold rows"


def is_found(X: Any, y: Any, seed: int, recalibrate: bool) -> tuple[bool, float]:
    """Fit, and return True if the finding is among those of the out-of-fold rows, and the coverage of these rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = UnboundedDepthRegressor(random_state=seed, recalibrate=recalibrate).fit(X, y)
        fold = estimator.fold_
        assert fold is not None
        unseen = np.flatnonzero((fold >= 0).all(0))
        found = evaluate(estimator, X[unseen], y[unseen], name="out-of-fold rows", fold=fold[:, unseen])
        titles = [finding.title for finding in diagnose(estimator, [found], rows=len(y))]
    return TITLE in titles, found.scores["coverage_90"].value


def main() -> None:
    """Print the number of findings for each kind of table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["even", "uneven"], choices=KINDS)
    parser.add_argument("--rows", nargs="+", type=int, default=[300])
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, {platform.machine()}, 1 thread, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    for rows in options.rows:
        for kind in options.kinds:
            tables = [make(kind, rows, seed)[:2] for seed in range(options.seeds)]
            for recalibrate in (False, True):
                results = [is_found(X, y, seed, recalibrate) for seed, (X, y) in enumerate(tables)]
                count, coverage = sum(found for found, _ in results), np.mean([share for _, share in results])
                print(
                    f"{kind} {rows}, {'with' if recalibrate else 'without'} recalibration: found in {count} of "
                    f"{len(results)} fits; out-of-fold coverage {coverage:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
