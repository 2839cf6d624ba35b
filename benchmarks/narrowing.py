"""Reduction of the noise for the average of networks: likelihood and coverage of new rows, by its estimate.

    python benchmarks/narrowing.py made                              made tables of 100 to 2,000 rows
    python benchmarks/narrowing.py real --data FOLDER --rows 1000    the nine regressions, and public tables
    python benchmarks/narrowing.py classes --rows 1500               public classifications

One default fit of each table is evaluated with three factors of the noise: 1 ("none"), the factor by mean squares of
errors and of distances between networks ("squares"), and that of the library, by Tyler's scatter ("scatter";
:func:`fathomless.inference.out_of_fold.noise.estimate_disagreement`). Everything else is the same. The columns are the
factors, the mean log-likelihoods, and the coverages of 90 % intervals, of at most 4,000 new rows. Classes have the
factor of the temperature, the log-likelihoods and the mean largest probabilities without and with it, and the accuracy.

Made tables have four standard normal columns, and the target sin(2 x0) + x1 x2 with normal noise. In one of them, a
column without effect has an outlier. Public tables are those of ``public_tables.py``, whose packages must be installed.
"""

import argparse
import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import public_tables
import torch
from torch import Tensor

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.inference.out_of_fold.noise import average_noise_factor
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import NumberPredictive

Floats = npt.NDArray[np.float64]
Parts = tuple[str, Any, Floats, Any, Floats]  # name, training rows and new rows
NEW = 4000
NINE = ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm", "power", "naval", "protein")
KINDS = ("none", "squares", "scatter")


def made(seeds: int) -> Iterator[Parts]:
    """Yield made tables."""
    for rows, noise, outlier in ((100, 0.1, 0), (500, 0.1, 0), (2000, 0.1, 0), (2000, 0.3, 0), (2000, 0.1, 1)):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(rows + NEW, 4))
            y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=rows + NEW)
            X[0, 3] = 30.0 if outlier else X[0, 3]
            name = f"{rows} rows, noise {noise}" + ", outlier" * outlier
            yield name, X[:rows], y[:rows], X[rows:], y[rows:]


def public(classification: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, data frame and target of the installed public tables of a task."""
    for name, declaration in public_tables.TABLES.items():
        if (declaration.kind == "classification") != classification:
            continue
        try:
            table = public_tables.load(name)
        except public_tables.PackageMissingError as error:
            print(f"skipped: {error}")
            continue
        yield name, table.X, table.y


def divide(X: Any, y: Any, rows: int, seeds: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield random parts of a table: at most this number of training rows, and new rows."""
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        cut = min(rows, int(0.8 * len(y)))
        X_train, X_new = (
            part[index] if isinstance(part, np.ndarray) else part.iloc[index].reset_index(drop=True)
            for part, index in ((X, order[:cut]), (X, order[cut : cut + NEW]))
        )
        yield X_train, y[order[:cut]], X_new, y[order[cut : cut + NEW]]


def real(folder: Path | None, rows: int, seeds: int) -> Iterator[Parts]:
    """Yield parts of the nine regressions in a folder, and of public regressions."""
    for name in NINE if folder is not None else ():
        stored = np.load(cast(Path, folder) / "uci_regression" / f"{name}.npz")
        for parts in divide(stored["X"], stored["y"].astype(np.float64).ravel(), rows, seeds):
            yield name, *parts
    for name, X, y in public(classification=False):
        for parts in divide(X, y, rows, seeds):
            yield name, *parts


def classes(rows: int, seeds: int) -> Iterator[Parts]:
    """Yield parts of public classifications; new rows of classes without training rows are left out."""
    for name, X, y in public(classification=True):
        for X_train, y_train, X_new, y_new in divide(X, y, rows, seeds):
            known = np.isin(y_new, y_train)
            yield name, X_train, y_train, X_new[known], y_new[known]


def compare_classes(parts: Iterator[Parts]) -> None:
    """Print the results of classifications."""
    print("table            rows  factor   log-likelihoods   largest probability   accuracy")
    gains = []
    for name, X, y, X_new, y_new in parts:
        fitted = UnboundedDepthClassifier(random_state=0).fit(X, y)
        factor = (fitted.fit_diagnostics_.narrowing or (1.0,))[0]
        likelihood = cast(Any, fitted.likelihood_).widen(1.0 / factor)
        both = [replace(fitted.predictor_, likelihood=likelihood), fitted.predictor_]
        p = [cast(ClassPredictive, predictor.predict_dist(X_new)) for predictor in both]
        log_p = [float(np.asarray(part.log_prob(y_new)).mean()) for part in p]
        largest = [float(np.asarray(part.probs).max(1).mean()) for part in p]
        right = np.mean(fitted.classes_[np.asarray(p[1].probs).argmax(1)] == y_new)
        gains.append(log_p[1] - log_p[0])
        shown = f"{log_p[0]:8.4f} {log_p[1]:8.4f}      {largest[0]:.3f}   {largest[1]:.3f}        {right:.3f}"
        print(f"{name:<15}  {len(y):4d}   {factor:.3f}  {shown}", flush=True)
    error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    better, worse = (sum(sign * gain > 0.0005 for gain in gains) for sign in (1, -1))
    print(
        f"gain {np.mean(gains):+.4f} ± {error:.4f} nats, median {np.median(gains):+.4f}; {better} better and {worse} "
        "worse by more than 0.0005"
    )


def factor_by_squares(f: Tensor, y: Tensor, unseen: Tensor) -> float:
    """Return the factor by mean squares: V is the root of (a - 1) V² + (2 C - a S - D) V + D S - C² = 0.

    S, C and D are means of e², g e and g², with e the error of the network that was not fitted to the row, and g the
    distance between it and the average of the m others; a = 1 + 1/m.
    """
    m = len(f) - 1
    fresh = (unseen * f).sum(0)
    e, g = y - fresh, (~unseen * f).sum(0) / m - fresh
    S, C, D = (float(product.mean()) for product in (e * e, g * e, g * g))
    half = 0.5 * ((1.0 + 1.0 / m) * S + D - 2.0 * C)
    V = (D * S - C * C) / (half + max(0.0, half * half - (D * S - C * C) / m) ** 0.5)
    return float(average_noise_factor(torch.tensor([min(max(V, 0.0), S) / S]), 1, len(f)))


def means_of_networks(p: NumberPredictive, networks: int) -> Tensor:
    """Return the predicted mean of each cross-fitted network, (F, N), averaged over structures."""
    f = p.network_means[..., 0].reshape(networks, -1, len(p.network_means[0]))
    weight = p.log_weight.reshape(networks, -1).softmax(1)
    return torch.einsum("fl,fln->fn", weight, f)


def compare(X: Any, y: Floats, X_new: Any, y_new: Floats) -> dict[str, tuple[float, float, float]]:
    """Return factor, log-likelihood and coverage by the estimate of the factor."""
    fitted = UnboundedDepthRegressor(random_state=0).fit(X, y)
    fold = torch.from_numpy(np.asarray(fitted.fold_))[0]
    networks = int(fold.max()) + 1
    (used,) = fitted.fit_diagnostics_.narrowing
    f = means_of_networks(cast(NumberPredictive, fitted.predict_dist(X)), networks)
    unseen = fold == torch.arange(networks)[:, None]
    factors = {"none": 1.0, "squares": factor_by_squares(f, torch.from_numpy(y), unseen), "scatter": used}
    found = {}
    for kind, factor in factors.items():
        likelihood = copy.deepcopy(cast(Any, fitted.likelihood_))
        likelihood.noise.rescale(torch.tensor([factor / used]))
        p = cast(NumberPredictive, replace(fitted.predictor_, likelihood=likelihood).predict_dist(X_new))
        low, high = (np.asarray(bound) for bound in p.interval(0.9))
        log_p = float(np.asarray(p.log_prob(y_new)).mean())
        found[kind] = (factor, log_p, float(((low <= y_new) & (y_new <= high)).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", choices=("made", "real", "classes"))
    parser.add_argument("--data", type=Path, help="folder with uci_regression")
    parser.add_argument("--rows", type=int, default=1000, help="largest number of training rows of real tables")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.tables == "classes":
        compare_classes(classes(given.rows, given.seeds))
        return
    print(f"{'table':<26} rows   factors: {'  '.join(KINDS)}   log-likelihoods           coverages")
    gains = []
    parts = made(given.seeds) if given.tables == "made" else real(given.data, given.rows, given.seeds)
    for name, X, y, X_new, y_new in parts:
        found = compare(X, y, X_new, y_new)
        factor, log_p, coverage = ([found[kind][i] for kind in KINDS] for i in range(3))
        gains.append([log_p[2] - log_p[0], log_p[2] - log_p[1]])
        values = "  ".join(" ".join(f"{v:7.3f}" for v in part) for part in (factor, log_p, coverage))
        print(f"{name:<26} {len(y):4d}   {values}", flush=True)
    table = np.array(gains)
    for j, kind in enumerate(KINDS[:2]):
        error = table[:, j].std(ddof=1) / len(table) ** 0.5 if len(table) > 1 else float("nan")
        better, worse = (int((sign * table[:, j] > 0.002).sum()) for sign in (1, -1))
        print(
            f"scatter above {kind}: {table[:, j].mean():+.4f} ± {error:.4f} nats, median "
            f"{np.median(table[:, j]):+.4f}; {better} better and {worse} worse by more than 0.002"
        )


if __name__ == "__main__":
    main()
