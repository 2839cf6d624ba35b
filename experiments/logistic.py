r"""Variable selection among twenty columns: logistic regression with spike-and-slab weights.

The response depends on nine of twenty correlated columns. A column is selected if its inclusion probability is above ½.
Three posteriors of the weights are compared: LBBNN-LRT ("lrt"), LBBNN-FLOW ("flow"), and coordinate ascent ("cs", and
"cs_given" with the columns updated in the given order). Coordinate ascent has another prior of the intercept and a
learned slab variance, so its bounds cannot be compared with those of the others. "flow*2" is the better of two fits by
the evidence lower bound, which does not use the truth.

The published fits take batches of 400 rows in the order of the file. This affects the result: the columns drift along
the file, and random batches give better bounds and select other columns. Therefore a case is here a block of 400
consecutive rows with their 400 responses, and only the order of the five blocks is random.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from experiments.results import Request, Result, Value, average
from experiments.selection import Selection, selections
from fathomless.data import datasets
from fathomless.data.rows import Rows
from fathomless.families.sparse.model import SparseNetwork
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.training import Training
from fathomless.nn.bayesian import bayesian, sparse_layers
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.posterior.likelihoods import Bernoulli
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in, seeded_globals

__all__ = ["PROTOCOLS", "SUPPORT", "Protocol", "figure", "network", "regenerate_responses", "run"]

Floats = npt.NDArray[np.float64]

#: Columns with a nonzero coefficient, counted from 1.
SUPPORT = (1, 3, 7, 11, 13, 16, 17, 18, 19)
_COEFFICIENTS = {1: -4.0, 3: 1.0, 7: 1.0, 11: 1.2, 13: -37.1, 16: 50.0, 17: -5e-5, 18: 10.0, 19: 3.0}
_INTERCEPT, _SPREAD = 99.4, 0.5
_TOGETHER = 50  # number of fits in one batched training
_BEST_OF = (2, 5, 10)

# published: σ = log(1 + e^ρ) with ρ ~ U(-5, -4); log_scale holds mean and standard deviation of log σ
_START = SlabStart(mean=0.01, log_scale=(-4.5, 0.29), logit=(1.5, 2.5))
_PRIOR = SlabPrior(0.25)
_FLOW = FlowOptions(
    hidden=(100, 100),
    intercept=False,
    gate=0.0,
    shift=0.0,
    output=1.0,
    base_mean=(0.0, 0.001),
    base_log_variance=(-9.0, 0.001),
    summary=0.001,
)


@dataclass(frozen=True)
class Protocol:
    """Settings of the networks and of their training.

    Attributes
    ----------
    fits, group : int
        Number of fits of each method, and of fits of a group. Standard errors are those of the means of groups.
    block, batch : int
        Number of rows of a block, and of blocks of a batch.
    epochs, learning_rate, structure_rate
        As in :class:`~fathomless.inference.variational.training.Training`.
    schedules : mapping of str to schedule
        Schedule of the learning rate, for each method.
    standardised : int
        First column, counted from 0, that is standardised together with all after it.
    prior : SlabPrior
        Prior of the weights.
    start : SlabStart
        Initial values of weights and bias.
    flow : FlowOptions
        Options of the multiplier.
    selections, restarts : int
        Number of runs of coordinate ascent, and number of runs from which the best is reported.
    draws : int
        Number of draws for the final estimate of the bound.
    responses : tuple of {"stored", "regenerated"}
        Responses to fit; each group has its own regenerated responses.
    """

    fits: int = 100
    group: int = 10
    block: int = 400
    batch: int = 1
    epochs: int = 500
    learning_rate: float = 0.01
    structure_rate: float = 1.0
    schedules: Mapping[str, Any] = field(default_factory=lambda: {"lrt": "constant", "flow": ((250, 1.0), (250, 0.1))})
    standardised: int = 6
    prior: SlabPrior = _PRIOR
    start: SlabStart = _START
    flow: FlowOptions = _FLOW
    selections: int = 100
    restarts: int = 20
    draws: int = 200
    responses: tuple[str, ...] = ("stored",)


#: The settings of each preset.
PROTOCOLS = {
    "paper": Protocol(),
    "default": Protocol(structure_rate=3.0, flow=replace(_FLOW, hidden=(16, 16)), responses=("stored", "regenerated")),
}


def run(request: Request) -> Result:
    """Fit every method from many seeds; see :class:`experiments.Module`.

    The data set lbbnn_logistic is needed. The smoke run has few fits and epochs.
    """
    protocol = PROTOCOLS[request.preset]
    if request.mode == "smoke":
        protocol = replace(
            protocol,
            fits=4,
            group=2,
            epochs=10,
            structure_rate=40.0,
            flow=replace(protocol.flow, hidden=(8, 8)),
            selections=1,
            restarts=1,
            draws=20,
            responses=("stored",),
        )
    dataset = datasets.load("lbbnn_logistic", request.data)
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y, dtype=np.float64)
    settings = {"seed": request.seed, "preset": request.preset, **asdict(protocol)}
    parts: dict[str, Any] = {}
    for source in protocol.responses:
        for method in ("lrt", "flow"):
            for first in range(0, protocol.fits, _TOGETHER):
                chosen = range(first, min(first + _TOGETHER, protocol.fits))
                parts[f"{source}/{method}/{first}"] = partial(
                    _train, protocol, method, X, y, source, chosen, request.seed
                )
        for method in ("cs", "cs_given") if source == "stored" and request.mode == "full" else ("cs",):
            parts[f"{source}/{method}/0"] = partial(_select, protocol, method, X, y, source, request.seed)
    kept, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    fits: dict[str, list[dict[str, Any]]] = {}
    for name, part in kept.items():
        fits.setdefault(name.rpartition("/")[0].removeprefix("stored/"), []).extend(part["fits"])
    values: dict[str, Value] = {}
    for name, own in fits.items():
        size = protocol.restarts if "cs" in name else protocol.group
        values |= _summarise(name, [own[i : i + size] for i in range(0, len(own), size)])
    values["bound_gained_by_flow"] = Value(values["flow/bound"].value - values["lrt/bound"].value)
    notes = (
        "tpr and fpr are mean true and false positive rates; bounds in nats; standard errors over groups of fits.",
        "batches are blocks of consecutive rows, as in the published fits, but their order within an epoch is random; "
        "standard deviations of slabs are e^ρ, not log(1 + e^ρ).",
    )
    return Result("logistic", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


# --------------------------------------------------------------------------------------------------------- the fits


def network(flow: FlowOptions | None, protocol: Protocol, seed: int) -> SparseNetwork:
    """Return a spike-and-slab logistic regression for blocks of rows (B, R, 20), with logits (B, R)."""

    def made(_: str, part: nn.Module) -> SpikeSlab:
        start = protocol.start
        return SpikeSlab(part, protocol.prior, multiplier=flow, start=start, bias_start=start)

    with seeded_globals(seed):
        return SparseNetwork(bayesian(nn.Sequential(nn.Linear(20, 1), nn.Flatten()), made))


def regenerate_responses(X: Floats, seed: int) -> Floats:
    """Draw responses (N,) from the law of the stored ones: logit 99.4 + Xβ + N(0, ½²)."""
    rng = np.random.default_rng(seed)
    logit = _INTERCEPT + _SPREAD * rng.standard_normal(len(X))
    logit += sum(beta * X[:, j - 1] for j, beta in _COEFFICIENTS.items())
    chosen: Floats = (rng.logistic(size=len(X)) < logit).astype(np.float64)
    return chosen


def _standardise(X: Floats, first: int) -> Floats:
    """Standardise the columns from `first` on, with the sample standard deviation."""
    part = X[:, first:]
    return np.column_stack([X[:, :first], (part - part.mean(0)) / part.std(0, ddof=1)])


def _rows(x: Floats, y: Floats, block: int) -> Rows:
    """Split rows into blocks: x (N / R, R, 20), y (N / R, R)."""
    return Rows(torch.tensor(x).float().reshape(-1, block, x.shape[1]), torch.tensor(y).float().reshape(-1, block))


def _train(
    protocol: Protocol, method: str, X: Floats, y: Floats, source: str, fits: Sequence[int], seed: int
) -> dict[str, Any]:
    """Train networks of one method in one batch; return inclusion probabilities and bound of each."""
    flow = protocol.flow if method == "flow" else None
    seeds = [fold_in(seed, "logistic", i) for i in fits]
    models = [network(flow, protocol, own) for own in seeds]
    x = _standardise(X, protocol.standardised)
    targets = [_response(X, y, source, i // protocol.group, seed) for i in fits]
    rows = [_rows(x, target, protocol.block) for target in targets]
    training = Training(
        epochs=protocol.epochs,
        batch_size=protocol.batch,
        learning_rate=protocol.learning_rate,
        structure_rate=protocol.structure_rate,
        structure_every=1,
        schedule=protocol.schedules[method],
        evaluate_every=protocol.epochs,
    )
    likelihoods = [Bernoulli(protocol.block) for _ in models]
    fit_batched(models, likelihoods, rows if source == "regenerated" else rows[0], training=training, seeds=seeds)
    return {
        "fits": [
            {
                "inclusion": sparse_layers(model)[0][1].weight.inclusion()[0].tolist(),
                "bound": _bound(model, own, protocol.draws),
            }
            for model, own in zip(models, rows, strict=True)
        ]
    }


@torch.no_grad()
def _bound(model: SparseNetwork, rows: Rows, n: int) -> float:
    """Estimate the evidence lower bound in nats, with local reparameterisation as in training."""
    model.train()
    likelihood = Bernoulli(rows.y.shape[1])
    draws = model.draw(rows.x, n, as_generator(0))
    model.eval()
    bound: Tensor = elbo(draws, likelihood, rows.y, size=len(rows)).value
    return float(bound)


def _select(protocol: Protocol, method: str, X: Floats, y: Floats, source: str, seed: int) -> dict[str, Any]:
    """Select columns by coordinate ascent from random starts, with all columns standardised."""
    x = _standardise(X, 0)
    found: list[Selection] = []
    for group, first in enumerate(range(0, protocol.selections, protocol.restarts)):
        found += selections(
            x,
            _response(X, y, source, group, seed),
            learn_slab_variance=True,
            order="given" if method == "cs_given" else "random",
            restarts=min(protocol.restarts, protocol.selections - first),
            generator=fold_in(seed, "logistic", method, group),
        )
    return {"fits": [{"inclusion": run.inclusion.tolist(), "bound": run.bound} for run in found]}


def _response(X: Floats, y: Floats, source: str, group: int, seed: int) -> Floats:
    return y if source == "stored" else regenerate_responses(X, fold_in(seed, "response", group))


# -------------------------------------------------------------------------------------------------------- the figures


def _summarise(name: str, groups: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Value]:
    """Summarise a method over all fits and over the best of several; errors are those of group means."""
    size = len(groups[0])
    kinds = {name: [list(group) for group in groups]}
    for n in sorted({size, *(n for n in _BEST_OF if size % n == 0)}):
        kinds[f"{name}*{n}"] = [[_best(group[i : i + n]) for i in range(0, len(group), n)] for group in groups]
    values = {}
    for kind, chosen in kinds.items():
        scores = [[_score(fit) for fit in group] for group in chosen]
        for score in scores[0][0]:
            values[f"{kind}/{score}"] = average([math.fsum(f[score] for f in fits) / len(fits) for fits in scores])
    return values


def _best(fits: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(fits, key=lambda fit: fit["bound"])


def _score(fit: Mapping[str, Any]) -> dict[str, float]:
    """Return rates, the bound, and 1 for each selected column."""
    found = {j for j, alpha in enumerate(fit["inclusion"], 1) if alpha > 0.5}
    true = len(found.intersection(SUPPORT))
    shares = {f"share/x{j}": float(j in found) for j in range(1, len(fit["inclusion"]) + 1)}
    false = len(found) - true
    return {"tpr": true / len(SUPPORT), "fpr": false / (len(shares) - len(SUPPORT)), "bound": fit["bound"], **shares}


def figure(result: Result) -> Any:
    """Draw the share of fits that select each column, for each method; true columns are filled and bold."""
    from experiments.pictures import panels
    from fathomless.plots.canvas import GREEN, INK, legend, start

    named = [name.removesuffix("/tpr") for name in result.values if name.endswith("/tpr")]
    methods = [m for m in named if "*" not in m and "/" not in m]
    shown = [name for m in methods for name in (m, next(n for n in named if n.startswith(f"{m}*")))]
    page, axes = panels(len(shown), across=2, width=4.6, height=1.9)
    columns = range(1, 21)
    kinds = ("nonzero coefficient", GREEN, True), ("zero coefficient", "none", False)
    for ax, method in zip(axes, shown, strict=True):
        tpr, fpr = (result.values[f"{method}/{rate}"].value for rate in ("tpr", "fpr"))
        start(ax, f"{method}: TPR {tpr:.3f}, FPR {fpr:.3f}", "", "share of fits")
        for label, colour, matters in kinds:
            own = [j for j in columns if (j in SUPPORT) == matters]
            share = [result.values[f"{method}/share/x{j}"].value for j in own]
            ax.bar(own, share, color=colour, edgecolor=GREEN if matters else INK, linewidth=1.0, label=label)
        ax.set(ylim=(0.0, 1.02), xlim=(0.3, 20.7))
        ax.set_xticks(columns, [f"x{j}" for j in columns])
        ax.tick_params(axis="x", labelsize=6.0)
        for j in SUPPORT:
            ax.get_xticklabels()[j - 1].set(color=GREEN, fontweight="bold")
        ax.grid(visible=False, axis="x")
    legend(axes[0])
    return page
