"""Does the posterior over depth follow the data? Tables whose truth is known, by the estimators as they come.

Noise, a line, a product and a wave in 600 rows of five columns; spirals of several rotations; tables that a random
residual network of 1, 2, 4 or 8 layers has made. Beside the default stands what it was before: depth moved by the
gradient of the evidence bound (``structure_from="elbo"``), from two starts. Every option is left as it comes, but for
those that make the small version small.
"""

import math
import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.results import Request, Result, Value, summed_up
from fathomless.data.datasets import spiral
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["KINDS", "TABLES", "figure", "run", "table"]

#: Options of each kind of estimator.
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "one": {"cv": 1},
    "elbo": {"structure_from": "elbo"},
    "elbo@8": {"structure_from": "elbo", "structure_from__initial_depth": 8.0},
}
#: Truths.
TABLES = (
    "noise",
    "linear",
    "product",
    "spiral2",
    "spiral10",
    "spiral18",
    "spiral22",
    "spiral26",
    "spiral30",
    "teacher1",
    "teacher2",
    "teacher4",
    "teacher8",
)
_SCORES = ("log_likelihood", "mean_depth", "error", "poisson", "coverage", "accuracy", "seconds")
Array = npt.NDArray[Any]


def table(name: str, rows: int, seed: int) -> tuple[Array, Array]:
    """Draw a table whose truth is known.

    Parameters
    ----------
    name : str
        One of "noise", "linear", "product", "wave", or "spiral" and "teacher" with a number: the rotation, in quarter
        turns, and the layers of the network that makes it.
    rows, seed : int
        How many, and which.

    Raises
    ------
    DataError
        For another name.
    """
    rng = np.random.default_rng(fold_in(seed, name, rows))
    if name.startswith("spiral"):
        return spiral(rows, float(name.removeprefix("spiral")), fold_in(seed, name, rows))
    x = rng.normal(size=(rows, 5))
    if name.startswith("teacher"):
        made = np.random.default_rng(fold_in(seed, name))  # the same network for training and test rows
        h = x @ made.normal(size=(5, 8)) / math.sqrt(5.0)
        for _ in range(int(name.removeprefix("teacher"))):
            h = h + np.tanh(1.5 * h @ made.normal(size=(8, 8)) / math.sqrt(8.0))
        y = h @ made.normal(size=8) / np.sqrt(np.mean(np.sum(h**2, 1)))
        return x, y + 0.1 * rng.normal(size=rows)
    match name:
        case "noise":
            y = np.zeros(rows)
        case "linear":
            y = x[:, 0] - x[:, 1] + 0.5 * x[:, 2]
        case "product":
            y = x[:, 0] * x[:, 1] + x[:, 2]
        case "wave":
            y = 3.0 * np.sin(4.0 * x[:, 0]) * np.cos(3.0 * x[:, 1])
        case _:
            raise DataError(f"the table {name!r} was asked for; allowed are {', '.join(TABLES)}")
    return x, y + 0.5 * rng.normal(size=rows)


def run(request: Request) -> Result:
    """Fit every kind to every table; see :class:`experiments.Module`.

    There is no paper to follow: both presets are the same. The data are drawn, and need no folder.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "tables": list(TABLES if full else TABLES[1:3]),
        "kinds": KINDS if full else {"default": {"cv": 3, "epochs": 150, "width": 16, "learning_rate": 0.02}},
        "seeds": 2 if full else 1,
        "rows": {name: 1024 if name.startswith("spiral") else 2000 if name[0] == "t" else 600 for name in TABLES}
        if full
        else dict.fromkeys(TABLES, 200),
    }
    parts = {
        f"{name}/{kind}/{s}": (lambda n=name, o=options, s=s: _scores(n, o, s, settings))
        for name in settings["tables"]
        for kind, options in settings["kinds"].items()
        for s in range(settings["seeds"])
    }
    found, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name in settings["tables"]:
        for kind in settings["kinds"]:
            each = [found[f"{name}/{kind}/{s}"] for s in range(settings["seeds"])]
            for score in _SCORES:
                own = [one[score] for one in each if one[score] is not None]
                if own:
                    values[f"{name}/{kind}/{score}"] = summed_up(own)
            for depth, mass, error in each[0]["posterior"]:
                values[f"{name}/{kind}/weight/{depth}"] = Value(mass, error or None)
    notes = ("both presets are the same: this experiment is in no paper",) if request.preset == "paper" else ()
    return Result("structure", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _scores(name: str, options: dict[str, Any], s: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Fit one estimator; return its posterior and its scores on 2,000 fresh rows."""
    rows, seed = settings["rows"][name], settings["seed"] + s
    (X, y), (X_test, y_test) = table(name, rows, seed), table(name, 2000, seed)
    start = time.perf_counter()
    kind = UnboundedDepthClassifier if name.startswith("spiral") else UnboundedDepthRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = kind(random_state=seed).set_params(**options).fit(X, y)
    seconds = time.perf_counter() - start
    errors, weights = estimator.depth_posterior_error_, estimator.fit_diagnostics_.structure
    scores: dict[str, Any] = {
        "log_likelihood": float(estimator.predict_dist(X_test).log_prob(y_test).mean()),
        "mean_depth": estimator.structure_.statistics["mean_depth"],
        "error": None if weights is None else weights.mean_error,
        "poisson": None if weights is None else weights.poisson_rate,
        "seconds": seconds,
        "coverage": None,
        "accuracy": None,
        "posterior": [(depth, mass, errors.get(depth, 0.0)) for depth, mass in estimator.depth_posterior_.items()],
    }
    if isinstance(estimator, UnboundedDepthRegressor):
        low, high = estimator.predict_interval(X_test)
        scores["coverage"] = float(np.mean((low <= y_test) & (y_test <= high)))
    else:
        scores["accuracy"] = float(np.mean(estimator.predict(X_test) == y_test))
    return scores


def figure(result: Result) -> Any:
    """Draw the posterior over depth of the default for every table, with standard errors."""
    from experiments.pictures import panels
    from fathomless.plots.canvas import GREEN, INK, start

    tables = list(result.settings["tables"])
    page, axes = panels(len(tables), across=min(5, len(tables)), width=2.6, height=2.2)
    for ax, name in zip(axes, tables, strict=True):
        prefix = f"{name}/default/weight/"
        bars = {int(key.removeprefix(prefix)): v for key, v in result.values.items() if key.startswith(prefix)}
        mean = result.values[f"{name}/default/mean_depth"].value
        start(ax, f"{name}: mean {mean:.1f}", "layers", "weight")
        masses = np.array([v.value for v in bars.values()])
        errors = np.array([v.error or 0.0 for v in bars.values()])
        ax.bar(list(bars), masses, 0.8, color=GREEN)
        ends = np.stack([np.minimum(errors, masses), np.minimum(errors, 1.0 - masses)])
        ax.errorbar(list(bars), masses, ends, fmt="none", ecolor=INK, elinewidth=1.0, capsize=2.0)
        ax.set_ylim(0.0, 1.05)
        ax.set_xlim(-0.7, 10.7)
    return page
