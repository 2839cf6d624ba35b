"""Unbounded depth and scikit-learn's models with default options, on the same splits of real tables.

    python benchmarks/tables.py                         all data sets; prints a table and writes results/tables.json
    python benchmarks/tables.py --sets adult --splits 1 a short run

Scores are on test rows: mean log predictive density in nats per row (of y in its own units), and accuracy or RMSE.
Models without a density get a Gaussian whose standard deviation is the RMSE on a held-out tenth of the training rows.
The data are read from the folder in FATHOMLESS_DATA. ± is one standard error over splits, or over test rows if there is
only one split.
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.datasets import Dataset, load
from fathomless.posterior.metrics import expected_calibration_error, paired_difference
from fathomless.system.errors import ConvergenceWarning

CLASSIFICATION = ("adult", "german_credit", "letter")
REGRESSION = ("wine_red", "concrete", "kin8nm", "power")
Make = Callable[[list[str], list[str], int], Any]


@dataclass
class Score:
    """Scores of one model on one split."""

    log_likelihood: float
    error: float  # accuracy or RMSE
    spread: float  # standard error of the log-likelihood over test rows
    ece: float
    seconds: float
    note: str = ""


def encoder(numeric: list[str], text: list[str], ordinal: bool = False) -> Any:
    """Return an encoder for scikit-learn's models: scaled numbers, one-hot (or ordinal) categories."""
    categories = (
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
        if ordinal
        else OneHotEncoder(handle_unknown="ignore")
    )
    numbers = "passthrough" if ordinal else make_pipeline(SimpleImputer(), StandardScaler())
    return make_column_transformer((numbers, numeric), (categories, text))


CLASSIFIERS: dict[str, Make] = {
    "logistic": lambda n, t, s: make_pipeline(encoder(n, t), LogisticRegression(max_iter=2000)),
    "MLP": lambda n, t, s: make_pipeline(encoder(n, t), MLPClassifier(early_stopping=True, random_state=s)),
    "boosting": lambda n, t, s: make_pipeline(encoder(n, t, True), HistGradientBoostingClassifier(random_state=s)),
    "fathomless": lambda n, t, s: UnboundedDepthClassifier(random_state=s, unseen="ignore", missing="impute"),
}
REGRESSORS: dict[str, Make] = {
    "ridge": lambda n, t, s: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
    "MLP": lambda n, t, s: make_pipeline(
        StandardScaler(), MLPRegressor(early_stopping=True, max_iter=1000, random_state=s)
    ),
    "boosting": lambda n, t, s: HistGradientBoostingRegressor(random_state=s),
    "fathomless": lambda n, t, s: UnboundedDepthRegressor(random_state=s),
}


def halves(data: Dataset, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test indices: the published split if there is one, else a stratified fifth as test set."""
    if (data.name in ("adult", "letter") and split == 0) or data.task == "regression":
        train, test = data.splits[split]
        return np.asarray(train), np.asarray(test)
    rows = np.arange(len(data.X))
    train, test = train_test_split(rows, test_size=0.2, random_state=split, stratify=data.y)
    return train, test


def classify(name: str, data: Dataset, split: int) -> Score:
    """Fit one classifier on one split and score it."""
    train, test = halves(data, split)
    X, y = data.X.iloc[train], np.asarray(data.y)[train]
    text = [c for c in X.columns if not np.issubdtype(np.asarray(X[c]).dtype, np.number)]
    numeric = [c for c in X.columns if c not in text]
    start = time.perf_counter()
    model = CLASSIFIERS[name](numeric, text, split).fit(X, y)
    seconds = time.perf_counter() - start
    p = model.predict_proba(data.X.iloc[test])
    code = np.searchsorted(model.classes_, np.asarray(data.y)[test])
    log_p = np.log(np.clip(p[np.arange(len(code)), code], 1e-12, None))
    note = model.structure_.summary if name == "fathomless" else ""
    return Score(
        log_p.mean(),
        float((p.argmax(1) == code).mean()),
        log_p.std() / len(log_p) ** 0.5,
        float(expected_calibration_error(code, p)),
        seconds,
        note,
    )


def regress(name: str, data: Dataset, split: int) -> Score:
    """Fit one regressor on one split and score it."""
    train, test = halves(data, split)
    X, y = np.asarray(data.X)[train], np.asarray(data.y)[train]
    X_test, y_test = np.asarray(data.X)[test], np.asarray(data.y)[test]
    start = time.perf_counter()
    note = ""
    if name == "fathomless":
        model = REGRESSORS[name]([], [], split).fit(X, y)
        seconds = time.perf_counter() - start
        dist = model.predict_dist(X_test)
        mean = dist.mean.numpy()
        log_p = dist.log_prob(y_test).numpy()
        note = model.structure_.summary
    else:
        fit_rows, held = train_test_split(np.arange(len(y)), test_size=0.1, random_state=split)
        probe = REGRESSORS[name]([], [], split).fit(X[fit_rows], y[fit_rows])
        sd = float(np.sqrt(np.mean((y[held] - probe.predict(X[held])) ** 2)))
        model = REGRESSORS[name]([], [], split).fit(X, y)
        seconds = time.perf_counter() - start
        mean = model.predict(X_test)
        log_p = -0.5 * ((y_test - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)
    rmse = float(np.sqrt(np.mean((y_test - mean) ** 2)))
    return Score(log_p.mean(), rmse, log_p.std() / len(log_p) ** 0.5, float("nan"), seconds, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*CLASSIFICATION, *REGRESSION])
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--splits", type=int, help="number of splits; default: 20 below 5,000 rows, else 5")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "tables.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", SklearnConvergenceWarning)
    warnings.simplefilter("ignore", ConvergenceWarning)
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in args.sets:
        data = load(name)
        models, run = (CLASSIFIERS, classify) if data.task == "classification" else (REGRESSORS, regress)
        chosen = [m for m in models if args.models is None or m in args.models]
        error = "accuracy, ECE" if models is CLASSIFIERS else "RMSE"
        print(f"\n{name}: {len(data.X)} rows, log-likelihood (nats per row), {error}")
        splits = args.splits or (20 if len(data.X) < 5000 else 5)
        results[name] = {m: [vars(run(m, data, s)) for s in range(splits)] for m in chosen}
        for model, scores in results[name].items():
            print(f"  {model:<11}{line(scores)}", flush=True)
        if {"fathomless", chosen[0]} <= set(chosen) and splits > 1:
            ours, linear = ([s["log_likelihood"] for s in results[name][m]] for m in ("fathomless", chosen[0]))
            gain, spread = paired_difference(ours, linear)
            print(f"  fathomless − {chosen[0]}, paired: {gain:+.4f} ± {spread:.4f} nats per row", flush=True)
    machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": args.threads}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


def line(scores: list[dict[str, Any]]) -> str:
    """Return the scores of one model on one data set as a line."""
    ll, error, ece = (np.array([s[key] for s in scores]) for key in ("log_likelihood", "error", "ece"))
    spread = ll.std(ddof=1) / len(ll) ** 0.5 if len(ll) > 1 else scores[0]["spread"]
    text = f"{ll.mean():8.4f} ± {spread:.4f}   {error.mean():8.4f}"
    text += f"   {ece.mean():.4f}" if np.isfinite(ece).all() else "         "
    return text + f"   {np.mean([s['seconds'] for s in scores]):6.1f} s   {scores[0]['note']}"


if __name__ == "__main__":
    main()
