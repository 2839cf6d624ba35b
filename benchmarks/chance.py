"""The calibration error that chance alone gives: of ``depth`` as it comes, and of labels drawn from its predictions.

    python benchmarks/chance.py --data FOLDER --tables german_credit,spambase,magic_telescope --splits 0,1

A model that is right has no calibration error, and its estimate from a few hundred rows has one: 15 shares in 15 bins
are never what was said. 400 times labels are drawn from the predictions of a split, and scored as the true ones are.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from defaults import data as read

from fathomless import UnboundedDepthClassifier
from fathomless.posterior.metrics import expected_calibration_error

DRAWS = 400


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default="german_credit,spambase,magic_telescope")
    parser.add_argument("--splits", default="0,1")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'table':<18}{'split':>6}{'rows':>7}{'error':>8}{'by chance':>11}{'95 % below':>12}")
    for table in asked.tables.split(","):
        for split in map(int, asked.splits.split(",")):
            X, y, X_test, y_test = read(asked.data, table, split)
            fitted = UnboundedDepthClassifier(random_state=split).fit(X, y)
            probs = fitted.predict_proba(X_test)
            found = expected_calibration_error(np.searchsorted(fitted.classes_, y_test), probs)
            uniform = np.random.default_rng(0).random((DRAWS, len(probs), 1))
            drawn = (uniform > probs.cumsum(1)[:, :-1]).sum(2)  # (DRAWS, rows)
            chance = [expected_calibration_error(labels, probs) for labels in drawn]
            told = f"{found:>8.3f}{np.mean(chance):>11.3f}{np.quantile(chance, 0.95):>12.3f}"
            print(f"{table:<18}{split:>6}{len(probs):>7}{told}", flush=True)


if __name__ == "__main__":
    main()
