"""Share of tables for which Student's t noise is chosen, with and without a limit on the influence of one row.

    python benchmarks/tails.py            about two minutes

The noise is normal or Student's t, in some cases with one outlier, in 60, 300 and 2,000 rows.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fathomless.inference.out_of_fold import noise
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.posterior.likelihoods import Gaussian, StudentT

Draw = Callable[[np.random.Generator, int], Any]
FAR = 100.0
LAWS: dict[str, Draw] = {
    "normal": lambda g, n: g.standard_normal(n),
    "normal, one row at 100": lambda g, n: np.append(g.standard_normal(n - 1), FAR),
    "Student, 8 degrees": lambda g, n: g.standard_t(8, n),
    "Student, 4 degrees": lambda g, n: g.standard_t(4, n),
    "Student, 4, one row at 100": lambda g, n: np.append(g.standard_t(4, n - 1), FAR),
    "Student, 4, one row at 1e6": lambda g, n: np.append(g.standard_t(4, n - 1), 1e6),
}


def predict_zero(y: Any) -> OutOfFold:
    """Return out-of-fold predictions of a network that predicts 0."""
    one = torch.zeros(1, dtype=torch.float64)
    rows = torch.arange(len(y))
    f = torch.zeros(1, len(y), 1, dtype=torch.float64)
    return OutOfFold(f, one, torch.zeros(1, dtype=torch.int64), torch.from_numpy(y)[:, None], None, rows)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bound = noise._MOST_OF_A_ROW
    print(f"share of {args.tables} tables for which Student's t noise is chosen, and its standard error")
    print(f"{'noise':<28}{'rows':>6}{'no limit':>16}{f'{bound:g} nats per row':>16}")
    for name, draw in LAWS.items():
        for rows in (60, 300, 2000):
            cells = ""
            for most in (math.inf, bound):
                noise._MOST_OF_A_ROW = most
                tables = [predict_zero(draw(np.random.default_rng(seed), rows)) for seed in range(args.tables)]
                share = float(
                    np.mean([isinstance(noise.choose_noise(one, Gaussian().double()), StudentT) for one in tables])
                )
                cells += f"{f'{share:.2f} ± {math.sqrt(share * (1 - share) / args.tables):.2f}':>16}"
            print(f"{name:<28}{rows:>6}{cells}", flush=True)


if __name__ == "__main__":
    main()
