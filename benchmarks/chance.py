"""Expected calibration error due to chance: that of ``depth``, and that of labels drawn from its predictions.

    python benchmarks/chance.py --data FOLDER --tables german_credit,spambase,magic_telescope --splits 0,1

A correct model has calibration error 0, but its estimate from a few hundred rows is positive, because the observed
frequencies in 15 bins differ from the predicted ones by chance. For each split, 400 sets of labels are drawn from the
predictions of ``depth`` with default options, and scored like the true labels.
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
    """Print the calibration errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default="german_credit,spambase,magic_telescope")
    parser.add_argument("--splits", default="0,1")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'table':<18}{'split':>6}{'rows':>7}{'error':>8}{'by chance':>11}{'95 % below':>12}")
    for table in args.tables.split(","):
        for split in map(int, args.splits.split(",")):
            X, y, X_test, y_test = read(args.data, table, split)
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
