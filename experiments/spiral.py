"""Spirals of increasing rotation: posterior depth and test accuracy.

The data are points of two interleaved spirals, 1,024 each for training, validation and test, from independent streams.
The rotation is 0, 2, …, 30 quarter turns. The network of unbounded depth (UDN) is compared with finite networks and
with a depth uncertainty network of ten depths (DUN). All have the same layers, initialisation, schedule and
temperature. All fits of one kind, over rotations and repetitions, are trained in one batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.results import Request, Result, Value, average, paired_difference
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
    """Settings of the networks and of their training, shared by all kinds.

    Attributes
    ----------
    epochs, batch_size, learning_rate, schedule, temperature, structure_rate, structure_every
        As in :class:`~fathomless.inference.variational.training.Training`.
    law : str
        Family of the posterior over depth of the unbounded network.
    initial_depth : float
        Initial λ of that family.
    initialisation : {"he", "default"}
        Initialisation of the layers.
    evaluate_every : int
        Number of epochs between evaluations on the validation set; the best epoch is chosen by its accuracy.
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

    The data are generated; no data folder is needed. The smoke run has three rotations, two repetitions and few epochs.
    """
    protocol = PROTOCOLS[request.preset]
    kinds = _KINDS[request.preset]
    rotations = ROTATIONS
    repetitions = 3
    rows = 1024
    if request.mode == "smoke":
        protocol = replace(protocol, epochs=60, evaluate_every=10, learning_rate=0.02)
        kinds = ("udn", "L3", "dun")
        rotations = (0, 4, 8)
        repetitions = 2
        rows = 256
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
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    return _result(
        {kind: part["cells"] for kind, part in results.items()}, settings, request.mode, request.preset, seconds
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
    """Train one kind of network on all cells (rotation, repetition) in one batch; return the scores of each.

    Parameters
    ----------
    kind : str
        "udn", "udn@RATE" (another initial λ), "dun", or "L" and a depth; with "*M" the average of M such networks.
    protocol : Protocol
        Settings.
    cells : sequence of (int, int)
        Rotation and index of the repetition, which determine the data.
    seed, rows : int
        Seed; number of rows of each of the training, validation and test sets.
    early : bool
        Stop a network when its validation accuracy is 1, since no later epoch can be better.
    """
    p = protocol
    base, _, times = kind.partition("*")
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
    """Callback that scores validation and test rows at every evaluation, for networks or averages of `number` networks.

    With `early`, a network stops when its validation accuracy is 1, since no later epoch can be better.
    """

    def __init__(self, valid: PaddedRows, test: PaddedRows, number: int, early: bool) -> None:
        self.valid, self.test, self.number, self.early = valid, test, number, early
        self.seen: list[list[tuple[float, float, float, float]]] = [[] for _ in range(len(valid.counts) // number)]

    def __call__(self, runs: BatchedRuns) -> None:
        if not runs.active:  # all have stopped at an earlier evaluation
            return
        right = []
        for stack in (self.valid, self.test):
            density = log_densities(runs, stack.take(runs.active, slice(None)))  # (F, N), of the true class
            density = density.reshape(-1, self.number, density.shape[1]).logsumexp(1) - math.log(self.number)
            right += [(density > math.log(0.5)).double().mean(1).tolist(), density.double().mean(1).tolist()]
        for i, *scores in zip(runs.active[:: self.number], *right, strict=True):
            self.seen[i // self.number].append((scores[0], scores[1], scores[2], scores[3]))
            runs.members[i].stop = self.early and scores[0] == 1.0


def _summary(
    cell: tuple[int, int], members: Sequence[Fitted], seen: Sequence[tuple[float, float, float, float]]
) -> dict[str, Any]:
    """Return scores of one fit at the epochs of best validation accuracy and best density, and at the end."""
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
    """Return averages over rotations, comparisons, and depth against rotation."""
    rotations = settings["rotations"]
    repetitions = range(settings["repetitions"])
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
            values[f"{kind}/{score}"] = average(scores[score].mean(0).tolist())
        for rotation, row in zip(rotations, scores["accuracy"], strict=True):
            values[f"{kind}/accuracy/{rotation}"] = average(row.tolist())
    ours = table["udn"]
    finite = [kind for kind in found if kind.startswith("L")]
    margins = []
    for i, rotation in enumerate(rotations):
        values[f"udn/depth/{rotation}"] = average(ours["mean_depth_at_end"][i].tolist())
        best = finite[int(np.argmax([table[kind]["accuracy"][i].mean() for kind in finite]))]
        margin = _difference(ours["accuracy"][i], table[best]["accuracy"][i])
        values[f"udn/margin/{rotation}"] = margin
        margins.append(margin.value + 2.0 * (margin.error or 0.0))
    values["udn/least_margin"] = Value(min(margins))
    for a, b in (("udn", "L4"), ("L4", "L3"), ("L3", "L5"), ("udn", "dun")):
        if {a, b} <= set(table):
            values[f"{a}-{b}"] = paired_difference(
                table[a]["accuracy"].mean(0).tolist(), table[b]["accuracy"].mean(0).tolist()
            )
    easy = [i for i, rotation in enumerate(rotations) if rotation <= 24]
    depth = ours["mean_depth_at_end"][easy].mean(1)
    values["udn/rank_correlation"] = Value(float(np.corrcoef(np.arange(len(easy)), depth.argsort().argsort())[0, 1]))
    starts = [kind for kind in table if kind.partition("@")[0] == "udn"]
    if len(starts) > 1:
        each = np.stack([table[kind]["mean_depth_at_end"][easy].mean(1) for kind in starts])
        values["udn/starts_apart"] = Value(float((each.max(0) - each.min(0)).max()))
    curves = {kind: [c["depths"] for c in cells] for kind, cells in found.items() if kind in starts}
    return Result("spiral", mode, preset, settings["seed"], values, settings, seconds, curves=curves)


def _difference(a: Any, b: Any) -> Value:
    """Return the difference of two means over independent repetitions, with its standard error."""
    one, other = average(a.tolist()), average(b.tolist())
    return Value(one.value - other.value, math.hypot(one.error or 0.0, other.error or 0.0), one.n)


def figure(result: Result) -> Any:
    """Draw accuracy and mean depth against rotation (Figures 3a and 3b), and the mean depth during training."""
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
    start(axes[1], "Mean depth at the end of training", "rotation (quarter turns)", "layers")
    row = [result.values[f"udn/depth/{rotation}"] for rotation in rotations]
    axes[1].errorbar(rotations, [v.value for v in row], yerr=[v.error or 0.0 for v in row], color=GREEN, marker="o")
    start(axes[2], "Mean depth during training", "epoch", "layers")
    for path in result.curves["udn"]:
        step = result.settings["epochs"] / max(len(path), 1)
        axes[2].plot([step * (i + 1) for i in range(len(path))], path, color=GREEN, linewidth=0.6, alpha=0.5)
    return page
