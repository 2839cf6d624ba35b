"""Densities of nine tables by infinite graphs: samples compared with data, and log densities of held-out rows.

Half of each table is the training set and half the test set (500 points each for generated tables). `ratio` is the
squared Hellinger distance between samples of the model and the test rows
(:func:`~experiments.kernel_density.hellinger_samples`), divided by that between training and test rows. It is given for
the selected chains and for all chains. Held-out log densities are compared with a kernel density estimate,
scikit-learn's Bayesian mixture of Gaussians, and a small normalising flow. Columns are divided by the standard
deviation of the training rows. Every estimator has default options; "budget" lists the tables with shorter chains.
"""

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor, nn

from experiments.kernel_density import KernelDensity, hellinger_samples
from experiments.results import Request, Result, Value, average_parts, paired_difference
from fathomless.data import datasets
from fathomless.families.graph.estimator import IndianChefsDensity
from fathomless.families.graph.state import Floats
from fathomless.nn.flows import Flow
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in, seeded_globals

__all__ = ["TABLES", "figure", "run", "table"]

#: Names of the tables, the small ones first.
TABLES = ("geyser", "iris", "moons", "ring", "pinwheel", "yeast", "cloud", "wine", "abalone")
_DRAWN: dict[str, Callable[..., tuple[Floats, Any]]] = {
    "moons": datasets.moons,
    "ring": partial(datasets.rings, classes=1),
    "pinwheel": datasets.pinwheel,
}
_FILES = {"geyser": "faithful", "iris": "iris", "yeast": "yeast", "cloud": "cloud", "abalone": "abalone"}
_SUBSETS = 6  # samples drawn from a model
_RATE, _PATIENCE = 2e-3, 300  # learning rate and early stopping of a flow


def table(name: str, rows: int, seed: int, data: Any = None) -> tuple[Floats, Floats]:
    """Return training and test rows of equal size, scaled by the training rows.

    Parameters
    ----------
    name : str
        One of :data:`TABLES`.
    rows : int
        Number of training rows of a generated table; largest number of training rows of another one.
    seed : int
        Seed of the split.
    data : path, optional
        Folder with the data sets.
    """
    if name in _DRAWN:
        X = _DRAWN[name](2 * rows, fold_in(seed, name))[0]
    else:
        X = _read(name, data)
        X = X[np.random.default_rng(fold_in(seed, name)).permutation(len(X))[: 2 * rows]]
    half = len(X) // 2
    scale = X[:half].std(0)
    return X[:half] / scale, X[half : 2 * half] / scale


def _read(name: str, data: Any) -> Floats:
    if name == "wine":
        wine = datasets.load("wine_red", data)
        return np.column_stack([wine.X, np.asarray(wine.y)])
    return np.asarray(datasets.load(_FILES[name], data).X, dtype=np.float64)


def run(request: Request) -> Result:
    """Fit every table; see :class:`experiments.Module`.

    The preset "paper" also compares priors over graphs: cascading buffets, as in the paper's table.
    """
    full, paper = request.mode == "full", request.preset == "paper"
    small, large = ("geyser", "iris", "moons", "ring", "pinwheel"), ("yeast", "cloud", "wine", "abalone")
    settings: dict[str, Any] = {
        "seed": request.seed,
        "priors": ["icp", "cibp", "ecibp"] if paper else ["icp"],
        "splits": (dict.fromkeys(small, 5) | dict.fromkeys(large, 1)) if full else {"ring": 1},
        "rows": 10_000 if full else 120,
        "drawn": 500 if full else 120,
        "flow_steps": 3000 if full else 100,
        "budget": {name: {"chains": 4, "sweeps": 2000} for name in large} if full else {},
        "options": {} if full else {"chains": 2, "sweeps": 600, "states": 100},
    }
    if full and paper:  # three priors instead of one: fewer splits, and only tables with long chains
        settings["splits"] = dict.fromkeys(small, 2)
    parts = {
        f"{name}/{prior}/{s}": partial(_part, settings, request.data, name, prior, s)
        for name, splits in settings["splits"].items()
        for prior in settings["priors"]
        for s in range(splits)
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name, splits in settings["splits"].items():
        for prior in settings["priors"]:
            own = f"{name}/{prior}"
            values |= average_parts(results, own, splits)
            for other in ("kernel", "mixture", "flow"):
                pairs = ([results[f"{own}/{s}"][key] for s in range(splits)] for key in ("log_density", other))
                values[f"{own}/beats_{other}"] = paired_difference(*pairs)
    return Result("densities", request.mode, request.preset, request.seed, values, settings, seconds)


def _part(settings: Mapping[str, Any], data: Any, name: str, prior: str, s: int) -> dict[str, Any]:
    """Fit one split of one table."""
    seed = fold_in(settings["seed"], "densities", s)
    train, test = table(name, settings["drawn"] if name in _DRAWN else settings["rows"], seed, data)
    options = {**settings["options"], **settings["budget"].get(name, {})}
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # convergence is in the diagnostics of the chains
        density = IndianChefsDensity(prior=prior, random_state=seed, **options).fit(train)
        taken = time.perf_counter() - begun
        every = density.weighed_by("all")
        log_density, error = density.score_samples(test, return_error=True)
        of_all = every.score_samples(test)
    inside = np.isfinite(log_density)
    baseline = hellinger_samples(train, test, seed=seed).square
    distances = {kind: _mean_distance(one, test, seed) for kind, one in (("selected", density), ("all", every))}
    fits = [chain["log_likelihood"] for chain in density.chains_ if chain["states"]]
    hidden = density.diagnostics_of_all_["hidden"]
    return {
        "baseline": baseline,
        "distance": distances["selected"],
        "ratio": distances["selected"] / baseline,
        "ratio_all": distances["all"] / baseline,
        "log_density": float(log_density[inside].mean()),
        "log_density_all": float(of_all[np.isfinite(of_all)].mean()),
        "monte_carlo_error": float(np.mean(error[inside])),
        "outside": float((~inside).mean()),
        **{kind: float(one(train, test, seed, settings)[inside].mean()) for kind, one in _PEERS.items()},
        "hidden": density.structure_.statistics["mean_hidden"],
        "edges": density.structure_.statistics["mean_edges"],
        "used": float(sum(chain.get("weight", 0.0) > 0.0 for chain in density.chains_)),
        "apart": max(fits) - min(fits),
        "rhat_of_all": hidden.rhat,
        "seconds": taken,
    }


def _mean_distance(density: IndianChefsDensity, test: Floats, seed: int) -> float:
    """Return the mean squared Hellinger distance between samples of the model and the test rows."""
    drawn = [density.sample(len(test), random_state=fold_in(seed, "fantasies", k)) for k in range(_SUBSETS)]
    return float(np.mean([hellinger_samples(one, test, seed=seed).square for one in drawn]))


def _score_kernel(train: Floats, test: Floats, seed: int, settings: Mapping[str, Any]) -> Floats:
    return KernelDensity.of(train, seed=seed).log_prob(test)


def _score_mixture(train: Floats, test: Floats, seed: int, settings: Mapping[str, Any]) -> Floats:
    """Fit scikit-learn's variational mixture of at most 20 Gaussians."""
    with warnings.catch_warnings(action="ignore"):
        most = min(20, len(train) // 5)
        fitted = BayesianGaussianMixture(n_components=most, max_iter=1000, random_state=seed % 2**32).fit(train)
    return np.asarray(fitted.score_samples(test))


def _score_flow(train: Floats, test: Floats, seed: int, settings: Mapping[str, Any]) -> Floats:
    """Train a masked autoregressive flow of five steps, with early stopping on a fifth of the rows."""
    noise = as_generator(fold_in(seed, "flow"))
    x = torch.from_numpy(train).float()
    shift = x.mean(0)
    scale = x.std(0)
    order = torch.randperm(len(x), generator=noise)
    held, own = (((x - shift) / scale)[rows] for rows in (order[: len(x) // 5], order[len(x) // 5 :]))
    with seeded_globals(fold_in(seed, "weights")):
        flow = _Flow(x.shape[1])
    optimiser = torch.optim.Adam(flow.parameters(), lr=_RATE)
    best = -torch.inf
    state = copy.deepcopy(flow.state_dict())
    since = 0
    for _ in range(settings["flow_steps"]):
        rows = own[torch.randint(len(own), (256,), generator=noise)]
        optimiser.zero_grad()
        (-flow(rows).mean()).backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimiser.step()
        with torch.no_grad():
            score = float(flow(held).mean())
        since += 1
        if score > best:
            best = score
            state = copy.deepcopy(flow.state_dict())
            since = 0
        if since > _PATIENCE:
            break
    flow.load_state_dict(state)
    with torch.no_grad():
        log_p = flow((torch.from_numpy(test).float() - shift) / scale) - scale.log().sum()
    return np.asarray(log_p.double().numpy())


class _Flow(nn.Module):
    """Normalising flow: columns are scaled up, then mapped to a standard normal law by gated steps that only shrink."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.stretch = nn.Parameter(
            torch.full((columns,), 0.63)
        )  # the loss of scale in five gates that are nearly open
        self.flow = Flow(columns, "iaf", steps=5, hidden=(50, 50))

    def forward(self, x: Tensor) -> Tensor:
        """Return the log density of rows, shape (N,)."""
        z, log_det = self.flow(x * self.stretch.exp())
        log_p: Tensor = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1) + log_det + self.stretch.sum()
        return log_p


_PEERS = {"kernel": _score_kernel, "mixture": _score_mixture, "flow": _score_flow}


def figure(result: Result) -> Any:
    """Draw the ratios to the baseline, and the gain in held-out log density over other estimators, by table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    names = list(result.settings["splits"])
    priors = result.settings["priors"]
    page, axes = panels(2, across=2, width=5.0, height=3.4)
    start(axes[0], "Squared Hellinger distance / that of training rows", "table", "ratio")
    shown = {prior: [result.values[f"{name}/{prior}/ratio"] for name in names] for prior in priors}
    shown["all chains"] = [result.values[f"{name}/{priors[0]}/ratio_all"] for name in names]
    draw_dots(axes[0], names, shown)
    legend(axes[0])
    start(axes[1], "Held-out log density: graphs minus others", "table", "nats per row")
    others = {kind: [result.values[f"{name}/{priors[0]}/beats_{kind}"] for name in names] for kind in _PEERS}
    draw_dots(axes[1], names, others)
    legend(axes[1])
    return page
