"""Options of the first layer and boosted trees on tables of classes, and other libraries, on the same rows.

The ways are "plain", "binned" and "auto" encodings of columns of numbers, "both": "plain" and "binned" as candidates,
and "trees": "auto" with the option `trees`.
Gradient boosting of scikit-learn is in every line. "realmlp" and "tabm" are perceptrons of the library pytabkit, if
it is installed: RealMLP with periodic embeddings of numbers, and TabM with piecewise-linear ones. Both have their
default options, five folds, and the log-loss as criterion.

The score is the mean log-likelihood of new rows in nats; "oof" is the out-of-fold score of the fit. A split is a random
permutation with the number of the split as seed: 80 % training rows, of which the first ones are used, and 4,000 of the
others at most. Tables of scikit-learn need no folder.

    FATHOMLESS_DATA=FOLDER python benchmarks/inputs.py adult:8000:2 spambase:0:3 iris:0:3
    FATHOMLESS_DATA=FOLDER python benchmarks/inputs.py spambase:0:2 --ways auto realmlp tabm

A table is given as NAME:ROWS:SPLITS, with 0 for all rows.
"""

import argparse
import os
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from fathomless import UnboundedDepthClassifier

TARGETS = {
    "adult": "income",
    "magic_telescope": "class",
    "bank_marketing_additional": "y",
    "letter": "letter",
    "spambase": "is_spam",
    "german_credit": "class",
}
WAYS = ("plain", "binned", "both", "auto", "trees", "realmlp", "tabm")
LEAST = 1e-12  # probability below which a class is scored as if it had this one


def load(name: str) -> tuple[pd.DataFrame, npt.NDArray[Any]]:
    """Return the columns and the classes of a table."""
    if name in TARGETS:
        frame = pd.read_csv(Path(os.environ["FATHOMLESS_DATA"]) / "tabular" / f"{name}.csv.xz")
        return frame.drop(columns=TARGETS[name]), frame[TARGETS[name]].astype(str).to_numpy()
    found = getattr(datasets, f"load_{name}")()
    return pd.DataFrame(found.data).add_prefix("x"), found.target.astype(str)


def boosting(seed: int) -> Any:
    """Return the gradient boosting of scikit-learn with its default options, which is given categories as such."""
    text = make_column_selector(dtype_exclude=np.number)
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    encoder = make_column_transformer((ordinal, text), remainder="passthrough", verbose_feature_names_out=False)
    encoder.set_output(transform="pandas")
    boosted = HistGradientBoostingClassifier(random_state=seed)
    return make_pipeline(encoder, boosted)


def build(way: str, seed: int) -> Any:
    """Return the classifier of a way."""
    if way in ("realmlp", "tabm"):
        from pytabkit import RealMLP_TD_Classifier, TabM_D_Classifier

        options = {"device": "cpu", "n_threads": 1, "n_cv": 5, "val_metric_name": "cross_entropy", "random_state": seed}
        if way == "realmlp":
            return RealMLP_TD_Classifier(**options)
        return TabM_D_Classifier(arch_type="tabm-mini", num_emb_type="pwl", **options)
    chosen: dict[str, Any] = {"trees": True} if way == "trees" else {"numbers": way}
    if way == "both":
        chosen = {"candidates": {"numbers": ["plain", "binned"]}}
    return UnboundedDepthClassifier(unseen="ignore", random_state=seed, **chosen)


def score(fitted: Any, X: pd.DataFrame, y: npt.NDArray[Any]) -> float:
    """Return the mean log-likelihood of rows."""
    probability = fitted.predict_proba(X)[np.arange(len(y)), np.searchsorted(fitted.classes_, y)]
    return float(np.log(np.maximum(probability, LEAST)).mean())


def main() -> None:
    """Print a line for each split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--ways", nargs="+", default=["plain", "binned"], choices=WAYS)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"fathomless {version('fathomless')}, torch {version('torch')}, 1 thread, {datetime.now(UTC):%Y-%m-%d}")
    options = parser.parse_args()
    for given in options.tables:
        name, limit, splits = given.split(":")
        X, y = load(name)
        for split in range(int(splits)):
            order = np.random.default_rng(split).permutation(len(y))
            cut = int(0.8 * len(y))
            train, new = order[:cut][: int(limit) or None], order[cut:][:4000]
            found = {"boosting": score(boosting(split).fit(X.iloc[train], y[train]), X.iloc[new], y[new])}
            text = ""
            for way in options.ways:
                start = time.perf_counter()
                fitted = build(way, split).fit(X.iloc[train], y[train])
                seconds = time.perf_counter() - start
                found[way] = score(fitted, X.iloc[new], y[new])
                if way in ("realmlp", "tabm"):
                    text += f"; {way} {found[way]:.4f} ({seconds:.0f} s)"
                    continue
                text += f"; {way} {found[way]:.4f} (oof {fitted.validation_score_:.4f}, {seconds:.0f} s)"
                if fitted.trees_ is not None:
                    powers = ", ".join(f"{power:.2f}" for power in fitted.trees_.powers.tolist())
                    text += f" exponents {powers}, {fitted.trees_.trees.iterations} iterations"
            gain = found[options.ways[-1]] - found[options.ways[0]]
            print(
                f"{name} {split}, {len(train)} rows: boosting {found['boosting']:.4f}{text}; gain {gain:+.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
