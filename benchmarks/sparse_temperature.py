"""Temperature of sparse networks chosen by held-out rows, compared with the fixed 0.1 and with unbounded depth.

    python benchmarks/sparse_temperature.py                          all data sets, splits 0 and 1
    python benchmarks/sparse_temperature.py --sets yacht --splits 0  a short run
    python benchmarks/sparse_temperature.py --rules --splits 10 11   comparison of selection rules, on other splits

Scores are on test rows: mean log predictive density in nats per row (of y in its own units; single splits in brackets),
and RMSE or accuracy. "kept" is the share of weights in the median probability model. Seconds are CPU seconds of one
thread, including the selection of the temperature.

With --rules, networks with all temperatures are trained on nine tenths, four fifths and all of the training rows. A
rule selects the highest temperature whose held-out score is below the best by at most a number of standard errors. The
selected network is scored as trained on that share ("kept") and as trained on all rows, with the noise fitted to the
held-out rows. "at 0.1" is the fixed temperature with that noise. The data are read from the folder in FATHOMLESS_DATA.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fathomless import SparseBayesClassifier, SparseBayesRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.datasets import Dataset, load
from fathomless.data.rows import Rows
from fathomless.families.sparse import temperature
from fathomless.families.sparse.options import TEMPERATURES
from fathomless.families.sparse.temperature import compare_candidates
from fathomless.inference.out_of_fold.crossfit import predict_held_out
from fathomless.inference.out_of_fold.noise import mixture_log_density
from fathomless.system.errors import ConvergenceWarning
from tables import halves

REGRESSION = ("concrete", "energy", "yacht", "boston", "wine_red")
CLASSIFICATION = ("iris", "breast_cancer", "wine_recognition", "german_credit")
SHARES, ERRORS = (0.1, 0.2), (0.0, 0.5, 1.0)
OPTIONS: dict[str, Any] = {"unseen": "ignore", "missing": "impute"}


def parts(data: Dataset, split: int) -> tuple[Any, Any, Any, Any]:
    """Return X and y of the training rows, and of the test rows."""
    X = data.X
    y = np.asarray(data.y)
    take = X.iloc if hasattr(X, "iloc") else X
    train, test = halves(data, split)
    return take[train], y[train], take[test], y[test]


def score(model: Any, X: Any, y: Any, classes: bool) -> tuple[float, float]:
    """Return mean log-likelihood, and accuracy or RMSE."""
    predicted = model.predict_dist(X)
    log_p = float(np.asarray(predicted.log_prob(y)).mean())
    guess = model.predict(X)
    error = np.mean(guess == y) if classes else np.sqrt(np.mean((guess - y) ** 2))
    return log_p, float(error)


def compare(name: str, splits: Sequence[int]) -> None:
    """Print one line for each model."""
    data = load(name)
    classes = data.task == "classification"
    sparse: Any = SparseBayesClassifier if classes else SparseBayesRegressor
    depth: Any = UnboundedDepthClassifier if classes else UnboundedDepthRegressor
    models: dict[str, Callable[[int], Any]] = {
        "sparse, T = 0.1": lambda split: sparse(temperature=0.1, random_state=split, **OPTIONS),
        "sparse": lambda split: sparse(random_state=split, **OPTIONS),
        "unbounded depth": lambda split: depth(random_state=split, **OPTIONS),
    }
    print(f"\n{name}: {len(data.X)} rows, splits {' '.join(map(str, splits))}")
    for label, make in models.items():
        scores, told = [], []
        for split in splits:
            X, y, X_test, y_test = parts(data, split)
            start = time.process_time()
            model = make(split).fit(X, y)
            seconds = time.process_time() - start
            scores.append((*score(model, X_test, y_test, classes), seconds))
            if label.startswith("sparse"):
                told.append(f"{100 * model.structure_.statistics['density']:.1f} % at T = {model.temperature_:g}")
        each = np.array(scores)
        log_p, error, seconds = each.mean(0)
        values = " ".join(f"{value:.3f}" for value in each[:, 0])
        measure = "accuracy" if classes else "RMSE"
        print(
            f"  {label:<15} {log_p:7.3f} ({values})  {measure} {error:6.3f}  {seconds:5.0f} s"
            + (f"  kept {', '.join(told)}" if told else ""),
            flush=True,
        )


def choose(name: str, split: int) -> dict[str, tuple[float, float]]:
    """Return the temperature and the test log-likelihood of every rule on one split."""
    data = load(name)
    X, y, X_test, y_test = parts(data, split)
    kind: Any = SparseBayesClassifier if data.task == "classification" else SparseBayesRegressor
    own = kind(random_state=split, **OPTIONS)
    prepared = replace(own._prepare(X, y, None), dtype=torch.float32)
    table = temperature._cast(prepared.train, torch.float32)
    x = own._encode(prepared.schema, X_test)
    z = torch.as_tensor(prepared.target.encode(y_test))
    test = Rows(torch.as_tensor(x, dtype=torch.float32), z.float() if z.is_floating_point() else z)
    noise = own._noise_fitter()
    seed = prepared.seed
    unit = prepared.target.log_unit
    whole = own._train(prepared, table, table, TEMPERATURES)
    found: dict[str, tuple[float, float]] = {}
    for share in SHARES:
        rows, judges, _ = temperature._split(table, seed, share)
        fits = own._train(prepared, rows, judges, TEMPERATURES)
        seen = [predict_held_out(one.model, judges, seed, own.weight_draws) for one in fits]
        each = torch.stack(
            [temperature._cross_fit_density(s, one.likelihood, noise, None) for s, one in zip(seen, fits, strict=True)]
        )
        result = compare_candidates(each, judges.weight)
        chosen = {"at 0.1": TEMPERATURES.index(0.1)}
        for errors in ERRORS:
            near = (result.behind <= errors * result.behind_error).nonzero()
            chosen[f"{errors:g} errors"] = int(near[0])
        for rule, i in chosen.items():
            likelihood = noise(seen[i], fits[i].likelihood)
            for what, networks in (("kept", fits), ("all rows", whole)):
                with torch.no_grad():
                    value = mixture_log_density(
                        predict_held_out(networks[i].model, test, seed, own.weight_draws), likelihood
                    ).mean()
                found[f"{share:.0%} held out, {rule}, {what}"] = TEMPERATURES[i], float(value) - unit
    return found


def rules(names: Sequence[str], splits: Sequence[int]) -> None:
    """Print the test log-likelihood of every rule, and its mean difference to the best rule."""
    each: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
    for name in names:
        for split in splits:
            found = each[name, split] = choose(name, split)
            told = "  ".join(f"{value:.3f} ({chosen:g})" for chosen, value in found.values())
            print(f"{name} {split}: {told}", flush=True)
    labels = list(next(iter(each.values())))
    best = {place: max(value for _, value in found.values()) for place, found in each.items()}
    places = f"{len(names)} sets and splits {' '.join(map(str, splits))}"
    print(
        f"\nabove: nats per test row (and T) of each rule; below: differences to the best rule of each line, {places}"
    )
    for label in labels:
        gaps = [np.mean([each[n, s][label][1] - best[n, s] for s in splits]) for n in names]
        shown = "  ".join(f"{name[:8]} {gap:.3f}" for name, gap in zip(names, gaps, strict=True))
        chosen = np.mean([np.log10(found[label][0]) for found in each.values()])
        print(f"  {label:<34} {np.mean(gaps):.3f}   mean log10 T {chosen:.2f}   {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*REGRESSION, *CLASSIFICATION])
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--rules", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    if args.rules:
        rules(args.sets, args.splits)
    else:
        for name in args.sets:
            compare(name, args.splits)


if __name__ == "__main__":
    main()
