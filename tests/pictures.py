"""Calls of all plotting functions, on simple data and on difficult data."""

import functools

import matplotlib
import numpy as np
import torch
from scipy import stats

from fathomless import plots
from fathomless.families.continuous import plots as continuous_plots
from fathomless.families.depth import plots as depth_plots
from fathomless.families.manifold import plots as manifold_plots
from fathomless.families.sparse import plots as sparse_plots
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Normal
from fathomless.posterior.structure import LatentPosterior

matplotlib.use("Agg")

LONG = "average selling price per m² in 2024 (k$)"


def fresh(height: float = 3.0):
    return plots.figure(4.4, height)[1]


def history(epochs: int, *, valid: bool = True) -> list[dict[str, float]]:
    rng = np.random.default_rng(epochs)
    rows = []
    for e in range(1, epochs + 1):
        fit, weights, depth = -900 - 8000 * np.exp(-e / 6) + 20 * rng.normal(), 300 * (1 - np.exp(-e / 25)) + 80, 2.5
        row = {"epoch": e, "elbo": fit - weights - depth, "log_likelihood": fit}
        row |= {"divergence_weights": weights, "divergence_depth": depth}
        row |= {"mean_depth": 3.5 - 2 * np.exp(-e / 30), "deepest": 6.0 - (e < 10)}
        rows.append(row | ({"validation_log_likelihood": fit / 1000 - 0.1} if valid else {}))
    return rows


def horizons(epochs: int) -> list[dict[str, float]]:
    return [{"epoch": e, "mean_horizon": 8.0 + 5.0 * (1.0 - 0.9 ** (e - 1))} for e in range(1, epochs + 1)]


def law(low: int, high: int, mean: float) -> dict[int, float]:
    depth = np.arange(low, high + 1)
    mass = stats.poisson.pmf(depth, mean)
    return dict(zip(depth.tolist(), (mass / mass.sum()).tolist(), strict=True))


def table(classes: int, rows: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(classes)
    true = rng.integers(0, classes, rows)
    predicted = np.where(rng.random(rows) < 0.8, true, rng.integers(0, classes, rows))
    return np.histogram2d(true, predicted, bins=np.arange(classes + 1) - 0.5)[0].astype(int)


ONE = torch.zeros(1, dtype=torch.float64)  # log weight of a single network


def normal(loc, scale) -> ContinuousPredictive:
    """Return normal distributions of rows, (N,) or (N, T)."""
    parameters = [torch.tensor(np.asarray(values), dtype=torch.float64) for values in (loc, scale)]
    squeeze = parameters[0].ndim == 1
    parameters = [values.reshape(1, len(values), -1) for values in parameters]
    return ContinuousPredictive(ONE, ONE.long(), Normal(*parameters), squeeze=squeeze)


def classes(probs, labels) -> ClassPredictive:
    return ClassPredictive(ONE, ONE.long(), torch.tensor(probs, dtype=torch.float64).log()[None], np.array(labels))


Y, NOISE = np.random.default_rng(0).normal(size=(2, 2000))
MEAN = Y + 0.4 * NOISE
LEVELS = np.arange(1, 20) / 20
X = np.linspace(-3, 3, 50)
BANDS = np.sin(2 * X) + np.array([-1.6, -0.7, 0.0, 0.7, 1.6])[:, None] * (0.1 + X**2 / 12)
PARTS = np.random.default_rng(1).gamma(2.0, size=(3, 2000))
SEGMENTS = [f"customer segment of the northern region {i}" for i in range(4)]
INCLUSION = {"first": np.random.default_rng(2).beta(0.3, 2.0, (9, 8)), "second": np.random.default_rng(3).random(9)}
NETWORK = [[[1.0, 0.0, -0.5], [0.0, 0.0, 0.8], [0.0, 0.0, 0.0]], [[0.7, -1.2, 0.0], [0.0, 0.4, 0.0]]]
SKIP = [[[1.0, 0.0]], [[0.5, 0.0, -2.0]]]
T = np.linspace(0.0, 1.0, 21)
PATHS = np.stack([1.2 - T, 0.3 + T**2], 1) + 0.05 * np.random.default_rng(4).normal(size=(60, 21, 2)).cumsum(1)
MASSES = {0.125 * k: p for k, p in law(3, 12, 7.0).items()}
FAR = [0.031, 0.014, 0.005, 0.0]
REACH = {name: {"median": 0.3 * k, "low": 0.2 * k, "high": 0.5 * k} for k, name in enumerate(["age", LONG, "bmi"], 1)}
LAWS = LatentPosterior(
    kind="latent", weights=(0.5, 0.3, 0.2), means=tuple(map(tuple, PATHS[:3, :4, 0].tolist())), scales=((0.2,) * 4,) * 3
)
ON_A_LINE = LatentPosterior(kind="latent", weights=(1.0,), means=((0.3,),), scales=((0.1,),))
PLAIN = {
    "latent": lambda ax: manifold_plots.latent(LAWS, ax=ax),
    "modes": lambda ax: manifold_plots.modes(X, BANDS, [0.2] * 5, "area", ax=ax),
    "traces": lambda ax: plots.traces(BANDS, 400, 200, [True] * 4 + [False], ax=ax),
    "relevance": lambda ax: depth_plots.relevance(REACH, ax=ax),
    "weight_paths": lambda ax: continuous_plots.weight_paths(T, PATHS, prior=np.ones(21), ax=ax),
    "hidden_paths": lambda ax: continuous_plots.hidden_paths(T, PATHS, ax=ax),
    "divergence_profile": lambda ax: continuous_plots.divergence_profile([0.1, 0.3, 0.5], [3.1, 5.2, 4.4], ax=ax),
    "accuracy": lambda ax: continuous_plots.accuracy([5, 10, 20, 40], FAR, chosen=5, ax=ax),
    "horizon_posterior": lambda ax: continuous_plots.horizon_posterior(MASSES, prior=MASSES, ax=ax),
    "horizon_path": lambda ax: continuous_plots.horizon_path(horizons(60), unit=0.125, ax=ax),
    "inclusion_probabilities": lambda ax: sparse_plots.inclusion_probabilities(INCLUSION, ax=ax),
    "active_network": lambda ax: sparse_plots.active_network(NETWORK, inputs="abc", outputs=["yes", "no"], ax=ax),
    "depth_posterior": lambda ax: depth_plots.depth_posterior(law(1, 8, 3.5), prior=law(1, 8, 2.0), ax=ax),
    "depth_path": lambda ax: depth_plots.depth_path(history(60), ax=ax),
    "learning_curves": lambda ax: plots.learning_curves(history(60), rows=1000, ax=ax),
    "reliability": lambda ax: plots.reliability([0.4, 0.6, 0.9], [0.3, 0.6, 0.85], [20, 40, 300], ax=ax),
    "pit_histogram": lambda ax: plots.pit_histogram([40, 22, 18, 20, 17, 19, 16, 21, 5, 22], ax=ax),
    "coverage": lambda ax: plots.coverage(LEVELS, LEVELS**1.2, rows=200, ax=ax),
    "intervals": lambda ax: plots.intervals(Y, MEAN, MEAN - 0.6, MEAN + 0.6, ax=ax),
    "interval_widths": lambda ax: plots.interval_widths(Y, MEAN, MEAN - 0.6, MEAN + 0.5 + MEAN**2, ax=ax),
    "functions": lambda ax: plots.functions(X, BANDS, [0.05, 0.25, 0.5, 0.75, 0.95], X=X, y=np.sin(2 * X), ax=ax),
    "confusion": lambda ax: plots.confusion([[50, 0, 0], [0, 46, 4], [0, 3, 47]], ["one", "two", "three"], ax=ax),
    "uncertainty_split": lambda ax: plots.uncertainty_split(*PARTS, ax=ax),
    "predicted_against_observed": lambda ax: plots.predicted_against_observed(Y, MEAN, ax=ax),
    "residuals": lambda ax: plots.residuals(Y, MEAN, ax=ax),
    "predictive": lambda ax: plots.predictive(normal([0, 1, 4], [1.0, 0.5, 2.0]), y=[0.3, 2.5, 4.0], ax=ax),
    "importance": lambda ax: plots.importance(["rooms", "age", LONG], [0.9, 0.3, -0.01], [0.1, 0.1, 0.02], ax=ax),
    "contributions": lambda ax: plots.contributions(
        ["rooms = 7", "age = 80", LONG], [0.9, -0.3, 0.01], [0.7, -0.5, -0.1], [1.2, -0.2, 0.1], target="price", ax=ax
    ),
    "dependence": lambda ax: plots.dependence(X.tolist(), BANDS[2:3].T, BANDS[:1].T, BANDS[4:].T, ax=ax),
    "roc": lambda ax: plots.roc(X / 6 + 0.5, np.sqrt(X / 6 + 0.5), ax=ax),
    "precision_recall": lambda ax: plots.precision_recall(0.5 - X / 6, 0.7 + X / 20, 0.4, label=LONG, ax=ax),
    "lift": lambda ax: plots.lift(X / 6 + 0.5, 2.5 - X / 2, ax=ax),
    "thresholds": lambda ax: plots.thresholds(X / 6 + 0.5, 0.5 + X / 6, 0.5 - X / 6, ax=ax),
}
HARD = {
    "distributions of twelve rows with long names": lambda ax: plots.predictive(
        normal(Y[:40], np.exp(Y[:40])), range(12), names=[f"{LONG} {i}" for i in range(12)], target=LONG, ax=ax
    ),
    "a distribution far from its observation": lambda ax: plots.predictive(normal([1e6], [1e-3]), y=[0], ax=ax),
    "counts": lambda ax: plots.predictive(LatticePredictive.of(normal([3, 9, 2], [1, 2, 9]), 1.0), y=[3, 8, 0], ax=ax),
    "counts of thousands": lambda ax: plots.predictive(LatticePredictive.of(normal([3000], [500]), 1.0), ax=ax),
    "one possible count": lambda ax: plots.predictive(LatticePredictive.of(normal([3], [1e-3]), 1.0), y=[3], ax=ax),
    "amounts with zeros": lambda ax: plots.predictive(
        HurdlePredictive.of(normal([3, 5], [1, 2]), [0.0], np.log([0.6, 0.4])), y=[0, 4], ax=ax
    ),
    "probabilities of two classes": lambda ax: plots.predictive(
        classes([[0.2, 0.8], [1 - 1e-9, 1e-9]], ["no", "yes"]), y=["yes", "no"], ax=ax
    ),
    "probabilities of 26 classes": lambda ax: plots.predictive(
        classes(np.full((9, 26), 1 / 26), [f"class {i}" for i in range(26)]), range(9), target=LONG, ax=ax
    ),
    "probabilities of long names": lambda ax: plots.predictive(classes(np.full((3, 4), 0.25), SEGMENTS), ax=ax),
    "residuals of nine rows": lambda ax: plots.residuals(Y[:9], 1e6 * MEAN[:9], target=LONG, ax=ax),
    "forty columns that matter": lambda ax: plots.importance(
        [f"column {i}" for i in range(40)], np.arange(40)[::-1] / 40, np.full(40, 0.1), ax=ax
    ),
    "forty columns that contribute": lambda ax: plots.contributions(
        [f"{LONG} {i}" for i in range(40)], np.sin(np.arange(40)), target=LONG, ax=ax
    ),
    "categories of four classes": lambda ax: plots.dependence(
        SEGMENTS, *(np.full((4, 4), p) for p in (0.25, 0.2, 0.3)), names=SEGMENTS, column=LONG, target=LONG, ax=ax
    ),
    "fifteen dates": lambda ax: plots.dependence(
        [f"20{20 + i // 4}-0{1 + 2 * (i % 4)}-15" for i in range(15)], *(np.full((15, 1), p) for p in (2, 1, 3)), ax=ax
    ),
    "fifteen categories": lambda ax: plots.dependence(
        [f"{LONG} {i}" for i in range(15)], *(np.full((15, 1), p) for p in (2, 1, 3)), ax=ax
    ),
    "a class that is never found": lambda ax: plots.roc([0.0, 1.0], [0.0, 1.0], label=LONG, ax=ax),
    "no lift": lambda ax: plots.lift([1.0], [1.0], label=LONG, ax=ax),
    "a chain that failed": lambda ax: plots.traces([[1.0], []], 10, 5, [True, False], ax=ax),
    "one law on a line": lambda ax: manifold_plots.latent(ON_A_LINE, ax=ax),
    "one mode of a long name": lambda ax: manifold_plots.modes(X, BANDS[:1], [1.0], LONG, ax=ax),
    "forty columns": lambda ax: depth_plots.relevance({f"x{i}": REACH["age"] for i in range(40)}, ax=ax),
    "five weights with long names": lambda ax: continuous_plots.weight_paths(
        T,
        np.tile(PATHS, 3)[:, :, :5],
        prior=np.ones(21),
        names=[f"layer{i}.weight[{i}0, 1000]" for i in range(5)],
        ax=ax,
    ),
    "one path": lambda ax: continuous_plots.hidden_paths([0.0, 1.0], np.ones((1, 2, 1)), ax=ax),
    "paths of one time": lambda ax: continuous_plots.weight_paths([0.0], np.ones((9, 1, 1)), prior=[1.0], ax=ax),
    "no divergence": lambda ax: continuous_plots.divergence_profile([0.5], [0.0], ax=ax),
    "steep divergence": lambda ax: continuous_plots.divergence_profile(T[1:] - 0.025, 1e5 * T[1:] ** 9, ax=ax),
    "steps with scores": lambda ax: continuous_plots.accuracy([5, 10, 20, 40], FAR, score=FAR, chosen=5, ax=ax),
    "steps that do not matter": lambda ax: continuous_plots.accuracy([1, 2], [0.0, 0.0], score=[-1.0, -1.0], ax=ax),
    "many numbers of steps": lambda ax: continuous_plots.accuracy(np.arange(1, 30), np.arange(29) / 40, ax=ax),
    "one number of steps": lambda ax: continuous_plots.accuracy([5], [0.0], chosen=5, ax=ax),
    "one horizon": lambda ax: continuous_plots.horizon_posterior({1.0: 1.0}, ax=ax),
    "many horizons with errors": lambda ax: continuous_plots.horizon_posterior(
        {0.125 * k: p for k, p in law(1, 60, 30).items()}, prior=MASSES, errors=dict.fromkeys(MASSES, 0.1), ax=ax
    ),
    "a horizon at rest": lambda ax: continuous_plots.horizon_path(horizons(1), ax=ax),
    "one weight": lambda ax: sparse_plots.inclusion_probabilities({"only": [1.0]}, ax=ax),
    "many layers": lambda ax: sparse_plots.inclusion_probabilities({str(i): [0.1 * i] for i in range(9)}, ax=ax),
    "a network that sees its inputs twice": lambda ax: sparse_plots.active_network(
        SKIP, inputs=["size", LONG], outputs=["price"], skip=True, ax=ax
    ),
    "a network without weights": lambda ax: sparse_plots.active_network([[[0.0]]], inputs="a", outputs="b", ax=ax),
    "depths 0 to 40": lambda ax: depth_plots.depth_posterior(law(0, 40, 22), prior=law(0, 40, 10), ax=ax),
    "one depth": lambda ax: depth_plots.depth_posterior({3: 1.0}, ax=ax),
    "two depths": lambda ax: depth_plots.depth_posterior({3: 0.5, 4: 0.5}, ax=ax),
    "depth after one epoch": lambda ax: depth_plots.depth_path(history(1), ax=ax),
    "depth at rest": lambda ax: depth_plots.depth_path([{"epoch": e, "mean_depth": 3.0} for e in range(5)], ax=ax),
    "spread of the depth": lambda ax: depth_plots.depth_path([row | {"std_depth": 0.6} for row in history(30)], ax=ax),
    "depth over 2000 epochs": lambda ax: depth_plots.depth_path(history(2000), ax=ax),
    "curves of one epoch": lambda ax: plots.learning_curves(history(1), rows=1000, ax=ax),
    "curves of 2000 epochs": lambda ax: plots.learning_curves(history(2000), rows=1000, ax=ax),
    "curves without validation": lambda ax: plots.learning_curves(history(20, valid=False), ax=ax),
    "one bin": lambda ax: plots.reliability([1.0], [1.0], [40], ax=ax),
    "fifteen bins": lambda ax: plots.reliability((np.arange(15) + 0.5) / 15, np.arange(15) / 15, [200] * 15, ax=ax),
    "forecasts of a million rows": lambda ax: plots.pit_histogram(50_000 + 100 * np.arange(-10, 11), ax=ax),
    "forecasts of four rows": lambda ax: plots.pit_histogram([0, 1, 0, 2, 0, 1], ax=ax),
    "forecasts all too narrow": lambda ax: plots.pit_histogram([500, *[0] * 18, 300], ax=ax),
    "large numbers": lambda ax: plots.intervals(*(1e6 * np.stack([Y, MEAN, MEAN - 1, MEAN + 1])), target=LONG, ax=ax),
    "one width": lambda ax: plots.interval_widths([1.0], [1.1], [0.5], [1.6], ax=ax),
    "widths of zero": lambda ax: plots.interval_widths(Y, MEAN, MEAN, MEAN, target=LONG, ax=ax),
    "one interval": lambda ax: plots.intervals([1.0], [1.1], [0.5], [1.6], ax=ax),
    "intervals without width": lambda ax: plots.intervals(*np.ones((4, 9)), ax=ax),
    "two quantiles": lambda ax: plots.functions(X, BANDS[[0, 4]], [0.05, 0.95], feature=LONG, target=LONG, ax=ax),
    "one class": lambda ax: plots.confusion([[7]], ["only"], ax=ax),
    "ten classes": lambda ax: plots.confusion(table(10, 60_000), "0123456789", ax=ax),
    "26 classes": lambda ax: plots.confusion(table(26), [chr(65 + i) for i in range(26)], ax=ax),
    "100 classes": lambda ax: plots.confusion(table(100), [f"class {i}" for i in range(100)], ax=ax),
    "long names of classes": lambda ax: plots.confusion(table(4), SEGMENTS, ax=ax),
    "one row": lambda ax: plots.uncertainty_split([0.1], [0.2], [0.3], ax=ax),
    "rows without uncertainty": lambda ax: plots.uncertainty_split([0, 0, 1], [0, 0, 1], [0, 0, 1], ax=ax),
    "long tails": lambda ax: plots.predicted_against_observed(np.exp(3 * Y), np.exp(3 * MEAN), target=LONG, ax=ax),
    "constant targets": lambda ax: plots.predicted_against_observed([5.0] * 9, [5.0] * 9, ax=ax),
    "small numbers": lambda ax: plots.predicted_against_observed(1e-7 * Y, 1e-7 * MEAN, ax=ax),
    "small numbers far from zero": lambda ax: plots.predicted_against_observed(1e6 + Y, 1e6 + MEAN, ax=ax),
}
ALL = PLAIN | HARD


@functools.cache
def drawn(name: str):
    """Draw a case; return its axes and its SVG."""
    ax = ALL[name](fresh())
    return ax, plots.svg(ax)
