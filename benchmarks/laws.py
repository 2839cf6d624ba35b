"""Laws of the target on published tables and splits: the default without and with its second stage, and other methods.

Every method predicts a law of each test row. The scores are the mean log-likelihood in nats, the continuous ranked
probability score and the RMSE in units of the target, the coverage of 90 % intervals of all rows and of those with
intervals below (narrow) and above (wide) the median width, the log-likelihood of the worst row, and the seconds of the
fit. Targets on a coarse lattice are scored by log probabilities of its points. The methods are:

- networks, default: one fit of UnboundedDepthRegressor, without and with the laws of the standardised residual;
- networks+neighbors, neighbors: the same with the option `neighbors`;
- networks+binned, binned: the same with ``numbers="binned"``;
- both: "plain" and "binned" numbers as candidates;
- auto, trees: the estimator as it comes, with ``numbers="auto"``, and with the option `trees`;
- boosting: HistGradientBoostingRegressor of scikit-learn, with one normal law whose standard deviation is the
  out-of-fold RMSE in ten folds;
- boosting+stage: the same boosting with the second stage of this library, learned from these out-of-fold rows, so that
  the networks are compared with the boosting, and not the stage;
- catboost: CatBoostRegressor with the loss RMSEWithUncertainty; ngboost: NGBRegressor with normal laws.

The settings of other methods are their defaults. Their standard deviations are at least the rounding error of the
target, step / sqrt(12). A target is discrete if its step is larger than 0.3 out-of-fold RMSE of the boosting; the
default has this rule for its own error. A method whose library is missing is left out, and a line says so.

    FATHOMLESS_DATA=FOLDER python benchmarks/laws.py --tables yacht energy --splits 5 --out laws.jsonl
    FATHOMLESS_DATA=FOLDER python benchmarks/laws.py --tables protein --splits 1 --methods default boosting
    python benchmarks/laws.py --summary laws.jsonl

With --out, one JSON line for each fit is added to a file, and fits that are in the file are not repeated.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

sys.path.insert(0, str(Path(__file__).parent))

import recalibration
from recalibration import REAL

from fathomless.data.lattices import Lattice, find_lattice
from fathomless.inference.out_of_fold.recalibration import OutOfFoldLaws, fit_recalibration
from fathomless.posterior.distributions import ContinuousPredictive, NumberPredictive
from fathomless.posterior.fit_diagnostics import RecalibrationFit
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixture_scores import crps_of_mixture
from fathomless.posterior.mixtures import Mixture, Normal

Floats = npt.NDArray[np.float64]
#: Name, prediction of the test rows, diagnostics of the second stage, and seconds of the fit.
Result = tuple[str, NumberPredictive, Sequence[RecalibrationFit], float]

COLUMNS = (*recalibration.COLUMNS, "crps")
FOLDS = 10
COARSE = 0.3  # step of a lattice in root mean squared errors above which a target is discrete
EQUAL = 1e-9  # relative difference below which standard deviations are equal: intervals have no narrow half
#: Mean log-likelihood that the default should reach.
GOALS = {
    "yacht": 0.05,
    "boston": -2.24,
    "concrete": -2.60,
    "energy": -0.14,
    "wine_red": -0.88,
    "kin8nm": 1.33,
    "power": -2.60,
    "protein": -1.9,
}
#: The same with the option `neighbors`.
NEIGHBOR_GOALS = {"concrete": -2.15, "power": -2.40, "protein": -1.7}
#: Log-likelihood of TabPFN on the same splits with at most 10,000 training rows, from the README of the repository
#: ayhamo/Probabilistic_Point_Estimations, runs of 2025. That of naval is a density; see :func:`show_table`.
TABPFN = {
    "yacht": 0.73,
    "concrete": -2.21,
    "energy": -0.15,
    "kin8nm": 1.27,
    "naval": 7.33,
    "power": -2.28,
    "protein": -1.73,
}


@dataclass(frozen=True)
class Split:
    """Training rows and test rows of a published split."""

    X: Floats
    y: Floats
    new_X: Floats
    new_y: Floats
    seed: int

    @cached_property
    def fold(self) -> npt.NDArray[np.int64]:
        """Fold of each training row."""
        fold = np.zeros(len(self.y), dtype=np.int64)
        for k, (_, held) in enumerate(KFold(FOLDS, shuffle=True, random_state=self.seed).split(self.X)):
            fold[held] = k
        return fold

    @cached_property
    def unseen(self) -> Floats:
        """Prediction of each training row by a boosting of the rows outside its fold."""
        mean = np.zeros(len(self.y))
        for k in range(FOLDS):
            held = self.fold == k
            mean[held] = boost(self.X[~held], self.y[~held], self.seed).predict(self.X[held])
        return mean

    @property
    def error(self) -> float:
        """Out-of-fold RMSE of the boosting."""
        return float(np.sqrt(np.mean((self.y - self.unseen) ** 2)))

    @cached_property
    def lattice(self) -> Lattice:
        """Lattice of the target; the step is 0 without one."""
        return find_lattice(self.y)

    @property
    def discrete(self) -> bool:
        """True if the target is scored by log probabilities of points of the lattice."""
        return self.lattice.step > COARSE * self.error

    def on_lattice(self, law: ContinuousPredictive) -> NumberPredictive:
        """Return the law, rounded to the lattice if the target is discrete."""
        return LatticePredictive.of(law, self.lattice.step, self.lattice.offset) if self.discrete else law

    def predict_normal(self, mean: Any, scale: Any) -> NumberPredictive:
        """Return normal laws with means (N,) and standard deviations (N,)."""
        return self.on_lattice(normal_laws(mean, np.maximum(scale, self.lattice.step / math.sqrt(12.0))))


def boost(X: Floats, y: Floats, seed: int) -> Any:
    """Fit the boosting."""
    return HistGradientBoostingRegressor(random_state=seed).fit(X, y)


def normal_laws(mean: Any, scale: Any) -> ContinuousPredictive:
    """Return the prediction with means (N,) and standard deviations (N,)."""
    one = torch.zeros(1, dtype=torch.float64, device="cpu")
    loc, spread = (torch.tensor(part, dtype=torch.float64, device="cpu")[None, :, None] for part in (mean, scale))
    return ContinuousPredictive(one, one.long(), Normal(loc, spread), squeeze=True)


def run_default(split: Split) -> Iterator[Result]:
    """Fit the default."""
    before, after, fits, seconds = recalibration.predict_both(split.X, split.y, split.new_X, split.seed)
    yield "networks", before, (), seconds
    yield "default", after, fits, seconds


def run_neighbors(split: Split) -> Iterator[Result]:
    """Fit the default with the option `neighbors`."""
    before, after, fits, seconds = recalibration.predict_both(split.X, split.y, split.new_X, split.seed, neighbors=True)
    yield "networks+neighbors", before, (), seconds
    yield "neighbors", after, fits, seconds


def run_binned(split: Split) -> Iterator[Result]:
    """Fit the default with ``numbers="binned"``."""
    before, after, fits, seconds = recalibration.predict_both(
        split.X, split.y, split.new_X, split.seed, numbers="binned"
    )
    yield "networks+binned", before, (), seconds
    yield "binned", after, fits, seconds


def run_both(split: Split) -> Iterator[Result]:
    """Fit "plain" and "binned" numbers as candidates."""
    candidates = {"numbers": ["plain", "binned"]}
    _, after, fits, seconds = recalibration.predict_both(
        split.X, split.y, split.new_X, split.seed, candidates=candidates
    )
    yield "both", after, fits, seconds


def run_auto(split: Split) -> Iterator[Result]:
    """Fit the estimator as it comes."""
    _, after, fits, seconds = recalibration.predict_both(split.X, split.y, split.new_X, split.seed, numbers="auto")
    yield "auto", after, fits, seconds


def run_trees(split: Split) -> Iterator[Result]:
    """Fit the estimator with the option `trees`."""
    _, after, fits, seconds = recalibration.predict_both(
        split.X, split.y, split.new_X, split.seed, numbers="auto", trees=True
    )
    yield "trees", after, fits, seconds


def run_boosting(split: Split) -> Iterator[Result]:
    """Fit the boosting in folds and to all rows, and then its second stage."""
    start = time.perf_counter()
    mean = boost(split.X, split.y, split.seed).predict(split.new_X)
    scale = max(split.error, split.lattice.step / math.sqrt(12.0))
    law = normal_laws(mean, np.full(len(mean), scale))
    seconds = time.perf_counter() - start
    yield "boosting", split.on_lattice(law), (), seconds
    recalibrated, fits = recalibrate(split, law, scale)
    yield "boosting+stage", split.on_lattice(recalibrated), fits, time.perf_counter() - start


def recalibrate(
    split: Split, law: ContinuousPredictive, scale: float
) -> tuple[ContinuousPredictive, Sequence[RecalibrationFit]]:
    """Learn the second stage from the out-of-fold rows of the boosting, and add it to its law of the new rows."""
    encoder = StandardScaler().fit(split.X)
    centre, unit = split.y.mean(), split.y.std()
    seen = normal_laws(split.unseen, np.full(len(split.y), scale))

    def column(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device="cpu")[:, None]

    std = column(np.full(len(split.y), scale / unit))
    y = torch.tensor(split.y, device="cpu")
    rows = OutOfFoldLaws(
        x=torch.tensor(encoder.transform(split.X), device="cpu"),
        y=column((split.y - centre) / unit),
        mean=column((split.unseen - centre) / unit),
        std=std,
        log_density=(split.on_lattice(seen).log_prob(y) + (0.0 if split.discrete else math.log(unit)))[:, None],
        fold=torch.tensor(split.fold, device="cpu"),
        weight=torch.ones(len(split.y), dtype=torch.float64, device="cpu"),
        half=0.5 * split.lattice.step / unit / std if split.discrete else None,
    )
    step = torch.tensor([split.lattice.step / unit], dtype=torch.float64, device="cpu")
    stage, fits = fit_recalibration(rows, step, split.seed)
    if stage is None:
        return law, fits
    new_x = torch.tensor(encoder.transform(split.new_X), device="cpu")
    laws: Sequence[Mixture] = stage.mixtures(new_x, (law.mean[:, None] - centre) / unit, law.std[:, None] / unit)
    return add_stage(law, stage.share, [each.affine(centre, unit) for each in laws]), fits


def add_stage(law: ContinuousPredictive, share: torch.Tensor, laws: Sequence[Mixture]) -> ContinuousPredictive:
    """Return the pool of a law with laws of the residual."""
    return ContinuousPredictive(
        law.log_weight, law.structure, law.component, law.squeeze, share=share, residual_laws=tuple(laws)
    )


def run_catboost(split: Split) -> Iterator[Result]:
    """Fit CatBoost with a mean and a variance for each row."""
    from catboost import CatBoostRegressor

    start = time.perf_counter()
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        thread_count=1,
        random_seed=split.seed,
        verbose=False,
        allow_writing_files=False,
    ).fit(split.X, split.y)
    mean, variance = model.predict(split.new_X, prediction_type="RMSEWithUncertainty").T
    seconds = time.perf_counter() - start
    yield "catboost", split.predict_normal(mean, np.sqrt(variance)), (), seconds


def run_ngboost(split: Split) -> Iterator[Result]:
    """Fit NGBoost with normal laws."""
    from ngboost import NGBRegressor
    from ngboost.distns import Normal as NormalLaw

    start = time.perf_counter()
    model = NGBRegressor(Dist=NormalLaw, random_state=split.seed, verbose=False).fit(split.X, split.y)
    law = model.pred_dist(split.new_X).params
    seconds = time.perf_counter() - start
    yield "ngboost", split.predict_normal(law["loc"], law["scale"]), (), seconds


METHODS: dict[str, Callable[[Split], Iterator[Result]]] = {
    "default": run_default,
    "neighbors": run_neighbors,
    "binned": run_binned,
    "both": run_both,
    "auto": run_auto,
    "trees": run_trees,
    "boosting": run_boosting,
    "catboost": run_catboost,
    "ngboost": run_ngboost,
}
ORDER = (
    *("networks", "default", "networks+neighbors", "neighbors", "networks+binned", "binned"),
    *("both", "auto", "trees"),
    *("boosting", "boosting+stage", "catboost", "ngboost"),
)


def score(p: Any, y: Floats) -> dict[str, float]:
    """Return the scores of a prediction by name."""
    if isinstance(p, ContinuousPredictive):
        crps = float(np.mean(crps_of_mixture(p.mixture, y[:, None])))
    else:
        crps = float(p.crps(y).mean())
    scores = dict(zip(COLUMNS, map(float, [*recalibration.score(p, y), crps]), strict=True))
    if isinstance(p, ContinuousPredictive) and float(p.std.max() / p.std.min()) < 1.0 + EQUAL:
        scores |= {"narrow": math.nan, "wide": math.nan}
    return scores


def describe(part: dict[str, Any]) -> str:
    """Return the line of one fit, or of means over splits."""
    name = "log mass" if part["discrete"] else "log-likelihood"
    text = (
        f"{part['method']}: {name} {part['log_likelihood']:.3f}; CRPS {part['crps']:.4g}; RMSE {part['rmse']:.4g}; "
        f"coverage {part['coverage']:.3f} (narrow {part['narrow']:.3f}, wide {part['wide']:.3f}); worst row "
        f"{part['worst']:.1f}; {part['seconds']:.0f} s"
    )
    if part.get("weights"):
        weights = ", ".join(f"{weight:.2f}" for weight in part["weights"])
        text += f"; gain out of fold {part['gain']:+.3f}, weights {weights}"
    return text


def measure(name: str, split: int, limit: int, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of every method on one split of a table."""
    given = argparse.Namespace(tables_of="real", tables=[name], first=split, splits=1, limit=limit)
    [(_, seed, X, y, new_X, new_y, _)] = recalibration.tables(given)
    rows = Split(X, y, new_X, new_y, seed)
    for method in methods:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found, p, fits, seconds in METHODS[method](rows):
                yield {
                    **{"table": name, "split": split, "limit": limit, "rows": len(y), "method": found},
                    **score(p, new_y),
                    **{"seconds": seconds, "discrete": p.discrete, "step": rows.lattice.step},
                    "gain": fits[0].gain if fits else 0.0,
                    "weights": list(fits[0].weights.values()) if fits else [],
                }


def summarise(parts: Sequence[dict[str, Any]]) -> None:
    """Print the means of every table, and paired differences of the default from every other method."""
    tables = {(name, part["limit"]) for part in parts for name in REAL if part["table"] == name}
    for name, limit in sorted(tables, key=lambda table: (REAL.index(table[0]), table[1])):
        of_table = [part for part in parts if (part["table"], part["limit"]) == (name, limit)]
        print(f"\n{name}, {of_table[0]['rows']} training rows" + (" (limited)" if limit else ""))
        show_table(name, of_table)


def show_table(name: str, parts: Sequence[dict[str, Any]]) -> None:
    """Print a line for each method on one table, the goals, and the published value.

    The log-likelihood above that of one normal law with the RMSE of the test rows is what widths and shapes of the laws
    contribute. The log mass of a lattice less the log of its step is the log-likelihood of a density that is constant
    in each cell.
    """
    by_method = {method: {p["split"]: p for p in parts if p["method"] == method} for method in ORDER}
    default = by_method["default"]
    for method, found in by_method.items():
        if not found:
            continue
        mean = {key: float(np.mean([part[key] for part in found.values()])) for key in (*COLUMNS, "seconds")}
        first = next(iter(found.values()))
        values = [part["log_likelihood"] for part in found.values()]
        text = describe({**mean, "method": method, "discrete": first["discrete"]})
        text += f"; log-likelihood ± {standard_error(values):.3f} over {len(found)} splits"
        if first["discrete"]:
            text += f"; as a density {mean['log_likelihood'] - math.log(first['step']):.3f}"
        else:
            shape = [
                part["log_likelihood"] + 0.5 * math.log(2.0 * math.pi * math.e * part["rmse"] ** 2)
                for part in found.values()
            ]
            text += f"; above a normal law of its RMSE {np.mean(shape):+.3f}"
        if method != "default" and (common := sorted(found.keys() & default.keys())):
            change = [default[k]["log_likelihood"] - found[k]["log_likelihood"] for k in common]
            text += f"; default less this {np.mean(change):+.3f} ± {standard_error(change):.3f}"
        if gains := [part["gain"] for part in found.values() if part["weights"]]:
            text += f"; gain out of fold {np.mean(gains):+.3f}"
        goal = {"default": GOALS, "neighbors": NEIGHBOR_GOALS}.get(method, {}).get(name)
        if goal is not None:
            text += f"; goal {goal}: {'met' if mean['log_likelihood'] >= goal else 'missed'} on these splits"
        print(text)
    if name in TABPFN:
        print(f"TabPFN, published: log-likelihood {TABPFN[name]}")


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; NaN for one value."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def read(path: Path) -> list[dict[str, Any]]:
    """Return the recorded fits."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def find_methods(given: Sequence[str]) -> list[str]:
    """Return the methods whose libraries are installed, and print a line for every other one."""
    found = [method for method in given if method not in ("catboost", "ngboost") or importlib.util.find_spec(method)]
    for method in given:
        if method not in found:
            print(f"{method} is left out: it is not installed (pip install {method})")
    return found


def main() -> None:
    """Print a line for each fit, and the means of every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(REAL), choices=REAL)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="number of training rows, drawn at random; 0 is all")
    parser.add_argument(
        "--methods", nargs="+", default=["default", "boosting", "catboost", "ngboost"], choices=list(METHODS)
    )
    parser.add_argument("--out", type=Path, help="file of results, in JSON lines")
    parser.add_argument("--summary", type=Path, help="only print the means of a file of results")
    options = parser.parse_args()
    if options.summary:
        summarise(read(options.summary))
        return
    torch.set_num_threads(1)
    methods = find_methods(options.methods)
    packages = ("fathomless", "torch", "scikit-learn", "numpy", *(m for m in methods if m in ("catboost", "ngboost")))
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{versions}, {platform.machine()}, 1 thread, {datetime.now(UTC):%Y-%m-%d}", flush=True)
    parts = read(options.out) if options.out else []
    done = {(part["table"], part["split"], part["limit"], part["method"]) for part in parts}
    for split in range(options.first, options.first + options.splits):
        for name in options.tables:
            left = [method for method in methods if (name, split, options.limit, method) not in done]
            for part in measure(name, split, options.limit, left):
                parts.append(part)
                print(f"{name} {split} {describe(part)}", flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps(part) + "\n")
    summarise(parts)


if __name__ == "__main__":
    main()
