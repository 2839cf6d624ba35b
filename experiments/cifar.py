"""Posterior over depth for image classes of different difficulty (Nazaret and Blei 2022, Table 2, Figures 4 and 7).

Three tasks from CIFAR-10: deer against car, which networks hardly ever confuse; cat against dog, which they confuse
most; all ten classes. With an accelerator, a full run trains the paper's architecture on all images. It takes 30 epochs
of a one-cycle schedule by default, and the paper's 500 epochs and schedule with ``preset="paper"``. Without an
accelerator it trains a narrow version of the architecture with group normalisation, on a subset of the images of the
two pairs, halved in size and not augmented.

As in the paper, there is no validation set: the results are those of the last epoch.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.results import Request, Result, Value, average, paired_difference
from fathomless.data import datasets
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.objective import log_predictive
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import ConvNet
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    TruncatedPoisson,
)
from fathomless.posterior.likelihoods import Categorical
from fathomless.posterior.structure import ListedPosterior
from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["Pixels", "Setup", "figure", "run", "setup", "train"]

_TASKS: Mapping[str, tuple[int, ...]] = {"deer_car": (4, 1), "cat_dog": (3, 5), "all": tuple(range(10))}
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_CHUNK = 1000  # images scored at once
_SMALL = (
    "without a GPU the network is narrow, and fewer images (halved in size, not augmented) and fewer epochs are used: "
    "depths and accuracies are not comparable with the paper's"
)


@dataclass(frozen=True)
class Setup:
    """Settings of a run.

    Attributes
    ----------
    tasks : tuple of str
        Names of the tasks (sets of classes).
    seeds : int
        Number of repetitions.
    starts : tuple of float
        Initial rates λ₀ of the posterior over depth; the first is used in comparisons.
    finite : tuple of int
        Fixed depths to compare with.
    base, norm, halved : int, str, bool
        Width and normalisation of the network; True if images are halved to 16 × 16.
    images : int or None
        Number of training images of each class; None for all.
    augment : bool
        Crop and flip the images at random.
    stages : (int, int)
        Number of blocks of the first and of the second stage.
    training : Training
        Options of the training.
    hard : bool
        Use the paper's variational family and its weight decay, with all terms in the divergence.
    two_sided : bool
        Truncate the family below too. A Poisson law cannot exclude shallow depths that fit badly, and the harder the
        task, the more weight it gives them.
    prior : float
        Prior mean of depth − 1.
    """

    tasks: tuple[str, ...] = ("deer_car", "cat_dog", "all")
    seeds: int = 3
    starts: tuple[float, ...] = (5.0,)
    finite: tuple[int, ...] = ()
    base: int = 64
    norm: str = "batch"
    halved: bool = False
    images: int | None = None
    augment: bool = True
    stages: tuple[int, int] = (3, 5)
    training: Training = field(default_factory=Training)
    hard: bool = False
    two_sided: bool = False
    prior: float = 1.0


_NARROW = Setup(
    tasks=("deer_car", "cat_dog"),
    starts=(3.0, 1.0),
    base=8,
    norm="group",
    halved=True,
    images=1000,
    augment=False,
    two_sided=True,
    training=Training(
        epochs=30,
        batch_size=100,
        learning_rate=3e-3,
        schedule="one_cycle",
        structure_rate=1.0,
        structure_optimizer="natural",
        structure_radius=0.3,
        structure_delay=12,  # otherwise depth falls while deep layers are still untrained, and does not recover
    ),
)


def setup(mode: str, preset: str, accelerator: bool) -> Setup:
    """Return the settings of a run.

    Raises
    ------
    DataError
        For the paper's full preset without an accelerator: it would take months.
    """
    if mode == "smoke":
        few = Training(epochs=4, batch_size=50, learning_rate=0.01)
        return dataclasses.replace(_NARROW, tasks=("deer_car",), seeds=1, starts=(2.0,), images=200, training=few)
    if not accelerator and preset == "paper":
        raise DataError("preset='paper' was given, which needs a GPU that torch can use; preset='default' does without")
    if not accelerator:
        return _NARROW
    sgd = Training(
        optimizer="sgd", learning_rate=0.1, structure_rate=1.0, structure_every=1, schedule="one_cycle", mixed=True
    )
    if preset == "paper":  # the last learning rate is kept to the end, as in the paper's code
        pieces = ((5, 0.1), (195, 1.0), (100, 0.1), (200, 0.01))
        slow = dataclasses.replace(sgd, epochs=500, schedule=pieces, precondition=False)
        return Setup(starts=(5.0, 1.0, 10.0), finite=(5, 8, 10, 15, 20, 30), training=slow, hard=True)
    return Setup(finite=(5, 10), training=dataclasses.replace(sgd, epochs=30))


def run(request: Request) -> Result:
    """Train on every task; see :class:`experiments.Module`. CIFAR-10 is needed."""
    device = torch.device("cuda" if request.mode == "full" and torch.cuda.is_available() else "cpu")
    chosen = setup(request.mode, request.preset, device.type == "cuda")
    settings = {"seed": request.seed, "preset": request.preset, "device": device.type, **dataclasses.asdict(chosen)}
    settings = json.loads(json.dumps(settings))  # as a checkpoint returns it
    models = {f"udn_{start:g}": start for start in chosen.starts} | {f"L{depth}": depth for depth in chosen.finite}
    images = _load_images(datasets.load("cifar10", request.data), chosen, device)
    parts = {
        f"{task}/{name}/{s}": functools.partial(
            _scores,
            images[task],
            chosen,
            start,
            fold_in(request.seed, task, s),
            _checkpoint_folder(request.out, task, name, s),
            settings,
        )
        for task, (name, start), s in itertools.product(chosen.tasks, models.items(), range(chosen.seeds))
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values, curves = _summarise(results, chosen, list(models))
    notes = [] if device.type == "cuda" or request.mode == "smoke" else [_SMALL]
    return Result("cifar", request.mode, request.preset, request.seed, values, settings, seconds, curves, tuple(notes))


def _checkpoint_folder(out: str | PathLike[str] | None, task: str, name: str, s: int) -> Path | None:
    return None if out is None else Path(out) / "parts" / f"{task}-{name}-{s}"


def _law(chosen: Setup, start: float) -> DepthLaw:
    """Return a law with the initial rate `start`, or a fixed depth if `start` is an integer."""
    if isinstance(start, int):
        return FixedDepth((start - 1,))
    if chosen.hard:
        return QuantilePoisson(start)
    return TruncatedPoisson(start, HardTruncation(0.05, 0.95)) if chosen.two_sided else TruncatedPoisson(start)


def _summarise(
    found: Mapping[str, Mapping[str, Any]], chosen: Setup, models: list[str]
) -> tuple[dict[str, Value], dict[str, Any]]:
    values: dict[str, Value] = {}
    curves: dict[str, Any] = {}
    for task, name in itertools.product(chosen.tasks, models):
        runs = [found[f"{task}/{name}/{s}"] for s in range(chosen.seeds)]
        for score in ("accuracy", "log_likelihood", "mean_depth"):
            values[f"{task}/{name}/{score}"] = average([one[score] for one in runs])
        curves[f"{task}/{name}"] = {"posterior": [one["posterior"] for one in runs], "path": [r["path"] for r in runs]}
    first = models[0]
    if {"deer_car", "cat_dog"} <= set(chosen.tasks):
        depths = [
            [found[f"{task}/{first}/{s}"]["mean_depth"] for s in range(chosen.seeds)]
            for task in ("cat_dog", "deer_car")
        ]
        values["hard_minus_easy"] = paired_difference(*depths)
        values["least_hard_minus_easy"] = Value(min(a - b for a, b in zip(*depths, strict=True)))
    if len(chosen.starts) > 1:
        for task in chosen.tasks:
            ends = [values[f"{task}/udn_{start:g}/mean_depth"].value for start in chosen.starts]
            values[f"{task}/spread_of_starts"] = Value(max(ends) - min(ends))
    return values, curves


# ------------------------------------------------------------------------------------------------- data and training


class Pixels(nn.Module):
    """Preprocessing of images: bytes (B, C, H, W) to normalised numbers, with random crops and flips in training.

    A crop is taken from the image with `padding` black pixels on each side (0: no crops and no flips). Random numbers
    come from torch's global generator of the device, which the training loop seeds by the epoch.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, padding: int = 4, form: torch.memory_format = torch.contiguous_format) -> None:
        super().__init__()
        self.padding, self.form = padding, form
        for name, value in (("mean", _MEAN), ("std", _STD)):
            self.register_buffer(name, 255.0 * torch.tensor(value)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, and augment in training."""
        if self.training and self.padding:
            x = self._shift(x)
        y: Tensor = (x.to(self.mean.dtype) - self.mean) / self.std
        return y.contiguous(memory_format=self.form)

    def _shift(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        p = self.padding
        device = x.device
        down, right = torch.randint(0, 2 * p + 1, (2, batch, 1), device=device)
        flip = torch.rand(batch, 1, device=device) < 0.5
        row = down + torch.arange(height, device=device)  # (B, H)
        column = torch.arange(width, device=device)
        column = right + torch.where(flip, width - 1 - column, column)  # (B, W)
        padded = nn.functional.pad(x, (p, p, p, p))
        image = torch.arange(batch, device=device)[:, None, None]
        return padded[image, :, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)  # (B, C, H, W)


def _load_images(found: datasets.Dataset, chosen: Setup, device: torch.device) -> dict[str, tuple[Rows, Rows]]:
    """Return training and test rows of every task, as bytes on the device."""
    y = np.asarray(found.y)
    images: dict[str, tuple[Rows, Rows]] = {}
    for task in chosen.tasks:
        halves = []
        for split, most in zip(found.splits[0], (chosen.images, None), strict=True):
            index = np.concatenate([split[y[split] == c][:most] for c in _TASKS[task]])
            label = np.concatenate([np.full(np.sum(y[split] == c), i)[:most] for i, c in enumerate(_TASKS[task])])
            x = torch.from_numpy(found.X[index]).permute(0, 3, 1, 2)
            if chosen.halved:
                x = nn.functional.avg_pool2d(x.float(), 2).round().to(torch.uint8)
            halves.append(Rows(x.contiguous().to(device), torch.from_numpy(label).to(device)))
        images[task] = (halves[0], halves[1])
    return images


def train(
    rows: Rows, chosen: Setup, law: DepthLaw, seed: int, keeper: Checkpoint | None = None, stop_at: int | None = None
) -> Fitted:
    """Train one network.

    Parameters
    ----------
    rows : Rows
        Images as bytes, and classes.
    chosen : Setup
        Settings.
    law : DepthLaw
        Family of the posterior over depth − 1, with its initial parameters.
    seed : int
        Seed of weights, order of rows and augmentation.
    keeper : Checkpoint, optional
        Checkpoint to resume from and to write to.
    stop_at : int, optional
        Pause after this epoch (:class:`~fathomless.system.errors.PausedError`), for a time limit.
    """
    classes = int(rows.y.max()) + 1
    size = rows.x.shape[-1]
    net = ConvNet(size=size, outputs=classes, base=chosen.base, norm=chosen.norm, stages=chosen.stages)

    # faster on accelerators; on processors torch 2.13 can corrupt memory in its backward pass of group normalisation
    form = torch.channels_last if rows.x.is_cuda else torch.contiguous_format

    def layer(depth: int) -> nn.Module:
        part: nn.Module = net.layer(depth).to(memory_format=form)  # type: ignore[call-overload]
        if depth > 1:
            return part
        padding = size // 8 if chosen.augment else 0
        return nn.Sequential(Pixels(padding, form), part)

    decay = (
        1.0 + 1e-4 * len(rows) if chosen.hard else 1.0
    )  # that of the prior plus that of the optimiser in the paper's code
    model = UnboundedDepth(
        layer,
        net.head,
        law=law,
        prior=PoissonPrior(chosen.prior),
        weight_prior=WeightPrior(decay**-0.5, norms=chosen.hard),
        head_divergence="cumulative" if chosen.hard else "own",
        seed=fold_in(seed, "weights"),
    ).to(rows.x.device)
    callbacks: list[Callable[[Run], None]] = [] if keeper is None else [keeper]
    if stop_at is not None:
        callbacks.insert(0, lambda run: setattr(run, "pause", run.epoch >= stop_at))
    return fit(
        model,
        Categorical(classes).to(rows.x.device),
        rows,
        training=chosen.training,
        seed=fold_in(seed, "training"),
        callbacks=callbacks,
        resume=None if keeper is None else keeper.load(),
    )


def _scores(
    images: tuple[Rows, Rows],
    chosen: Setup,
    start: float,
    seed: int,
    place: Path | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Train one network and score it on the test images."""
    keeper = None if place is None else Checkpoint(place, 60.0, {"settings": settings, "seed": seed})
    done = train(images[0], chosen, _law(chosen, start), seed, keeper)
    right, density = evaluate(done, images[1])
    if place is not None:
        io.remove(place)
    structure = done.model.structure()
    assert isinstance(structure, ListedPosterior)
    return {
        "accuracy": right,
        "log_likelihood": density,
        "mean_depth": structure.statistics["mean_depth"],
        "posterior": dict(zip(structure.names, structure.probabilities, strict=True)),
        "path": [[row["epoch"], row["mean_depth"]] for row in done.history],
    }


@torch.no_grad()
def evaluate(done: Fitted, rows: Rows) -> tuple[float, float]:
    """Return accuracy and mean log predictive density of the mixture over depths."""
    right = density = 0.0
    for part in rows.parts(_CHUNK):
        draws = done.model.draw(part.x)
        log_p = torch.logsumexp(draws.log_weight[:, None, None] + draws.f.log_softmax(-1), 0)  # (B, K)
        right += float((log_p.argmax(-1) == part.y).sum())
        density += float(log_predictive(draws, done.likelihood, part.y).sum())
    return right / len(rows), density / len(rows)


# ----------------------------------------------------------------------------------------------------- the figure


def figure(result: Result) -> Any:
    """Draw the posteriors over depth (Figure 4) and the mean depth by epoch from each start (Figure 7)."""
    from experiments.pictures import colours, panels
    from fathomless.plots.canvas import legend, start, whole_numbers

    tasks = result.settings["tasks"]
    starts = [f"udn_{s:g}" for s in result.settings["starts"]]
    page, (left, right) = panels(2)
    start(left, "Posterior over depth", "depth (layers)", "probability")
    start(right, "Mean depth during training", "epoch", "layers")
    for task, colour in colours(tasks).items():
        for i, posterior in enumerate(result.curves[f"{task}/{starts[0]}"]["posterior"]):
            label = task.replace("_", " or ") if i == 0 else None
            depths = [int(depth) for depth in posterior]
            left.plot(
                depths, list(posterior.values()), color=colour, marker="o", markersize=3, linewidth=1, label=label
            )
        for name in starts:
            for i, path in enumerate(result.curves[f"{task}/{name}"]["path"]):
                label = task.replace("_", " or ") if i == 0 and name == starts[0] else None
                right.plot(*zip(*path, strict=True), color=colour, linewidth=1, label=label)
    for ax in (left, right):
        whole_numbers(ax.xaxis)
        legend(ax)
    return page
