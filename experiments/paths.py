"""Toy regressions by networks of continuous depth: uncertainty away from the data (Figures 2 to 4 of the paper).

The data are 40 points of a cosine on both sides of a gap, and 40 points of a cube on four intervals. Each toy is fitted
by a network of continuous depth and, as a reference, by a Gaussian process with maximum evidence. The scores are log
densities and coverage of 95 % intervals for new points near the data, in the gaps, and outside. The preset "default" is
the regressor with default options. "paper" is the paper's network and posterior: two layers of 64 units gated by depth,
two zeros appended to the input, point estimates at depth 0, a network as the drift, and 100 Euler steps. Every weight
has the paper's diffusion σ. The paper's variance of the prior is twice that of the process, so the prior standard
deviation is σ / √2.

Bounds of networks with point estimates of the initial weights are not comparable with an evidence. The part ``bimodal``
is a posterior with two modes. The part ``monotone`` is a network without augmentation, whose draws are monotone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments import bimodal
from experiments.follow import bound, draw_paths, networks_of, published_network, rows_of, steps_of
from experiments.gaussian_process import gaussian_process
from experiments.results import Request, Result, Value, average_parts
from fathomless.data.datasets import cosine_gap, cubic
from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.estimator import ContinuousDepthRegressor
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.likelihoods import Laplace, Likelihood
from fathomless.posterior.metrics import coverage, nll
from fathomless.posterior.model import Model
from fathomless.posterior.predictive import predictive
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["TOYS", "Toy", "figure", "run", "score_regions"]

Array = npt.NDArray[Any]
_LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)


@dataclass(frozen=True)
class Toy:
    """Regression problem with a known function.

    Attributes
    ----------
    sample : callable
        (n, seed) -> X, y.
    truth : callable
        The mean at x.
    noise : float
        Standard deviation of the noise.
    diffusion : float
        σ in the paper.
    data, gap, outside : tuples of (float, float)
        Intervals of x near the data, in the gaps, and outside.
    """

    sample: Callable[[int, int], tuple[Array, Array]]
    truth: Callable[[Array], Array]
    noise: float
    diffusion: float
    data: tuple[tuple[float, float], ...]
    gap: tuple[tuple[float, float], ...]
    outside: tuple[tuple[float, float], ...]


#: The toys, by name.
TOYS: Mapping[str, Toy] = {
    "cosine": Toy(
        cosine_gap,
        lambda x: np.cos(4.0 * x + 4.0),
        0.1,
        0.5,
        ((-1.0, -0.5), (0.5, 1.0)),
        ((-0.5, 0.5),),
        ((-1.5, -1.0), (1.0, 1.5)),
    ),
    "cubic": Toy(
        cubic,
        lambda x: x**3,
        3.0,
        0.2,
        ((-4.0, -3.0), (-2.0, -1.0), (1.0, 2.0), (3.0, 4.0)),
        ((-3.0, -2.0), (-1.0, 1.0), (2.0, 3.0)),
        ((-5.0, -4.0), (4.0, 5.0)),
    ),
}
_REGIONS = ("data", "gap", "outside")


def run(request: Request) -> Result:
    """Fit both toys and the additional parts; see :class:`experiments.Module`.

    No data folder is needed. The smoke run has one short fit of each part.
    """
    full, paper = request.mode == "full", request.preset == "paper"
    own: dict[str, Any] = {
        "repetitions": 3,
        "options": {},
        "bimodal_steps": 2000,
        "bimodal_paths": 256,
        "bimodal_draws": 10,
    }
    own |= {"steps": 100, "units": 64, "draws": 10, "epochs": 3000, "paths": 200, "monotone_steps": 256}
    if not full:
        short = {"cv": 2, "epochs": 24, "learning_rate": 0.035}
        own |= {"repetitions": 1, "options": short, "bimodal_steps": 50, "bimodal_paths": 64, "bimodal_draws": 2}
        own |= {"steps": 20, "units": 16, "draws": 2, "epochs": 60, "paths": 40, "monotone_steps": 32}
    settings = {"seed": request.seed, "preset": request.preset, **own}
    fitted = _fit_as_in_paper if paper else _fit_default
    parts: dict[str, Any] = {
        f"{name}/{s}": partial(_part, settings, fitted, name, s) for name in TOYS for s in range(own["repetitions"])
    }
    if not paper:
        parts |= {f"monotone/{s}": partial(_measure_monotone, settings, s) for s in range(own["repetitions"])}
    parts |= {
        f"bimodal/{drift}": partial(bimodal.fit_posterior, drift, settings, request.seed) for drift in bimodal.DRIFTS
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name in dict.fromkeys(part.partition("/")[0] for part in parts if not part.startswith("bimodal")):
        values |= average_parts(results, name, own["repetitions"])
    curves: dict[str, Any] = {name: results[f"{name}/0"]["drawn"] for name in TOYS}
    for drift in bimodal.DRIFTS:
        part = results[f"bimodal/{drift}"]
        values |= {f"bimodal/{drift}/{key}": Value(v) for key, v in part.items() if isinstance(v, float)}
        curves[f"bimodal/{drift}"] = part["cells"]
    curves |= {f"bimodal/{name}": cells for name, cells in bimodal.exact_masses().items()}
    notes: tuple[str, ...] = ("densities in nats per row, on new points; bounds in nats, for the standardised target.",)
    if paper:
        notes += (f"{own['draws']} paths per step (the paper has 100); the cubic toy is scaled to unit variance.",)
    return Result("paths", request.mode, request.preset, request.seed, values, settings, seconds, curves, notes)


@dataclass(frozen=True)
class _Fit:
    """Fitted posterior, with its encoded rows, the encoding of x, the unit of the target and the number of paths."""

    model: Model
    likelihood: Likelihood
    rows: Rows
    encoded: Callable[[Array], Tensor]
    shift: float
    scale: float
    paths: int

    @torch.no_grad()
    def at(self, x: Array, steps: int | None = None) -> ContinuousPredictive:
        """Return the predictive distribution at x (N,)."""
        draws = draw_paths(self.model, self.encoded(x), steps or steps_of(self.model), self.paths)
        units: dict[str, Any] = {"shift": self.shift, "scale": self.scale, "squeeze": True}
        return cast(ContinuousPredictive, predictive(draws, self.likelihood, **units))


def _fit_default(settings: Mapping[str, Any], toy: Toy, X: Array, y: Array, seed: int, **more: Any) -> _Fit:
    """Fit the regressor with default options."""
    estimator = ContinuousDepthRegressor(random_state=seed, **settings["options"], **more).fit(X, y)
    target = cast(TargetScale, estimator.target_)
    rows = rows_of(estimator, X, y)

    def encoded(x: Array) -> Tensor:
        return rows_of(estimator, x[:, None], np.zeros(len(x))).x

    units = target.mean[0], target.scale[0]
    return _Fit(estimator.model_, estimator.likelihood_, rows, encoded, *units, settings["paths"])


def _fit_as_in_paper(settings: Mapping[str, Any], toy: Toy, X: Array, y: Array, seed: int) -> _Fit:
    """Fit the paper's network by the paper's protocol."""
    units = settings["units"]
    net = MLPDynamics(1, 1, hidden=(units, units), encoder="pad", augment=2, activation="swish", time="gate")
    model = published_network(net, toy.diffusion, rank=units, steps=settings["steps"], seed=seed)
    likelihood = Laplace()
    wide = float(np.abs(X).max())
    high = float(y.std()) if toy.noise > 1.0 else 1.0

    def encoded(x: Array) -> Tensor:
        return torch.as_tensor(x[:, None] / wide, dtype=torch.float32)

    rows = Rows(encoded(X[:, 0]), torch.as_tensor(y[:, None] / high, dtype=torch.float32))
    training = Training(
        epochs=settings["epochs"],
        batch_size=len(X),
        learning_rate=1e-3,
        schedule="constant",
        draws=settings["draws"],
        evaluate_every=settings["epochs"],
    )
    fit(model, likelihood, rows, training=training, seed=seed)
    return _Fit(model, likelihood, rows, encoded, 0.0, high, settings["paths"])


# ---------------------------------------------------------------------------------------------------------- the scores


def _part(settings: Mapping[str, Any], fitted: Callable[..., _Fit], name: str, s: int) -> dict[str, Any]:
    """Fit one toy; return its scores, those of a Gaussian process, and the data of the figure."""
    toy = TOYS[name]
    seed = fold_in(settings["seed"], name, s)
    X, y = toy.sample(40, seed)
    found = fitted(settings, toy, X, y, seed)
    process, evidence = gaussian_process(X[:, 0], y)
    scores = {**score_regions(found.at, toy, seed), "gp/log_evidence": evidence}
    scores |= {f"gp/{key}": value for key, value in score_regions(process, toy, seed).items()}
    steps = steps_of(found.model)
    bounds = [bound(found.model, found.likelihood, found.rows, k * steps) for k in (1, 5)]
    told = networks_of(found.model)[0].structure().statistics
    scores |= {"bound": bounds[0], "bound_lost_at_five": bounds[0] - bounds[1]}
    scores |= {key: told[key] for key in ("path_divergence", "initial_divergence", "contraction")}
    scores["kurtosis"] = _kurtosis(networks_of(found.model)[0], found.rows.x[:1])
    low, high = toy.outside[0][0], toy.outside[-1][1]
    at = np.linspace(low, high, 121)
    curves = {"x": at, "quantiles": found.at(at).quantiles(_LEVELS), "X": X[:, 0], "y": y}
    curves["process"] = process(at).quantiles(_LEVELS)
    return {**scores, "drawn": {key: np.round(np.asarray(value), 4).tolist() for key, value in curves.items()}}


def score_regions(predict: Callable[[Array], Any], toy: Toy, seed: int) -> dict[str, float]:
    """Return the mean negative log density of new points, and the coverage of 95 % intervals, in every region."""
    scores: dict[str, float] = {}
    rng = np.random.default_rng(fold_in(seed, "test"))
    for region in _REGIONS:
        x = np.concatenate([np.linspace(a, b, 100) for a, b in getattr(toy, region)])
        y = toy.truth(x) + toy.noise * rng.standard_normal(len(x))
        forecast = predict(x)
        low, high = forecast.interval(0.95)
        scores |= {f"{region}/nll": nll(forecast.log_prob(y)), f"{region}/coverage": coverage(y, low, high)}
    return scores


@torch.no_grad()
def _kurtosis(model: ContinuousDepth, x: Tensor) -> float:
    """Return the mean excess kurtosis of the biases at the last depth, over 500 paths."""
    steps = steps_of(model)
    w = model.eval().follow_paths(x, 500, model.grid(steps), as_generator(0), [steps]).weights[0][0]  # (S, M)
    sizes = [weight.size for weight in model.dynamics.moving]
    parts = zip(model.dynamics.moving, w.split(sizes, 1), strict=True)
    biases = torch.cat([part for weight, part in parts if weight.name.endswith(".bias")], 1).double()
    z = (biases - biases.mean(0)) / biases.std(0)
    return float(z.pow(4).mean() - 3.0)


def _measure_monotone(settings: Mapping[str, Any], s: int) -> dict[str, float]:
    """Return the share of monotone draws for a network whose hidden state is the input."""
    toy = TOYS["cubic"]
    seed = fold_in(settings["seed"], "monotone", s)
    X, y = toy.sample(40, seed)
    found = _fit_default(settings, toy, X, y, seed, encoder="pad", augment=0)
    at = found.encoded(np.linspace(-5.0, 5.0, 201))
    steps = settings["monotone_steps"]
    f = draw_paths(found.model, at, steps, settings["paths"]).f[:, :, 0]
    rises = f.diff(dim=1)
    return {"share": float(((rises > -1e-5).all(1) | (rises < 1e-5).all(1)).double().mean())}


def figure(result: Result) -> Any:
    """Draw the predictions on the toys, those of a Gaussian process, and the final law of the weight with two modes."""
    from experiments.pictures import panels
    from fathomless.plots import functions
    from fathomless.plots.canvas import BLUE, INK, RUST, legend, limits, start

    page, axes = panels(5, across=2, width=4.6)
    for i, name in enumerate(TOYS):
        own = result.curves[name]
        values = np.concatenate([np.quantile(own["quantiles"], [0.02, 0.98]), own["y"]])
        for ax, kind in zip(axes[2 * i : 2 * i + 2], ("quantiles", "process"), strict=True):
            functions(own["x"], own[kind], _LEVELS, X=own["X"], y=own["y"], ax=ax)
            title = "continuous depth" if kind == "quantiles" else "Gaussian process"
            ax.set_title(f"{name}: {title}", loc="left")
            legend(ax)
            ax.set_ylim(*limits(values.min(), values.max()))
    start(axes[4], "A weight with two modes", "final weight", "probability of a cell")
    edges = np.array(bimodal.EDGES)
    middle = 0.5 * (edges[1:] + edges[:-1])
    lines = {"exact": (INK, "-"), "held": (INK, ":"), "network": (BLUE, "-"), "diagonal": (RUST, "-")}
    labels = {"held": "exact, law of the start unchanged", "diagonal": "linear feedback"}
    for kind, (colour, style) in lines.items():
        axes[4].plot(middle, result.curves[f"bimodal/{kind}"], style, color=colour, label=labels.get(kind, kind))
    legend(axes[4])
    return page
