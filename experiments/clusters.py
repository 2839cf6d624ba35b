r"""Five Gaussian clusters: predictive uncertainty away from the training data. Figures 5 to 10 of the paper.

A network with 1000 rectified units is trained on 10, 50 and 200 cases of each cluster. It has spike-and-slab weights
("lrt", and "flow" with multipliers), an independent Gaussian on every weight ("dense"), or Monte Carlo dropout. The
clusters are known, so each method is compared with Bayes' rule: by the entropy over the unit square, and by the
log-likelihood of 10,000 test cases. Far outside the square entropy alone is misleading, because the logits keep growing
there. The second study therefore flags points whose largest mean logit exceeds that of 95 % of the training cases.

Four of the five printed matrices are not covariances. For a printed matrix A this module uses :math:`(A^\top A)^{1/2}`,
the covariance of a sampler that factorises A by its singular values. For so wide a network and so few cases the
evidence lower bound is largest where nearly all weights are pruned. The paper's figures come from a training that stops
long before ("budget"); "converged" trains further. The settings of this library ("calibrated") multiply the divergence
by T < 1, chosen by log-likelihood on data of other seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from experiments.results import Request, Result, Value, average
from fathomless.data.rows import Rows
from fathomless.families.baselines.model import dropout_network
from fathomless.families.sparse.model import SparseNetwork
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.bayesian import bayesian
from fathomless.nn.layers import WeightPrior
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.likelihoods import Categorical
from fathomless.posterior.metrics import auroc
from fathomless.posterior.model import Model
from fathomless.posterior.predictive import predictive
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in, seeded_globals

__all__ = ["METHODS", "PROTOCOLS", "figure", "grid", "law", "posterior", "run", "sample"]

#: Kinds of networks to compare.
METHODS = ("lrt", "flow", "dense", "dropout")
_NAMES = ("LRT", "FLOW", "dense", "dropout")
_UNITS, _CLASSES = 1000, 5
_SIDE, _WIDE = 40, 60  # points on a side of the grids over [0, 1]² and [-1, 2]²
_PUBLISHED = {"published": True, "structure_rate": 1.0, "temperature": 1.0, "inclusion": 0.5, "scale": 1.0, "draws": 10}
_DROPOUT = {"steps": 1500, "learning_rate": 1e-2, "schedule": "cosine", "scale": 100.0, "temperature": 1.0}
#: The settings of each preset.
PROTOCOLS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "budget": {
            **_PUBLISHED,
            "steps": 500,
            "learning_rate": 5e-3,
            "schedule": "constant",
            "repetitions": {"10": 3, "50": 3, "200": 3},
            "own": {"dropout": _DROPOUT},
        },
        "converged": {
            **_PUBLISHED,
            "steps": 1500,
            "learning_rate": 1e-2,
            "schedule": "cosine",
            "repetitions": {"50": 1, "200": 1},
            "methods": ("lrt", "flow", "dense"),
        },
    },
    "default": {
        "calibrated": {
            "published": False,
            "steps": 500,
            "learning_rate": 1e-2,
            "schedule": "cosine",
            "structure_rate": 3.0,
            "temperature": 1e-3,
            "inclusion": 0.5,
            "scale": 1.0,
            "draws": 20,
            "repetitions": {"10": 3, "50": 3, "200": 3},
            "own": {"dense": {"temperature": 0.02}, "dropout": {"temperature": 0.01}},
        },
    },
}


def law() -> torch.distributions.MultivariateNormal:
    """Return the five clusters."""
    mean = torch.tensor([[-8.0, -8.0], [6.0, 6.0], [-7.0, 8.0], [8.0, -8.0], [0.0, 0.0]], dtype=torch.float64)
    covariance = [
        [[6.0, -1.0], [-1.0, 3.5]],
        [[3.0, 0.0], [0.0, 3.0]],
        [[5.5317, -1.8439], [-1.8439, 3.6878]],
        [[3.9047, 0.8677], [0.8677, 5.3148]],
        [[9.0, 0.0], [0.0, 9.0]],
    ]
    return torch.distributions.MultivariateNormal(mean, torch.tensor(covariance, dtype=torch.float64))


def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` cases of every cluster: x, shape (5 count, 2), and y, shape (5 count,)."""
    clusters = law()
    noise = torch.randn(count, _CLASSES, 2, generator=generator, dtype=torch.float64)
    x = clusters.mean + torch.einsum("cij,ncj->nci", clusters.scale_tril, noise)
    return x.flatten(0, 1), torch.arange(_CLASSES).repeat(count)


def posterior(x: Tensor) -> Tensor:
    """Return log p(y | x) by Bayes' rule with equally frequent clusters, shape (N, 5)."""
    return cast(Tensor, law().log_prob(x[:, None])).log_softmax(-1)


def grid(low: float, high: float, side: int) -> Tensor:
    """Return the centres of side × side cells of a square; the first coordinate is the slower one."""
    edge = low + (high - low) * (torch.arange(side, dtype=torch.float64) + 0.5) / side
    return torch.cartesian_prod(edge, edge)


class _Cases:
    """Training and test cases of one repetition, scaled by the training cases to the unit square."""

    def __init__(self, size: int, repetition: int, seed: int, tests: int) -> None:
        x, y = sample(size, as_generator(fold_in(seed, "train", size, repetition)))
        raw, self.labels = sample(tests, as_generator(fold_in(seed, "test", repetition)))
        self.low = x.amin(0)
        self.high = x.amax(0)
        self.train = Rows(((x - self.low) / (self.high - self.low)).float(), y)
        self.test = (raw - self.low) / (self.high - self.low)

    def posterior(self, x: Tensor) -> Tensor:
        """Return log p(y | x) for scaled x."""
        return posterior(self.low + (self.high - self.low) * x)

    def entropy(self) -> Tensor:
        """Return the entropy of the class under Bayes' rule, over the unit square."""
        log_p = self.posterior(grid(0.0, 1.0, _SIDE))
        return -(log_p.exp() * log_p).sum(-1)


def run(request: Request) -> Result:
    """Train and score every method; see :class:`experiments.Module`. No data and no accelerator are needed.

    The smoke run is one short training of each method on 50 cases of each cluster, with this library's settings.
    """
    full = request.mode == "full"
    panels = PROTOCOLS[request.preset if full else "default"]
    if not full:
        panels = {"calibrated": {**panels["calibrated"], "steps": 40, "draws": 5, "repetitions": {"50": 1}}}
    settings: dict[str, Any] = {"seed": request.seed, "tests": 2000 if full else 400, "panels": panels}
    cells = [
        (name, int(size), method, i)
        for name, panel in panels.items()
        for i in range(max(panel["repetitions"].values()))
        for size, times in panel["repetitions"].items()
        for method in panel.get("methods", METHODS)
        if i < times
    ]
    parts = {"/".join(map(str, cell)): partial(_part, settings, *cell) for cell in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name, size, method in dict.fromkeys(cell[:3] for cell in cells):
        own = [results[f"{name}/{size}/{method}/{i}"]["scores"] for i in range(panels[name]["repetitions"][str(size)])]
        values |= {f"{name}/{size}/{method}/{key}": average([scores[key] for scores in own]) for key in own[0]}
    values |= _score_truth(settings)
    curves = {name.removesuffix("/0"): part["maps"] for name, part in results.items() if name.endswith("/0")}
    return Result("clusters", request.mode, request.preset, request.seed, values, settings, seconds, curves)


def _score_truth(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Score Bayes' rule as if it were a method."""
    values: dict[str, Value] = {}
    panels = settings["panels"].values()
    for size in dict.fromkeys(int(size) for panel in panels for size in panel["repetitions"]):
        scores = []
        for i in range(max(panel["repetitions"].get(str(size), 0) for panel in panels)):
            cases = _Cases(size, i, settings["seed"], settings["tests"])
            log_p = cases.posterior(cases.test)
            scores.append(_score_labels(log_p, cases.labels) | {"entropy": float(cases.entropy().mean())})
        values |= {f"true/{size}/{key}": average([own[key] for own in scores]) for key in scores[0]}
    return values


def _part(settings: Mapping[str, Any], name: str, size: int, method: str, repetition: int) -> dict[str, Any]:
    """Train one network; return its scores, and for the first repetition the data of the figure."""
    cases = _Cases(size, repetition, settings["seed"], settings["tests"])
    panel = settings["panels"][name]
    own = {**panel, **panel.get("own", {}).get(method, {})}
    seed = fold_in(settings["seed"], method, size, repetition)
    net = MLP(2, _CLASSES, _UNITS, initialisation="default" if own["published"] else "he")
    decay = WeightPrior(own["scale"])
    model: Model = (
        dropout_network(net, 1, 0.5, weight_prior=decay, seed=seed)
        if method == "dropout"
        else _sparse(method, own, seed)
    )
    training = Training(
        epochs=own["steps"],
        batch_size=len(cases.train),
        learning_rate=own["learning_rate"],
        schedule=own["schedule"],
        structure_rate=own["structure_rate"],
        structure_every=1,
        temperature=own["temperature"],
        evaluate_every=own["steps"],
    )
    fit(model, Categorical(_CLASSES), cases.train, training=training, seed=seed)
    scores, maps = _score(model, cases, own["draws"])
    if method in ("lrt", "flow"):
        scores["density"] = model.structure().statistics["density"]
    outside, more = _score_outside(model, cases, own["draws"])
    return {"scores": scores | outside, "maps": maps | more if repetition == 0 else {}}


def _sparse(method: str, own: Mapping[str, Any], seed: int) -> SparseNetwork:
    """Build a spike-and-slab network, with the initial values of the paper or of this library."""
    start = bias = SlabStart()
    flow = FlowOptions(hidden=(50, 50))
    if own["published"]:
        start = SlabStart(mean=0.01 if method == "flow" else 0.2, log_scale=(-9.0, 0.1), logit=(-15.0, 10.0))
        bias = SlabStart(mean=0.2, log_scale=(-9.0, 1.0))
        wide: dict[str, Any] = {"base_mean": (0.0, 1.0), "base_log_variance": (-9.0, 1.0), "intercept": False}
        flow = replace(flow, gate=0.0, shift=0.0, output=1.0, summary=1.0, **wide)

    def make(_: str, part: nn.Module) -> SpikeSlab:
        nn.init.kaiming_normal_(cast(Tensor, part.weight))
        nn.init.zeros_(cast(Tensor, part.bias))
        prior = SlabPrior(own["inclusion"], own["scale"])
        multiplier = flow if method == "flow" else None
        options: dict[str, Any] = {"multiplier": multiplier, "start": start, "bias_start": bias}
        return SpikeSlab(part, prior, inclusion=method != "dense", **options)

    with seeded_globals(seed):
        layers = nn.Sequential(nn.Linear(2, _UNITS), nn.ReLU(), nn.Linear(_UNITS, _CLASSES))
        return SparseNetwork(bayesian(layers, make))


@torch.no_grad()
def _predict(model: Model, x: Tensor, draws: int) -> tuple[ClassPredictive, Tensor]:
    """Return the prediction at x, and the largest of the logits averaged over draws, shape (N,)."""
    parts = [model.draw(part.float(), draws, as_generator(0)) for part in x.split(2000)]  # the same networks each time
    whole = replace(parts[0], f=torch.cat([part.f for part in parts], 1))
    mean = (whole.log_weight.exp()[:, None, None] * whole.f).sum(0)
    return cast(ClassPredictive, predictive(whole, Categorical(_CLASSES))), mean.amax(-1).double()


def _score_labels(log_p: Tensor, labels: Tensor) -> dict[str, float]:
    """Score log probabilities of test cases; `confidence` is the median of the largest class probability."""
    confident = log_p.exp().amax(-1).sort(descending=True).values
    return {
        "accuracy": float((log_p.argmax(-1) == labels).double().mean()),
        "log_likelihood": float(log_p.gather(-1, labels[:, None]).mean()),
        "confidence": float(confident[len(confident) // 2 - 1]),
    }


def _score(model: Model, cases: _Cases, draws: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Score the test cases and the unit square; return the scores and the data of the figure."""
    log_p = _predict(model, cases.test, draws)[0].log_probs
    true = cases.posterior(cases.test)
    entropy = _predict(model, grid(0.0, 1.0, _SIDE), draws)[0].entropy()
    other = cases.entropy()
    scores = _score_labels(log_p, cases.labels)
    best = _score_labels(true, cases.labels)["log_likelihood"]
    scores |= {
        "log_likelihood_missing": best - scores["log_likelihood"],
        "entropy": float(entropy.mean()),
        "entropy_gap": float((entropy - other).abs().mean()),
    }
    confidence, order = log_p.exp().amax(-1).sort(descending=True)
    right = (log_p.argmax(-1) == cases.labels).double()[order]
    curves = {
        "entropy": torch.special.entr(log_p.exp()).sum(-1).sort().values[:: len(log_p) // 100],
        "confidence": confidence[:: len(log_p) // 100],
        "accuracy": right.reshape(100, -1).mean(1),
    }
    return scores, {"map": _round(entropy)} | {name: _round(curve) for name, curve in curves.items()}


def _score_outside(model: Model, cases: _Cases, draws: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Flag points of [-1, 2]² by their largest mean logit; return shares, areas and the data of the figure."""
    x = grid(-1.0, 2.0, _WIDE)
    out = ((x < 0.0) | (x > 1.0)).any(1)
    threshold = _predict(model, cases.train.x, draws)[1].quantile(0.95)
    found, height = _predict(model, x, draws)
    uncertainty = found.uncertainty()
    flagged = height > threshold
    shared = uncertainty.weights + uncertainty.structure  # between the label and the network
    rules = {"logit": height, "entropy": uncertainty.total, "information": shared}
    scores = {f"auroc_{name}": auroc(rule[out].numpy(), rule[~out].numpy()) for name, rule in rules.items()}
    for name, part in (("outside", out), ("inside", ~out)):
        scores[f"flagged_{name}"] = float(flagged[part].double().mean())
    scores["flagged_entropy"] = float(uncertainty.total[flagged].mean()) if bool(flagged.any()) else math.nan
    drawn = {"outside_entropy": uncertainty.total, "outside_information": shared, "outside_flagged": flagged.double()}
    return scores, {name: _round(values) for name, values in drawn.items()}


def _round(values: Tensor) -> Any:
    return values.double().mul(1000.0).round().div(1000.0).tolist()


def figure(result: Result) -> Any:
    """Draw the entropy over the square by size and method, the points flagged outside, and sorted test cases."""
    from experiments.pictures import colours
    from fathomless.plots.canvas import INK, legend, start
    from fathomless.plots.canvas import figure as blank

    rows = [(name, size) for name, panel in result.settings["panels"].items() for size in panel["repetitions"]]
    high = 1.75 * (len(rows) + 2)
    page, first = blank(9.6, high + 2.9)
    first.remove()
    top, bottom = cast(Any, page.subfigures(2, 1, height_ratios=[high, 2.9], facecolor="none"))
    axes = top.subplots(len(rows) + 2, 5)
    for i, (name, size) in enumerate(rows):
        cases = _Cases(int(size), 0, result.settings["seed"], 1)
        shown = [_figure_data(result, name, size, method).get("map") for method in METHODS]
        for ax, title, values in zip(axes[i], (*_NAMES, "Bayes' rule"), [*shown, cases.entropy()], strict=True):
            _draw_map(ax, title if i == 0 else "", values, (0.0, 1.0), math.log(_CLASSES))
        axes[i, -1].plot(*cases.train.x.T.numpy(), ".", color="white", markersize=1.2)
        axes[i, 0].set_ylabel(f"{name}\n{size} per class", color=INK, fontsize=9.0)
    name, size = rows[-1]
    for line, word, most in zip(axes[-2:], ("entropy", "information"), (math.log(_CLASSES), 0.5), strict=True):
        for ax, method in zip(line, METHODS, strict=False):
            maps = _figure_data(result, name, size, method)
            image = _draw_map(ax, "", maps.get(f"outside_{word}"), (-1.0, 2.0), most)
            _hatch(ax, maps.get("outside_flagged"))
        line[0].set_ylabel(f"{word}, [-1, 2]²\n{name}, {size}", color=INK, fontsize=9.0)
        line[-1].set_axis_off()
        bar = page.colorbar(image, cax=line[-1].inset_axes([0.04, 0.04, 0.08, 0.92]))
        bar.set_label("nats; hatched: flagged", color=INK, fontsize=9.0)
        bar.ax.tick_params(colors=INK, labelsize=8.0)
        bar.outline.set_visible(False)
    name, size = rows[0]
    units = {"entropy": "nats", "confidence": "probability", "accuracy": "share in groups of 100"}
    for ax, (key, unit) in zip(bottom.subplots(1, 3), units.items(), strict=True):
        start(ax, key.capitalize(), f"test cases, sorted ({name}, {size})", unit)
        for method, colour in colours(METHODS).items():
            values = result.curves[f"{name}/{size}/{method}"][key]
            label = _NAMES[METHODS.index(method)]
            ax.plot(np.linspace(0.0, 1.0, len(values)), values, color=colour, linewidth=1.2, label=label)
        if key == "entropy":
            legend(ax)
    return page


def _figure_data(result: Result, *names: str) -> Mapping[str, Any]:
    """Return the data of the figure for a cell; dropout is trained in the first panel only."""
    first = next(iter(result.settings["panels"]))
    at = "/".join(names) if "/".join(names) in result.curves else "/".join((first, *names[1:]))
    return cast(Mapping[str, Any], result.curves.get(at, {}))


def _draw_map(ax: Any, title: str, values: Any, ends: tuple[float, float], most: float) -> Any:
    """Draw a map in nats, or an empty one if `values` is None."""
    from fathomless.plots.canvas import INK

    ax.set_facecolor("none")
    ax.set_title(title, loc="left", color=INK, fontsize=10.0)
    ax.set(xticks=[], yticks=[], xlim=ends, ylim=ends, aspect="equal")
    ax.spines[:].set_visible(False)
    shown = np.zeros((0, 0)) if values is None else _reshape(values)
    return ax.imshow(shown, origin="lower", extent=(*ends, *ends), vmin=0.0, vmax=most, cmap="viridis")


def _hatch(ax: Any, flagged: Any) -> None:
    """Hatch the flagged points of [-1, 2]², and mark the unit square."""
    if flagged is not None:
        at = -1.0 + 3.0 * (np.arange(_WIDE) + 0.5) / _WIDE
        drawn = ax.contourf(at, at, _reshape(flagged), [0.5, 1.5], colors="none", hatches=["///"])
        drawn.set(edgecolor="white", linewidth=0.0)
        ax.plot([0.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0], color="white", linewidth=1.0)


def _reshape(values: Any) -> Any:
    side = math.isqrt(len(values))
    return np.asarray(values).reshape(side, side).T  # the second coordinate goes up
