"""Choice between Gaussian and Student's t noise: share of tables with Student's t, and what the choice gains.

    python benchmarks/tails.py            about two minutes

Out-of-fold predictions are 0 and rows are draws of a law, so that only the choice differs. The gain is the mean log
density of 20,000 new rows under the chosen noise, less that under Gaussian noise, averaged over tables with its
standard error. "always" is the gain of Student's t in all tables.
"""

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fathomless.inference.out_of_fold import noise
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.posterior.likelihoods import Gaussian, Likelihood, StudentT

Draw = Callable[[np.random.Generator, int], Any]
FAR = 100.0
LAWS: dict[str, Draw] = {
    "normal": lambda g, n: g.standard_normal(n),
    "uniform": lambda g, n: g.uniform(-1.7, 1.7, n),
    "normal, one row at 100": lambda g, n: np.append(g.standard_normal(n - 1), FAR),
    "normal, 5 % eight times": lambda g, n: g.standard_normal(n) * np.where(g.uniform(size=n) < 0.05, 8.0, 1.0),
    "Laplace": lambda g, n: g.laplace(size=n),
    "Student, 8 degrees": lambda g, n: g.standard_t(8, n),
    "Student, 4 degrees": lambda g, n: g.standard_t(4, n),
    "Student, 3 degrees": lambda g, n: g.standard_t(3, n),
    "Student, 4, one row at 1e6": lambda g, n: np.append(g.standard_t(4, n - 1), 1e6),
}
OUTLIER = {"normal, one row at 100": "normal", "Student, 4, one row at 1e6": "Student, 4 degrees"}  # new rows have none


def predict_zero(y: Any) -> OutOfFold:
    """Return out-of-fold predictions of a network that predicts 0."""
    one = torch.zeros(1, dtype=torch.float64)
    rows = torch.arange(len(y))
    f = torch.zeros(1, len(y), 1, dtype=torch.float64)
    return OutOfFold(f, one, torch.zeros(1, dtype=torch.int64), torch.from_numpy(y)[:, None], None, rows)


@torch.no_grad()
def mean_log_density(rows: OutOfFold, likelihood: Likelihood) -> float:
    """Return the mean log density of rows."""
    return float(noise.mixture_log_density(rows, likelihood).mean())


def main() -> None:
    """Print shares and gains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {time.strftime('%F')}")
    print(f"seeds 0 to {args.tables - 1}; nats per row")
    print(f"{'noise':<28}{'rows':>6}{'share':>8}{'gain of the choice':>22}{'always':>22}")
    start = Gaussian(initial_noise=0.6).double()
    for name, draw in LAWS.items():
        new = predict_zero(LAWS[OUTLIER.get(name, name)](np.random.default_rng(12345), 20_000))
        for rows in (40, 100, 300, 1000):
            found = []
            for seed in range(args.tables):
                one = predict_zero(draw(np.random.default_rng([seed, rows]), rows))
                chosen = noise.choose_noise(one, start)
                plain = mean_log_density(new, noise.fit_noise(one, start))
                heavy = mean_log_density(new, noise.fit_noise(one, noise.to_student_t(start)))
                found.append((isinstance(chosen, StudentT), mean_log_density(new, chosen) - plain, heavy - plain))
            share, gain, always = np.mean(found, 0)
            _, error, always_error = np.std(np.array(found, dtype=float), 0, ddof=1) / args.tables**0.5
            columns = f"{f'{gain:+.4f} ± {error:.4f}':>22}{f'{always:+.4f} ± {always_error:.4f}':>22}"
            print(f"{name:<28}{rows:>6}{share:>8.2f}{columns}", flush=True)


if __name__ == "__main__":
    main()
