"""Missing cells filled in by infinite graphs, and by scikit-learn's imputers.

    python benchmarks/imputation.py [--tables iris,wine] [--splits 0,1,2]

A density is fitted to two thirds of the rows. In each of the other rows one or two cells are hidden at random.
scikit-learn's imputers are fitted to all these rows, since an iterative imputer learns nothing from rows without holes.
Scores are the root mean square error of the hidden cells in standard deviations of their column, the coverage of
central 90 % intervals of 400 draws (40 of ``sample_posterior`` of the iterative imputer), and the mean log density of
the hidden cells given the known ones, beside that of a normal law with the moments of the training rows. The last
scores are the shares of the other rows with p-values up to 0.1 and 0.5, by draws of the density itself.
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
from scipy import stats
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from fathomless import IndianChefsDensity

TABLES = {
    "iris": lambda: load_iris().data,
    "wine": lambda: load_wine().data[:, [0, 1, 3, 6, 9, 12]],
    "diabetes": lambda: load_diabetes(scaled=False).data[:, [0, 2, 3, 4, 6, 8]],
}
DRAWS = 400


def hide(rows: Any, generator: np.random.Generator) -> Any:
    """Return rows with one or two cells hidden in each."""
    holes = rows.copy()
    for row in holes:
        row[generator.choice(len(row), generator.integers(1, 3), replace=False)] = np.nan
    return holes


def normal_log_density(train: Any, rows: Any, holes: Any) -> float:
    """Return the mean log density of hidden cells given the known ones, by a normal law."""
    mean, covariance = train.mean(0), np.cov(train.T)
    total = []
    for row, hole in zip(rows, holes, strict=True):
        known, hidden = ~np.isnan(hole), np.isnan(hole)
        gain = covariance[np.ix_(hidden, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
        centre = mean[hidden] + gain @ (row[known] - mean[known])
        spread = covariance[np.ix_(hidden, hidden)] - gain @ covariance[np.ix_(known, hidden)]
        total.append(stats.multivariate_normal(centre, spread).logpdf(row[hidden]))
    return float(np.mean(total))


def graph_log_density(density: IndianChefsDensity, rows: Any, holes: Any) -> float:
    """Return the mean log density of hidden cells given the known ones: one after the other."""
    total = np.zeros(len(rows))
    known = holes.copy()
    for column in range(rows.shape[1]):
        hidden = np.isnan(known[:, column])
        if hidden.any():
            total[hidden] += density.conditional(column, known[hidden]).log_prob(rows[hidden, column])
            known[hidden, column] = rows[hidden, column]
    return float(total.mean())


def run(name: str, split: int) -> None:
    """Fit and score one split of one table."""
    table = np.asarray(TABLES[name](), dtype=float)
    generator = np.random.default_rng(split)
    order = generator.permutation(len(table))
    train, rows = table[order[: 2 * len(table) // 3]], table[order[2 * len(table) // 3 :]]
    rows = rows[((rows >= train.min(0)) & (rows <= train.max(0))).all(1)]  # known cells are inside the support
    holes = hide(rows, generator)
    hidden, scale, both = np.isnan(holes), train.std(0), np.vstack([train, holes])

    def error(filled: Any) -> float:
        return float(np.sqrt(np.mean((((filled - rows) / scale)[hidden]) ** 2)))

    def coverage(drawn: Any) -> float:
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        return float(((low <= rows) & (rows <= high))[hidden].mean())

    began = time.process_time()
    density = IndianChefsDensity(random_state=split).fit(train)
    seconds = time.process_time() - began
    p = density.p_values(rows)
    print(
        f"{name} {split}: {len(train)} + {len(rows)} rows; graph: RMSE {error(density.impute(holes)):.3f}, coverage "
        f"{coverage(density.impute(holes, DRAWS)):.3f}, log density {graph_log_density(density, rows, holes):.3f}; "
        f"p-values {np.mean(p <= 0.1):.3f}, {np.mean(p <= 0.5):.3f}; {seconds:.0f} s",
        flush=True,
    )
    repeated = np.stack(
        [IterativeImputer(sample_posterior=True, random_state=k).fit(both).transform(holes) for k in range(DRAWS // 10)]
    )
    others = {"mean": SimpleImputer(), "5 neighbours": KNNImputer(), "iterative": IterativeImputer(random_state=0)}
    print(
        f"{name} {split}: "
        + ", ".join(f"{key} RMSE {error(imputer.fit(both).transform(holes)):.3f}" for key, imputer in others.items())
        + f", coverage {coverage(repeated):.3f}; normal law: log density {normal_log_density(train, rows, holes):.3f}",
        flush=True,
    )


def main() -> None:
    """Run every split of every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", default="0,1,2")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.tables.split(","):
        for split in map(int, given.splits.split(",")):
            run(name, split)


if __name__ == "__main__":
    main()
