"""Spirals that turn more and more: how deep a network is found, and how well it classifies.

Points of two interleaved spirals, 1,024 each for training, validation and test, from independent streams; the rotation
runs over 0, 2, …, 30 quarter turns. Beside the network of unbounded depth (UDN) stand finite networks and a depth
uncertainty network of ten depths (DUN), built from the same layers, with the same initialisation, schedule and
temperature. All fits of one kind, over rotations and repetitions, are trained side by side.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.results import Request, Result, Value, paired, summed_up
from fathomless.data.datasets import spiral
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.batched import BatchedRuns, fit_batched, log_densities
from fathomless.inference.variational.padded import PaddedRows
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    FreeCategorical,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    StickBreaking,
    TruncatedPoisson,
    UniformPrior,
)
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["PROTOCOLS", "ROTATIONS", "Protocol", "figure", "run", "train"]

_LAWS: dict[str, Callable[[float], DepthLaw]] = {
    "poisson": TruncatedPoisson,
    "two_sided": lambda rate: TruncatedPoisson(rate, HardTruncation(0.05, 0.95)),
    "quantile": QuantilePoisson,
    "stick_breaking": StickBreaking,
}


#: Quarter turns of the spirals.
ROTATIONS = tuple(range(0, 31, 2))


@dataclass(frozen=True)
class Protocol:
    """How networks are built and trained, whatever their kind.

    Attributes
    ----------
    epochs, batch_size, learning_rate, schedule, temperature, structure_rate, structure_every
        As in :class:`~fathomless.inference.variational.training.Training`.
    law : str
        Family of the posterior over depth of the unbounded network.
    initial_depth : float
        Its λ at the start.
    initialisation : {"he", "default"}
        Of the layers.
    evaluate_every : int
        Epochs between scores of the validation rows, from which the best epoch is chosen by accuracy.
    """

    epochs: int = 2000
    batch_size: int = 256
    learning_rate: float = 5e-3
    schedule: str = "cosine"
    temperature: float = 1.0
    structure_rate: float = 1.0
    structure_every: int = 8
    law: str = "poisson"
    initial_depth: float = 2.0
    initialisation: str = "he"
    evaluate_every: int = 20


#: The settings of each preset.
PROTOCOLS = {
    "default": Protocol(),
    "paper": Protocol(
        epochs=4000,
        schedule="constant",
        structure_rate=0.1,
        structure_every=4,
        law="quantile",
        initial_depth=1.0,
        initialisation="default",
    ),
}
_FINITE = tuple(f"L{depth}" for depth in range(2, 9))
_KINDS = {"default": ("udn", *_FINITE, "dun", "udn@1", "udn@5", "udn*3"), "paper": ("udn", *_FINITE, "dun")}


def run(request: Request) -> Result:
    """Train every kind on every rotation, three times; see :class:`experiments.Module`.

    The data are drawn, and need no folder. The smoke run takes three rotations, two repetitions and few epochs.
    """
    protocol, kinds, rotations, repetitions, rows = (
        PROTOCOLS[request.preset],
        _KINDS[request.preset],
        ROTATIONS,
        3,
        1024,
    )
    if request.mode == "smoke":
        protocol = replace(protocol, epochs=60, evaluate_every=10, learning_rate=0.02)
        kinds, rotations, repetitions, rows = ("udn", "L3", "dun"), (0, 4, 8), 2, 256
    settings = {
        "seed": request.seed,
        "rows": rows,
        "repetitions": repetitions,
        "rotations": list(rotations),
        "kinds": list(kinds),
        **asdict(protocol),
    }
    cells = [(rotation, repetition) for rotation in rotations for repetition in range(repetitions)]

    def part(kind: str) -> dict[str, Any]:
        return {"cells": train(kind, protocol, cells, seed=request.seed, rows=rows, early=request.preset == "paper")}

    parts = {kind: partial(part, kind) for kind in kinds}
    found, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    return _result(
        {kind: part["cells"] for kind, part in found.items()}, settings, request.mode, request.preset, seconds
    )


def train(
    kind: str,
    protocol: Protocol,
    cells: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    rows: int = 1024,
    early: bool = False,
) -> list[dict[str, Any]]:
    """Train one kind of network on every cell (rotation, repetition) at once; return what each found.

    Parameters
    ----------
    kind : str
        "udn", "udn@RATE" (another start), "dun", or "L" and a depth; with "*M" the average of M such networks.
    protocol : Protocol
        How.
    cells : sequence of (int, int)
        Rotation and number of the repetition, which decide on the data.
    seed, rows : int
        Seed; rows of the training, of the validation and of the test set.
    early : bool
        Stop a network that classifies every validation row rightly: no later epoch could be better.
    """
    p, (base, _, times) = protocol, kind.partition("*")
    number = int(times or 1)
    starts = [(*cell, *((m,) if m else ())) for cell in cells for m in range(number)]
    sets = [_data(rows, rotation, repetition, seed) for rotation, repetition, *_ in starts]
    fitted, valid, test = ([one[k] for one in sets] for k in range(3))
    held, last = (PaddedRows.of(name, part, len(starts)) for name, part in (("validation", valid), ("test", test)))
    watch = _Watch(held, last, number, early and number == 1)
    every = fit_batched(
        [_model(base, p, fold_in(seed, base, *start)) for start in starts],
        [Categorical(2) for _ in starts],
        fitted,
        valid,
        training=Training(
            epochs=p.epochs,
            batch_size=p.batch_size,
            learning_rate=p.learning_rate,
            schedule=p.schedule,
            structure_rate=p.structure_rate,
            structure_every=p.structure_every,
            temperature=p.temperature,
            evaluate_every=p.evaluate_every,
        ),
        seeds=[fold_in(seed, "order", base, *start) for start in starts],
        callbacks=[watch],
    )
    return [_summary(cell, every[number * k : number * (k + 1)], watch.seen[k]) for k, cell in enumerate(cells)]


class _Watch:
    """Accuracy on validation and test rows of every network, or of averages of `number`, at every evaluation.

    With `early`, a network that classifies every validation row rightly is done: no later epoch can be better.
    """

    def __init__(self, valid: PaddedRows, test: PaddedRows, number: int, early: bool) -> None:
        self.valid, self.test, self.number, self.early = valid, test, number, early
        self.seen: list[list[tuple[float, float, float, float]]] = [[] for _ in range(len(valid.counts) // number)]

    def __call__(self, runs: BatchedRuns) -> None:
        if not runs.active:  # the last of them was done at the evaluation before
            return
        right = []
        for stack in (self.valid, self.test):
            density = log_densities(runs, stack.take(runs.active, slice(None)))  # (F, N), of the class that is right
            density = density.reshape(-1, self.number, density.shape[1]).logsumexp(1) - math.log(self.number)
            right += [(density > math.log(0.5)).double().mean(1).tolist(), density.double().mean(1).tolist()]
        for i, *scores in zip(runs.active[:: self.number], *right, strict=True):
            self.seen[i // self.number].append((scores[0], scores[1], scores[2], scores[3]))
            runs.members[i].stop = self.early and scores[0] == 1.0


def _summary(
    cell: tuple[int, int], members: Sequence[Fitted], seen: Sequence[tuple[float, float, float, float]]
) -> dict[str, Any]:
    """Scores of one fit where its validation accuracy, or density, was best, and at the end."""
    at = max(range(len(seen)), key=lambda j: seen[j][0])
    by = max(range(len(seen)), key=lambda j: seen[j][1])
    rows = list(zip(*(member.history[: len(seen)] for member in members), strict=True))
    depths = [math.fsum(row["mean_depth"] for row in own) / len(members) for own in rows]
    return {
        "rotation": cell[0],
        "repetition": cell[1],
        "epoch": rows[at][0]["epoch"],
        "epochs": rows[-1][0]["epoch"],
        "accuracy": seen[at][2],
        "accuracy_by_density": seen[by][2],
        "accuracy_at_end": seen[-1][2],
        "log_likelihood": seen[by][3],
        "validation": seen[by][1],
        "mean_depth": depths[at],
        "mean_depth_at_end": depths[-1],
        "depths": [round(d, 3) for d in depths[:: max(1, len(depths) // 50)]],
        "elbo": max(row["elbo"] for row in rows[-1]),
    }


def _data(rows: int, rotation: int, repetition: int, seed: int) -> tuple[Rows, Rows, Rows]:
    sets = []
    for part in ("train", "valid", "test"):
        x, y = spiral(rows, rotation, fold_in(seed, part, rotation, repetition))
        sets.append(Rows(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)))
    return sets[0], sets[1], sets[2]


def _model(kind: str, p: Protocol, seed: int) -> UnboundedDepth:
    net = MLP(2, 2, 32, initialisation=p.initialisation)
    if kind == "dun":
        return UnboundedDepth(
            net.layer,
            lambda depth: nn.Identity(),
            shared_head=lambda: net.head(1),
            law=FreeCategorical(10),
            prior=UniformPrior(10),
            seed=seed,
        )
    if kind.startswith("L"):
        return UnboundedDepth(net.layer, net.head, law=FixedDepth((int(kind[1:]) - 1,)), seed=seed)
    start = float(kind.partition("@")[2] or p.initial_depth)
    return UnboundedDepth(net.layer, net.head, law=_LAWS[p.law](start), prior=PoissonPrior(0.5), seed=seed)


def _result(
    found: Mapping[str, list[dict[str, Any]]], settings: dict[str, Any], mode: str, preset: str, seconds: float
) -> Result:
    """Sum up: averages over rotations, comparisons, depth against rotation."""
    rotations, repetitions = settings["rotations"], range(settings["repetitions"])
    table = {
        kind: {
            score: np.array([c[score] for c in cells]).reshape(len(rotations), len(repetitions))
            for score in ("accuracy", "accuracy_at_end", "log_likelihood", "mean_depth", "mean_depth_at_end")
        }
        for kind, cells in found.items()
    }
    values: dict[str, Value] = {}
    for kind, scores in table.items():
        for score in ("accuracy", "accuracy_at_end", "log_likelihood"):
            values[f"{kind}/{score}"] = summed_up(scores[score].mean(0).tolist())
        for rotation, row in zip(rotations, scores["accuracy"], strict=True):
            values[f"{kind}/accuracy/{rotation}"] = summed_up(row.tolist())
    ours, finite = table["udn"], [kind for kind in found if kind.startswith("L")]
    margins = []
    for i, rotation in enumerate(rotations):
        values[f"udn/depth/{rotation}"] = summed_up(ours["mean_depth_at_end"][i].tolist())
        best = finite[int(np.argmax([table[kind]["accuracy"][i].mean() for kind in finite]))]
        margin = _apart(ours["accuracy"][i], table[best]["accuracy"][i])
        values[f"udn/margin/{rotation}"] = margin
        margins.append(margin.value + 2.0 * (margin.error or 0.0))
    values["udn/least_margin"] = Value(min(margins))
    for a, b in (("udn", "L4"), ("L4", "L3"), ("L3", "L5"), ("udn", "dun")):
        if {a, b} <= set(table):
            values[f"{a}-{b}"] = paired(table[a]["accuracy"].mean(0).tolist(), table[b]["accuracy"].mean(0).tolist())
    easy = [i for i, rotation in enumerate(rotations) if rotation <= 24]
    depth = ours["mean_depth_at_end"][easy].mean(1)
    values["udn/rank_correlation"] = Value(float(np.corrcoef(np.arange(len(easy)), depth.argsort().argsort())[0, 1]))
    starts = [kind for kind in table if kind.partition("@")[0] == "udn"]
    if len(starts) > 1:
        each = np.stack([table[kind]["mean_depth_at_end"][easy].mean(1) for kind in starts])
        values["udn/starts_apart"] = Value(float((each.max(0) - each.min(0)).max()))
    curves = {kind: [c["depths"] for c in cells] for kind, cells in found.items() if kind in starts}
    return Result("spiral", mode, preset, settings["seed"], values, settings, seconds, curves=curves)


def _apart(a: Any, b: Any) -> Value:
    """Difference of two means over independent repetitions, with its standard error."""
    one, other = summed_up(a.tolist()), summed_up(b.tolist())
    return Value(one.value - other.value, math.hypot(one.error or 0.0, other.error or 0.0), one.n)


def figure(result: Result) -> Any:
    """Draw accuracy and mean depth against rotation (Figures 3a and 3b), and the way of the mean depth in training."""
    from experiments.pictures import colours, panels
    from fathomless.plots.canvas import GREEN, legend, start

    rotations, kinds = result.settings["rotations"], result.settings["kinds"]
    page, axes = panels(3, across=1, width=6.4, height=2.8)
    shown = [kind for kind in kinds if "@" not in kind]
    start(axes[0], "Accuracy on test rows", "rotation (quarter turns)", "")
    for kind, colour in colours(shown).items():
        row = [result.values[f"{kind}/accuracy/{rotation}"] for rotation in rotations]
        axes[0].errorbar(
            rotations,
            [v.value for v in row],
            yerr=[v.error or 0.0 for v in row],
            color=colour,
            linewidth=2.0 if kind == "udn" else 1.0,
            linestyle="-" if kind in ("udn", "dun") else "--",
            label=kind,
        )
    legend(axes[0])
    start(axes[1], "Mean depth where training ended", "rotation (quarter turns)", "layers")
    row = [result.values[f"udn/depth/{rotation}"] for rotation in rotations]
    axes[1].errorbar(rotations, [v.value for v in row], yerr=[v.error or 0.0 for v in row], color=GREEN, marker="o")
    start(axes[2], "Mean depth during training", "epoch", "layers")
    for path in result.curves["udn"]:
        step = result.settings["epochs"] / max(len(path), 1)
        axes[2].plot([step * (i + 1) for i in range(len(path))], path, color=GREEN, linewidth=0.6, alpha=0.5)
    return page
