"""Tables with a column of many categories: the largest number of levels, and gradient boosting, on the same rows.

Rows have four uniform columns and a category with frequencies proportional to the inverse root of its rank. The mean of
the target is f = sin(2 a) + b c / 2 plus an effect of the category, which is normal with a given standard deviation.
Numbers have noise, and classes have the logit 2 f. The score is the mean log-likelihood of 4,000 new rows in nats.

    python benchmarks/levels.py --rows 3000 --categories 300 --effect 1
"""

import argparse
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.estimators.evaluation import evaluate

NEW = 4000
NOISE = 0.5
NATIVE = 250  # categories that the boosting is given


def draw_table(
    rows: int, categories: int, effect: float, task: str, seed: int
) -> tuple[pd.DataFrame, npt.NDArray[Any]]:
    """Draw rows of a made table."""
    random = np.random.default_rng(seed)
    of_category = effect * random.normal(size=categories)
    frequency = 1.0 / np.sqrt(np.arange(1, categories + 1))
    category = random.choice(categories, size=rows, p=frequency / frequency.sum())
    x = random.uniform(-2.0, 2.0, (rows, 4))
    f = of_category[category] + np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    X = pd.DataFrame(x, columns=list("abcd")).assign(category=[f"c{i}" for i in category])
    if task == "numbers":
        return X, f + NOISE * random.normal(size=rows)
    return X, np.where(random.random(rows) < 1.0 / (1.0 + np.exp(-2.0 * f)), "yes", "no")


def score_boosting(
    X: pd.DataFrame, y: npt.NDArray[Any], new_X: pd.DataFrame, new_y: npt.NDArray[Any], task: str, seed: int
) -> float:
    """Return the score of a boosting with the most frequent categories; numbers are normal with out-of-fold errors."""
    frequent = list(X["category"].value_counts().index[:NATIVE])
    X, new_X = (part.assign(category=pd.Categorical(part["category"], frequent)) for part in (X, new_X))
    if task == "numbers":
        boosting = HistGradientBoostingRegressor(random_state=seed, categorical_features="from_dtype")
        scale = np.std(y - cross_val_predict(boosting, X, y, cv=5))
        return float(norm.logpdf(new_y, boosting.fit(X, y).predict(new_X), scale).mean())
    boosting = HistGradientBoostingClassifier(
        random_state=seed, categorical_features="from_dtype", learning_rate=0.03
    ).fit(X, y)
    p = boosting.predict_proba(new_X)[np.arange(len(new_y)), np.searchsorted(boosting.classes_, new_y)]
    return float(np.log(p).mean())


def main() -> None:
    """Print a line for each task and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--categories", type=int, default=300)
    parser.add_argument("--effect", type=float, default=1.0, help="standard deviation of the effects of categories")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--tasks", nargs="+", default=["numbers", "classes"], choices=["numbers", "classes"])
    parser.add_argument("--levels", nargs="+", default=["100", "auto", "1000"], help="values of max_levels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"fathomless {version('fathomless')}, torch {version('torch')}, 1 thread, {datetime.now(UTC):%Y-%m-%d}")
    for task in options.tasks:
        for seed in options.seeds:
            X, y = draw_table(options.rows + NEW, options.categories, options.effect, task, seed)
            n = options.rows
            found = [f"boosting {score_boosting(X[:n], y[:n], X[n:], y[n:], task, seed):.4f}"]
            for levels in options.levels:
                start = time.perf_counter()
                kind = UnboundedDepthRegressor if task == "numbers" else UnboundedDepthClassifier
                limit = levels if levels == "auto" else int(levels)
                fitted = kind(random_state=0, unseen="ignore", max_levels=limit).fit(X[:n], y[:n])
                seconds = time.perf_counter() - start
                score = evaluate(fitted, X[n:], y[n:], name="new rows").scores["log_likelihood"].value
                found.append(f"{levels} {score:.4f} ({fitted.schema_.width} features, {seconds:.0f} s)")
            table = f"{task}, {n} rows, {options.categories} categories, effect {options.effect:g}, seed {seed}"
            print(f"{table}: {'; '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
