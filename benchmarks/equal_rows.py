"""Tables with few distinct rows: predicted probabilities compared with counts, and scores with those of new rows.

``python benchmarks/equal_rows.py`` prints four tables. Every estimator has default options.

- Contingency tables of 4, 18 and 100 cells, as rows and as counts: the largest error of a predicted probability,
  compared with that of the observed frequencies. Cells with few rows are shrunk towards their neighbours, so the error
  may be below that of the frequencies.
- Ratings and replicated designs: predicted and true standard deviation.
- Oversampled rows of real numbers: `validation_score_` and the log density of 2,000 new rows, for 1 and 8 copies.
- With ``--data FOLDER``, real tables with five copies of 150 training rows: score and log density of the other rows.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import fathomless
from fathomless.data.datasets import load

Array = npt.NDArray[Any]
FAMILIES = ("UnboundedDepth", "ContinuousDepth", "ProjectedBayes")


def contingency(levels: tuple[int, int], classes: int, rows: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return indicator columns, classes, one row for each cell, and the true class probabilities of the cells."""
    rng = np.random.default_rng([seed, rows, *levels])
    parts = [rng.normal(size=(k, classes)) for k in levels]
    logits = parts[0][:, None] + parts[1] + 0.5 * rng.normal(size=(*levels, classes))  # with an interaction
    share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    place = np.stack([rng.integers(0, k, rows) for k in levels])
    y = np.array([rng.choice(classes, p=share[i, j]) for i, j in place.T])
    every = np.stack(np.meshgrid(*map(np.arange, levels), indexing="ij")).reshape(2, -1)

    def encoded(at: Array) -> Array:
        return np.column_stack([np.eye(k)[own] for k, own in zip(levels, at, strict=True)])

    return encoded(place), y, encoded(every), share.reshape(-1, classes)


def cells(rows: tuple[int, ...], families: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each contingency table and family."""
    for levels, classes in (((2, 2), 2), ((6, 3), 3), ((10, 10), 2)):
        for n in rows:
            X, y, every, truth = contingency(levels, classes, n, 0)
            count = np.array([[((cell == X).all(1) & (y == k)).sum() for k in range(classes)] for cell in every])
            often = count.sum(1)
            with np.errstate(invalid="ignore"):
                counted = np.nanmax(abs(count / often[:, None] - truth))
                error = np.nanmax(np.sqrt(truth * (1.0 - truth) / often[:, None]))
            place = np.argwhere(count > 0)
            for family in families:
                kind = getattr(fathomless, f"{family}Classifier")
                start = time.perf_counter()
                by_rows = kind(random_state=0).fit(X, y)
                seconds = time.perf_counter() - start
                by_counts = kind(random_state=0).fit(
                    every[place[:, 0]], place[:, 1], sample_weight=count[count > 0].astype(float)
                )
                p = by_rows.predict_proba(every)
                apart = abs(p - by_counts.predict_proba(every)).max()
                best = float((truth * np.log(truth)).sum(1) @ (often / n))
                yield (
                    f"{len(every):4d} cells {n:6,d} rows {family:16s} largest error {abs(p - truth).max():.3f} "
                    f"(frequencies {counted:.3f}, their largest standard error {error:.3f}); rows and counts differ by "
                    f"{apart:.1e}; score {by_rows.validation_score_:.3f}, truth {best:.3f}; {seconds:.0f} s"
                )


def designs(families: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for ratings, a replicated design, and a count target, for each family."""

    def ratings(rng: np.random.Generator) -> tuple[Array, Array, Callable[[Array], Array]]:
        x = rng.integers(0, 3, (1500, 1)).astype(float)
        y = np.clip(np.round(3 + 0.5 * (x[:, 0] - 1) + rng.normal(0, 0.7, 1500)), 1, 5)
        each = np.array([y[x[:, 0] == k].std() for k in range(3)])
        return x, y, lambda rows: each[rows[:, 0].astype(int)]

    def replicates(rng: np.random.Generator) -> tuple[Array, Array, Callable[[Array], Array]]:
        x = rng.normal(size=(27, 2))[np.repeat(np.arange(27), 10)]
        return x, np.sin(x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=270), lambda rows: np.full(len(rows), 0.3)

    def counts(rng: np.random.Generator) -> tuple[Array, Array, Callable[[Array], Array]]:
        x = rng.integers(0, 8, (1000, 1)) / 4.0
        return x, rng.poisson(2 + x[:, 0]).astype(float), lambda rows: np.sqrt(2 + rows[:, 0])

    for name, made in (("ratings of 1 to 5", ratings), ("27 points, 10 times each", replicates), ("counts", counts)):
        X, y, deviation = made(np.random.default_rng(2))
        for family in families:
            fitted = getattr(fathomless, f"{family}Regressor")(random_state=0).fit(X, y)
            said = np.sqrt((fitted.predict(X, return_std=True)[1] ** 2).mean())
            truth = np.sqrt((deviation(X) ** 2).mean())
            yield (
                f"{name:26s} {family:16s} standard deviation {said:.3f}, truth {truth:.3f}; "
                f"{fitted.fit_diagnostics_.repeats or 'no equal rows'}"
            )


def copies(families: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for a table of real numbers with one and with eight copies of each row."""
    rng = np.random.default_rng(3)

    def drawn(n: int) -> tuple[Array, Array]:
        x = rng.normal(size=(n, 4))
        return x, np.sin(x[:, 0]) + 0.5 * rng.normal(size=n)

    (X, y), (fresh, target) = drawn(100), drawn(2000)
    for times in (1, 8):
        place = np.repeat(np.arange(100), times)
        for family in families:
            fitted = getattr(fathomless, f"{family}Regressor")(random_state=0).fit(X[place], y[place])
            log_p = np.asarray(fitted.predict_dist(fresh).log_prob(target))
            score = fitted.validation_score_
            yield f"{times} times 100 rows {family:16s} score {score:.3f}, new rows {log_p.mean():.3f}"


def oversampled(families: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each real table with five copies of 150 training rows."""
    for name in ("boston", "concrete", "wine_red", "german_credit", "spambase"):
        data = load(name)
        assert data.y is not None
        order = np.random.default_rng(4).permutation(len(data.y))
        train = np.repeat(order[:150], 5)
        test = order[150:2150]
        take = data.X.iloc.__getitem__ if hasattr(data.X, "iloc") else data.X.__getitem__
        for family in families:
            task = "Classifier" if data.task == "classification" else "Regressor"
            fitted = getattr(fathomless, f"{family}{task}")(random_state=0, missing="impute", unseen="ignore")
            fitted.fit(take(train), data.y[train])
            log_p = np.asarray(fitted.predict_dist(take(test)).log_prob(data.y[test]))
            yield (
                f"{name:14s} {family:16s} score {fitted.validation_score_:.3f}, other rows {log_p.mean():.3f} ± "
                f"{log_p.std() / len(log_p) ** 0.5:.3f}; {fitted.fit_diagnostics_.repeats}"
            )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[200, 1000, 5000])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--data", type=Path, help="folder of the real tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    families = tuple(args.families)
    parts = [cells(tuple(args.rows), families), designs(families), copies(families)]
    if args.data is not None:
        os.environ["FATHOMLESS_DATA"] = str(args.data)
        parts.append(oversampled(families))
    for part in parts:
        for line in part:
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
