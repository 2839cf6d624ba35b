"""P-values of rows that are not from the distribution of the training rows (`ood_p_values`), beside other scores.

Rows of each table are divided into training rows, new rows of the same distribution, and rows that differ from them:

- permuted: the values of each column are permuted among the rows, so that columns are independent;
- tail: training and new rows have the lower 85 % of the values of one column, the other rows have the rest;
- gap: the same for the middle fifth of the values;
- cluster: rows of one of six clusters (k-means) are left out.

The p-values do not depend on the networks, so that these are trained for one epoch. Other scores are the Mahalanobis
distance (covariance of Ledoit and Wolf), the mean distance from the five nearest training rows after whitening, which
needs the training rows themselves, and scikit-learn's isolation forest. They are compared by the area under the ROC
curve. The share of small p-values of new rows of the same distribution should be at most the level.

    python benchmarks/outliers.py --repeats 3
"""

import argparse
import platform
import warnings
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import sklearn
from sklearn.cluster import KMeans
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.data import datasets

Floats = npt.NDArray[np.float64]

TABLES = (
    "yacht",
    "boston",
    "energy",
    "concrete",
    "wine_red",
    "kin8nm",
    "power",
    "naval",
    "protein",
    "breast_cancer",
    "digits",
)
MOST_ROWS = 4_000
LEVEL = 0.05


def read(table: str) -> Floats:
    """Return the columns of a table; the last two are those of scikit-learn, with 30 and 64 columns."""
    own = {"breast_cancer": load_breast_cancer, "digits": load_digits}
    X = own[table]().data if table in own else datasets.load(table).X
    return np.asarray(X, dtype=np.float64)


def divisions(X: Floats, rng: np.random.Generator) -> Iterator[tuple[str, Floats, Floats, Floats]]:
    """Yield kinds of differences, with training rows, new rows of the same distribution, and other rows."""
    order = rng.permutation(len(X))
    train, new = X[order[: len(X) // 2]], X[order[len(X) // 2 :]]
    yield "permuted", train, new, np.column_stack([rng.permutation(column) for column in new.T])
    column = X[:, rng.integers(X.shape[1])]
    first, last, upper = np.quantile(column, (0.4, 0.6, 0.85))
    masks = {"tail": column > upper, "gap": (column > first) & (column < last)}
    cluster = KMeans(6, n_init=1, random_state=1).fit_predict(X)
    sizes = np.bincount(cluster)
    masks["cluster"] = cluster == np.argmin(np.abs(sizes - len(X) / 6))
    for name, other in masks.items():
        if 10 < other.sum() < len(X) / 2:
            same = rng.permutation(np.flatnonzero(~other))
            count = int(0.7 * len(same))
            yield name, X[same[:count]], X[same[count:]], X[other]


def other_scores(train: Floats, rows: Floats) -> dict[str, Floats]:
    """Return scores of rows, larger for rows that are unlike the training rows."""
    known = LedoitWolf().fit(train)
    size, axes = np.linalg.eigh(known.covariance_)
    whitening = axes / np.sqrt(np.maximum(size, 1e-6 * size.max()))
    near = NearestNeighbors(n_neighbors=5).fit(train @ whitening)
    return {
        "Mahalanobis": known.mahalanobis(rows),
        "5 nearest rows": near.kneighbors(rows @ whitening)[0].mean(1),
        "isolation forest": -IsolationForest(random_state=0).fit(train).score_samples(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="P-values of rows outside the distribution of the training rows.")
    parser.add_argument("--repeats", type=int, default=3, help="divisions of each table")
    repeats = parser.parse_args().repeats
    print(f"python benchmarks/outliers.py --repeats {repeats}")
    print(
        f"fathomless {fathomless.__version__}, scikit-learn {sklearn.__version__}, python {platform.python_version()}"
    )
    print(f"{datetime.now(UTC):%Y-%m-%d}")
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    areas, shares = defaultdict[tuple[str, str], list[float]](list), defaultdict[str, list[tuple[float, ...]]](list)
    for table in TABLES:
        X = read(table)
        X = X[:, X.std(0) > 0.0]
        X = (X - X.mean(0)) / X.std(0)
        for _ in range(repeats):
            for kind, train, new, other in divisions(X[rng.permutation(len(X))[:MOST_ROWS]], rng):
                fast = UnboundedDepthRegressor(
                    depth_law=1, width=4, epochs=1, cv=5, calibrate=False, recalibrate=False, weight_prior=1.0
                )
                fitted = fast.fit(train, rng.normal(size=len(train)))
                rows = np.concatenate([new, other])
                p = fitted.ood_p_values(rows)
                differs = np.arange(len(rows)) >= len(new)
                shares[kind].append(
                    (
                        *(float(np.mean(p[~differs] <= a)) for a in (0.01, LEVEL, 0.2)),
                        float(np.mean(p[differs] <= LEVEL)),
                    )
                )
                scores = {"p-value": -p, **other_scores(train, rows)}
                for name, score in scores.items():
                    areas[kind, name].append(float(roc_auc_score(differs, score)))
    print("share of p-values up to 0.01, 0.05 and 0.2 of new rows of the same distribution, of the others up to 0.05")
    for kind, of_kind in shares.items():
        mean, error = np.mean(of_kind, 0), np.std(of_kind, 0, ddof=1) / np.sqrt(len(of_kind))
        print(f"  {kind:10}" + "".join(f"  {m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True)))
    print("area under the ROC curve, means over tables")
    for (kind, name), found in areas.items():
        print(f"  {kind:10}{name:18}{np.mean(found):.3f}")


if __name__ == "__main__":
    main()
