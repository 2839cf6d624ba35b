"""Estimators with default options on real tables: the default, the former default, restarts, boosting, linear models.

    python benchmarks/defaults.py --data FOLDER [--tables yacht,boston] [--splits 0,1] [--columns default,elbo]

One line for each table, split and column is printed and added to a file of JSON lines (--out); ``--summary`` prints the
table of means from it. Regression: mean log density of test rows in nats, in units of the table, RMSE, and coverage of
90 % intervals. Classification: mean log probability, accuracy, and expected calibration error. ``worst`` is the
distance of the worst test row below the median row, in nats. "fast" and "best" are the presets, and "minutes=0.1" is
the default with this time limit. "boosting" has the default options of scikit-learn, and "stopped" is the boosting of
``fathomless compare``, stopped by held-out rows (:mod:`fathomless.app.peers`).
``--seeds 0,1,2,3,4`` fits every split with each of these seeds. ``--agreement`` then prints the differences between
depths of one split, in units of the reported standard errors, and the difference between the reported score and that of
single networks on test rows.
"""

import argparse
import itertools
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fathomless
from fathomless.app.peers import Peer
from fathomless.families.continuous.options import PathOptions
from fathomless.families.depth.options import PRESETS

REGRESSION = ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm", "power", "naval", "protein", "diabetes")
CLASSES = ("german_credit", "spambase", "letter", "magic_telescope", "bank_marketing_additional", "adult")
BUNDLED = {
    "diabetes": load_diabetes,
    "iris": load_iris,
    "wine": load_wine,
    "cancer": load_breast_cancer,
    "digits": load_digits,
}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("UnboundedDepth", {}),
    "fast": ("UnboundedDepth", {}),
    "best": ("UnboundedDepth", {}),
    "elbo": ("UnboundedDepth", {"structure_from": "elbo", "likelihood": "gaussian"}),
    "restarts": ("UnboundedDepth", {"structure_from": "elbo", "likelihood": "gaussian", "n_restarts": 5}),
    "one": ("UnboundedDepth", {"cv": 1}),
    "hmc": ("UnboundedDepth", {"weights": "hmc"}),
    "laplace": ("UnboundedDepth", {"last_layer": "laplace"}),
    "continuous": ("ContinuousDepth", {}),
    "ode": ("ContinuousDepth", {"path": PathOptions(rate=0)}),
    "first": ("ContinuousDepth", {"path": PathOptions(stochastic="first")}),
    "last": ("ContinuousDepth", {"path": PathOptions(stochastic="last")}),
    "meanfield": ("MeanFieldNetwork", {}),
    "finite2": ("FiniteNetwork", {"depth": 2}),
    "finite4": ("FiniteNetwork", {"depth": 4}),
    **{f"minutes={value}": ("UnboundedDepth", {"minutes": value}) for value in (0.05, 0.1, 0.25, 0.5, 1.0)},
}


def data(folder: Path, name: str, split: int) -> tuple[Any, Any, Any, Any]:
    """Return X and y of the training rows, then of the test rows."""
    if name in REGRESSION and name not in BUNDLED:
        z = np.load(folder / "uci_regression" / f"{name}.npz")
        train, test = z["train_idx"][split], z["test_idx"][split]
        return z["X"][train], z["y"][train], z["X"][test], z["y"][test]
    if name in BUNDLED:
        X, y = BUNDLED[name](return_X_y=True)
    else:
        frame = pd.read_csv(folder / "tabular" / f"{name}.csv.xz")
        target = {"adult": "income", "magic_telescope": "class", "bank_marketing_additional": "y", "letter": "letter"}
        target |= {"spambase": "is_spam", "german_credit": "class"}
        y = frame.pop(target[name]).astype(str).to_numpy()
        X = frame
    a, b, c, d = train_test_split(X, y, test_size=0.1, random_state=split, stratify=None if name in REGRESSION else y)
    return a, c, b, d


def peer(name: str, column: str) -> Any:
    """Return scikit-learn's gradient boosting or a linear model."""
    boosting = column == "boosting"
    if name in REGRESSION:
        return (
            HistGradientBoostingRegressor(random_state=0)
            if boosting
            else make_pipeline(StandardScaler(), BayesianRidge())
        )
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_exclude=np.number)),
        remainder="passthrough" if boosting else StandardScaler(),
    )
    frames = name not in BUNDLED
    last = HistGradientBoostingClassifier(random_state=0) if boosting else LogisticRegression(max_iter=2000)
    return make_pipeline(encode, last) if frames else make_pipeline(StandardScaler(), last)


class Stopped(Peer):
    """Boosting of ``fathomless compare``, with the methods of scikit-learn's estimators."""

    def __init__(self, regression: bool) -> None:
        super().__init__("boosting", "regression" if regression else "classification", 0)

    @property
    def classes_(self) -> Any:
        """Class labels, (C,)."""
        return np.asarray(cast(Any, self.target_).labels)

    def predict(self, X: Any) -> Any:
        """Return the means of rows."""
        return cast(Any, self.predict_dist(X)).mean.numpy()

    def predict_interval(self, X: Any, level: float) -> Any:
        """Return the bounds of central intervals."""
        return tuple(bound.numpy() for bound in cast(Any, self.predict_dist(X)).interval(level))

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes."""
        return cast(Any, self.predict_dist(X)).probs.numpy()


def score(folder: Path, name: str, split: int, seed: int, column: str, options: dict[str, Any]) -> dict[str, float]:
    """Fit one estimator to one split and score it."""
    X, y, Xt, yt = data(folder, name, split)
    regression = name in REGRESSION
    began = time.perf_counter()
    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if column in OURS:
            family, given = OURS[column]
            kind = getattr(fathomless, f"{family}{'Regressor' if regression else 'Classifier'}")
            own = {k: v for k, v in given.items() if regression or k != "likelihood"}
            chosen = kind.preset(column, random_state=seed) if column in PRESETS else kind(random_state=seed, **own)
            fitted = chosen.set_params(**options).fit(X, y)
            seconds = time.perf_counter() - began
            rows = fitted.predict_dist(Xt).log_prob(yt).numpy()
            found["validation"] = fitted.validation_score_ or math.nan
            if fitted.fold_ is not None:  # single networks on test rows, to compare with the out-of-fold score
                of = [np.full((len(fitted.fold_), len(yt)), k) for k in range(int(fitted.fold_.max()) + 1)]
                x = fitted.predictor_.task.encode_rows(fitted.schema_, Xt)  # may be equal to training rows
                found["single"] = float(np.mean([fitted.predict_encoded(x, fold=k).log_prob(yt).mean() for k in of]))
            found["depth"] = fitted.structure_.statistics.get("mean_depth", math.nan)
            structure = fitted.fit_diagnostics_.structure
            found["error"] = math.nan if structure is None else structure.mean_error
            found["poisson"] = math.nan if structure is None else structure.poisson_rate
            found["student"] = float(type(fitted.likelihood_).__name__ == "StudentT")
            found["epochs"] = fitted.n_iter_
            if sampled := getattr(fitted, "sampling_", {}):  # diagnostics of the most probable depth
                of = sampled[max(fitted.depth_posterior_, key=fitted.depth_posterior_.__getitem__)]
                found |= {key: of[key] for key in ("rhat", "rhat_median", "ess", "doubtful")}
                found["depths"] = len(sampled)
        elif column == "stopped":
            fitted = Stopped(regression).fit(X, y)
            seconds = time.perf_counter() - began
            rows = fitted.predict_dist(Xt).log_prob(yt).numpy()
        else:
            fitted = peer(name, column).fit(X, y)
            seconds = time.perf_counter() - began
        if regression:
            mean = np.asarray(fitted.predict(Xt))
            found["error_of_mean"] = float(np.sqrt(np.mean((mean - yt) ** 2)))
            if column in OURS or column == "stopped":
                low, high = fitted.predict_interval(Xt, 0.9)
            else:  # the noise is estimated from residuals of a held-out fifth of the training rows
                a, b, c, d = train_test_split(X, y, test_size=0.2, random_state=split)
                sigma = float(np.std(d - np.asarray(peer(name, column).fit(a, c).predict(b))))
                rows = -0.5 * ((yt - mean) / sigma) ** 2 - math.log(sigma) - 0.5 * math.log(2 * math.pi)
                low, high = mean - 1.645 * sigma, mean + 1.645 * sigma
            found["calibration"] = float(np.mean((low <= yt) & (yt <= high)))
        else:
            p = np.clip(fitted.predict_proba(Xt), 1e-15, 1.0)
            place = {label: i for i, label in enumerate(fitted.classes_)}
            rows = np.log(p[np.arange(len(yt)), [place[label] for label in yt]])
            right = fitted.classes_[p.argmax(1)] == yt
            sure = p.max(1)
            found["error_of_mean"] = float(right.mean())
            bins = np.minimum((sure * 15).astype(int), 14)
            found["calibration"] = sum(abs((right[bins == b] - sure[bins == b]).sum()) for b in range(15)) / len(yt)
    found |= {"log_likelihood": float(rows.mean()), "worst": float(np.median(rows) - rows.min()), "seconds": seconds}
    return found


def summary(lines: list[dict[str, Any]]) -> None:
    """Print means over splits, with standard errors of the log-likelihood."""
    last = {tuple(line.get(k) for k in ("table", "split", "seed", "column", "options")): line for line in lines}
    lines = list(last.values())  # of repeated runs, the last
    columns = list(dict.fromkeys(line["column"] for line in lines))
    for table in dict.fromkeys(line["table"] for line in lines):
        for column in columns:
            own = [line for line in lines if (line["table"], line["column"]) == (table, column)]
            if not own:
                continue
            ll = np.array([line["log_likelihood"] for line in own])
            error = ll.std(ddof=1) / math.sqrt(len(ll)) if len(ll) > 1 else math.nan
            means = {key: np.mean([line[key] for line in own]) for key in ("error_of_mean", "calibration", "seconds")}
            worst = max(line["worst"] for line in own)
            print(
                f"{table:26} {column:9} {len(own):2} splits  log-lik. {ll.mean():8.3f} ± {error:5.3f}  RMSE/acc. "
                f"{means['error_of_mean']:8.4f}  cover/ECE {means['calibration']:.3f}  worst {worst:6.1f}  "
                f"{means['seconds']:6.1f} s"
            )


def agreement(lines: list[dict[str, Any]]) -> None:
    """Print the differences between the depths of several seeds, for each table and split."""
    for table, split in dict.fromkeys((line["table"], line["split"]) for line in lines):
        own = [line for line in lines if (line["table"], line["split"], line["column"]) == (table, split, "default")]
        pairs = list(itertools.combinations(own, 2))
        if not pairs:
            continue
        apart = [abs(a["depth"] - b["depth"]) / math.hypot(a["error"], b["error"]) for a, b in pairs]
        depths, rates = [one["depth"] for one in own], [one["poisson"] for one in own]
        laws = [np.array([math.exp(k * math.log(r) - r - math.lgamma(k + 1)) for k in range(100)]) for r in rates]
        variation = max(0.5 * np.abs(a - b).sum() for a, b in itertools.combinations(laws, 2))
        print(
            f"{table:12} split {split}  mean depth {min(depths):.2f} to {max(depths):.2f}, error "
            f"{np.mean([one['error'] for one in own]):.2f}; largest difference {max(apart):.1f} errors, above two in "
            f"{sum(z > 2 for z in apart)} of {len(apart)} pairs; Poisson rate {min(rates):.2f} to {max(rates):.2f}, "
            f"total variation at most {variation:.2f}; score minus that of single networks on test rows "
            f"{np.mean([one['validation'] - one['single'] for one in own]):.3f}"
        )


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default=",".join((*REGRESSION[:5], *BUNDLED, CLASSES[0])))
    parser.add_argument("--splits", default="0")
    parser.add_argument("--columns", default="default,elbo,boosting,linear")
    parser.add_argument("--options", default="{}", help="options of the estimators of this library, as JSON")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path, help="print the means of a file of JSON lines, and exit")
    parser.add_argument("--seeds", help="seeds of the estimators of this library; by default the number of the split")
    parser.add_argument(
        "--agreement", type=Path, help="print the agreement between seeds in a file of JSON lines, and exit"
    )
    args = parser.parse_args()
    if args.agreement:
        agreement([json.loads(line) for line in args.agreement.read_text().splitlines()])
        return
    if args.summary:
        summary([json.loads(line) for line in args.summary.read_text().splitlines()])
        return
    torch.set_num_threads(args.threads)
    for table in args.tables.split(","):
        for split in map(int, args.splits.split(",")):
            seeds = [split] if args.seeds is None else list(map(int, args.seeds.split(",")))
            for column, seed in itertools.product(args.columns.split(","), seeds):
                found = score(args.data, table, split, seed, column, json.loads(args.options))
                line = {"table": table, "split": split, "seed": seed, "column": column, "options": args.options}
                print(f"{table:18} {split:2} {column:9}", *(f"{k} {v:.3f}" for k, v in found.items()), flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps({**line, **found}) + "\n")


if __name__ == "__main__":
    main()
