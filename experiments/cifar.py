"""Posterior over depth for image classes of different difficulty (Nazaret and Blei 2022, Table 2, Figures 4 and 7).

Three tasks from CIFAR-10: deer against car, which networks hardly ever confuse; cat against dog, which they confuse
most; all ten classes. The networks are wide residual networks of unbounded depth, trained on cropped and mirrored
images. Their posterior over depth is fitted to held-out images ("held_out"), or learned by the evidence bound, as in
the paper ("udn" and its initial rate). Networks of fixed depth ("L" and the depth) are for comparison. Without an
accelerator the networks are narrow, and only the two pairs are run.

With ``preset="paper"``, the architecture, the variational family, the 500 epochs and the schedule are those of the
paper, on an accelerator.

The results are those of the last epoch, or of the best one by the held-out images. Test images are used for scores
only.
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

from experiments.results import Request, Result, Value, average, paired_difference
from fathomless.data import datasets
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import calibrate, fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import Architecture, ConvNet, WideResNet
from fathomless.nn.images import ImageInput
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    TruncatedPoisson,
)
from fathomless.posterior.likelihoods import Categorical
from fathomless.posterior.metrics import expected_calibration_error
from fathomless.posterior.predictive import predictive
from fathomless.posterior.structure import ListedPosterior
from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["Setup", "evaluate", "figure", "run", "setup", "train"]

_TASKS: Mapping[str, tuple[int, ...]] = {"deer_car": (4, 1), "cat_dog": (3, 5), "all": tuple(range(10))}
_MEAN, _STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of the bytes of the training images
_CHUNK = 1000  # images scored at once
_SMALL = (
    "without a GPU the networks are narrow and trained for a few epochs: depths and accuracies are not comparable with "
    "the paper's"
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
    held_out : float
        Share of the training images that the posterior over depth of "held_out" is fitted to; 0 leaves this model out.
    starts : tuple of float
        Initial rates λ₀ of the posteriors over depth that are learned by the evidence bound.
    finite : tuple of int
        Fixed depths to compare with.
    paper : bool
        Use the paper's architecture, variational family and weight decay, with all terms in the divergence, and its
        augmentation.
    base, stages, stride : int, (int, int), int
        Width of the first stage, blocks of the first and of the second stage, and stride of the first convolution.
    images : int or None
        Number of training images and of test images of each class; None for all.
    cutout : int
        Side of the square that is cut from training images.
    smoothing : float
        Label smoothing.
    decay : float or None
        Weight decay in units of the log-likelihood of one image; None for standard normal weights.
    training : Training
        Options of the training.
    two_sided : bool
        Truncate the family below too. A Poisson law cannot exclude shallow depths that fit badly, and the harder the
        task, the more weight it gives them.
    prior : float
        Prior mean of depth − 1.
    """

    tasks: tuple[str, ...] = ("deer_car", "cat_dog", "all")
    seeds: int = 3
    held_out: float = 0.1
    starts: tuple[float, ...] = (5.0,)
    finite: tuple[int, ...] = ()
    paper: bool = False
    base: int = 64
    stages: tuple[int, int] = (2, 2)
    stride: int = 1
    images: int | None = None
    cutout: int = 0
    smoothing: float = 0.0
    decay: float | None = None
    training: Training = field(default_factory=Training)
    two_sided: bool = False
    prior: float = 1.0


_NARROW = Setup(
    tasks=("deer_car", "cat_dog"),
    starts=(3.0,),
    base=16,
    stages=(1, 1),
    stride=2,
    two_sided=True,
    training=Training(
        epochs=5,
        batch_size=100,
        learning_rate=3e-3,
        schedule="one_cycle",
        structure_rate=1.0,
        structure_optimizer="natural",
        structure_radius=0.3,
        structure_delay=2,  # otherwise depth falls while deep layers are still untrained, and does not recover
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
        deep = (5, 8, 10, 15, 20, 30)
        return Setup(held_out=0.0, starts=(5.0, 1.0, 10.0), finite=deep, paper=True, stages=(3, 5), training=slow)
    fast = dataclasses.replace(sgd, epochs=40, batch_size=512, learning_rate=0.2, nesterov=True)
    return Setup(finite=(6, 9), cutout=8, smoothing=0.1, decay=5e-4, training=fast)


def run(request: Request) -> Result:
    """Train on every task; see :class:`experiments.Module`. CIFAR-10 is needed."""
    device = torch.device("cuda" if request.mode == "full" and torch.cuda.is_available() else "cpu")
    chosen = setup(request.mode, request.preset, device.type == "cuda")
    settings = {"seed": request.seed, "preset": request.preset, "device": device.type, **dataclasses.asdict(chosen)}
    settings = json.loads(json.dumps(settings))  # as a checkpoint returns it
    models: dict[str, float | None] = {"held_out": None} if chosen.held_out else {}
    models |= {f"udn_{start:g}": start for start in chosen.starts} | {f"L{depth}": depth for depth in chosen.finite}
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


def _law(chosen: Setup, start: float | None) -> DepthLaw | None:
    """Return a law with the initial rate `start`, a fixed depth for an integer, or None for held-out images."""
    if start is None:
        return None
    if isinstance(start, int):
        return FixedDepth((start - 1,))
    if chosen.paper:
        return QuantilePoisson(start)
    return TruncatedPoisson(start, HardTruncation(0.05, 0.95)) if chosen.two_sided else TruncatedPoisson(start)


def _summarise(
    found: Mapping[str, Mapping[str, Any]], chosen: Setup, models: list[str]
) -> tuple[dict[str, Value], dict[str, Any]]:
    values: dict[str, Value] = {}
    curves: dict[str, Any] = {}
    for task, name in itertools.product(chosen.tasks, models):
        runs = [found[f"{task}/{name}/{s}"] for s in range(chosen.seeds)]
        for score in ("accuracy", "log_likelihood", "calibration_error", "mean_depth"):
            values[f"{task}/{name}/{score}"] = average([one[score] for one in runs])
        curves[f"{task}/{name}"] = {"posterior": [one["posterior"] for one in runs], "path": [r["path"] for r in runs]}
    # of the first start, without a prefix, and of the posterior from held-out images
    prefixes = {f"udn_{chosen.starts[0]:g}": "", **({"held_out": "held_out/"} if chosen.held_out else {})}
    for name, prefix in prefixes.items() if {"deer_car", "cat_dog"} <= set(chosen.tasks) else ():
        depths = [
            [found[f"{task}/{name}/{s}"]["mean_depth"] for s in range(chosen.seeds)] for task in ("cat_dog", "deer_car")
        ]
        values[f"{prefix}hard_minus_easy"] = paired_difference(*depths)
        values[f"{prefix}least_hard_minus_easy"] = Value(min(a - b for a, b in zip(*depths, strict=True)))
    if len(chosen.starts) > 1:
        for task in chosen.tasks:
            ends = [values[f"{task}/udn_{start:g}/mean_depth"].value for start in chosen.starts]
            values[f"{task}/spread_of_starts"] = Value(max(ends) - min(ends))
    return values, curves


# ------------------------------------------------------------------------------------------------- data and training


def _load_images(found: datasets.Dataset, chosen: Setup, device: torch.device) -> dict[str, tuple[Rows, Rows]]:
    """Return training and test rows of every task, as bytes on the device."""
    y = np.asarray(found.y)
    images: dict[str, tuple[Rows, Rows]] = {}
    for task in chosen.tasks:
        halves = []
        for split in found.splits[0]:
            of_class = [split[y[split] == c][: chosen.images] for c in _TASKS[task]]
            index = np.concatenate(of_class)
            label = np.repeat(np.arange(len(of_class)), [len(rows) for rows in of_class])
            x = torch.from_numpy(found.X[index]).permute(0, 3, 1, 2)
            halves.append(Rows(x.contiguous().to(device), torch.from_numpy(label).to(device)))
        images[task] = (halves[0], halves[1])
    return images


def _network(chosen: Setup, classes: int, images: int, cuda: bool) -> Architecture:
    """Return the layers and heads for a number of training images."""
    if chosen.paper:
        paper = ConvNet(outputs=classes, base=chosen.base, stages=chosen.stages)
        return ImageInput(paper, _MEAN, _STD, padding="zeros", channels_last=cuda)
    wide = WideResNet(outputs=classes, base=chosen.base, stages=chosen.stages, stride=chosen.stride)
    return ImageInput(
        wide,
        _MEAN,
        _STD,
        flip="alternating",
        rows=images,
        cutout=chosen.cutout,
        average_flips=True,
        channels_last=cuda,  # faster on accelerators
    )


def _prior(chosen: Setup, images: int) -> WeightPrior:
    """Return the prior of the weights, which sets their decay."""
    if chosen.paper:  # that of the prior plus that of the optimiser in the paper's code
        return WeightPrior((1.0 + 1e-4 * images) ** -0.5, norms=True)
    return WeightPrior() if chosen.decay is None else WeightPrior((chosen.decay * images) ** -0.5)


def train(
    rows: Rows,
    chosen: Setup,
    law: DepthLaw | None,
    seed: int,
    keeper: Checkpoint | None = None,
    stop_at: int | None = None,
) -> Fitted:
    """Train one network.

    Parameters
    ----------
    rows : Rows
        Images as bytes, and classes.
    chosen : Setup
        Settings.
    law : DepthLaw or None
        Family of the posterior over depth − 1, with its initial parameters. None for the posterior that is fitted to
        held-out images, as is the temperature of the classes.
    seed : int
        Seed of weights, order of rows and augmentation.
    keeper : Checkpoint, optional
        Checkpoint to resume from and to write to.
    stop_at : int, optional
        Pause after this epoch (:class:`~fathomless.system.errors.PausedError`), for a time limit.
    """
    classes = int(rows.y.max()) + 1
    device = rows.x.device
    valid = search = None
    if law is None:
        order = torch.randperm(len(rows), generator=as_generator(fold_in(seed, "held out"))).to(device)
        count = round(chosen.held_out * len(rows))
        valid, rows = rows.take(order[:count]), rows.take(order[count:])
        search = StructureSearch(chosen.training.epochs)
    net = _network(chosen, classes, len(rows), rows.x.is_cuda)
    model = UnboundedDepth(
        net.layer,
        net.head,
        law=law,
        prior=PoissonPrior(chosen.prior),
        weight_prior=_prior(chosen, len(rows)),
        head_divergence="cumulative" if chosen.paper else "own",
        seed=fold_in(seed, "weights"),
    ).to(device)
    callbacks: list[Callable[[Run], None]] = [] if keeper is None else [keeper]
    if stop_at is not None:
        callbacks.insert(0, lambda run: setattr(run, "pause", run.epoch >= stop_at))
    fitted = fit(
        model,
        Categorical(classes, smoothing=chosen.smoothing).to(device),
        rows,
        valid,
        training=chosen.training,
        search=search,
        seed=fold_in(seed, "training"),
        callbacks=callbacks,
        resume=None if keeper is None else keeper.load(),
    )
    if valid is None:
        return fitted
    likelihood = Categorical(classes, temperature=True).to(device)
    return dataclasses.replace(fitted, score=calibrate(model, likelihood, valid), likelihood=likelihood)


def _scores(
    images: tuple[Rows, Rows],
    chosen: Setup,
    start: float | None,
    seed: int,
    place: Path | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Train one network and score it on the test images."""
    keeper = None if place is None else Checkpoint(place, 60.0, {"settings": settings, "seed": seed})
    done = train(images[0], chosen, _law(chosen, start), seed, keeper)
    scores = evaluate(done, images[1])
    if place is not None:
        io.remove(place)
    structure = done.model.structure()
    assert isinstance(structure, ListedPosterior)
    return {
        **scores,
        "mean_depth": structure.statistics["mean_depth"],
        "posterior": dict(zip(structure.names, structure.probabilities, strict=True)),
        "path": [[row["epoch"], row["mean_depth"]] for row in done.history if "mean_depth" in row],
    }


@torch.no_grad()
def evaluate(done: Fitted, rows: Rows) -> dict[str, float]:
    """Return accuracy, mean log predictive density and calibration error of the mixture over depths."""
    parts = [predictive(done.model.draw(part.x), done.likelihood) for part in rows.parts(_CHUNK)]
    probabilities = torch.cat([part.probs for part in parts if isinstance(part, ClassPredictive)])  # (B, K)
    y = rows.y.cpu()
    return {
        "accuracy": float((probabilities.argmax(-1) == y).double().mean()),
        "log_likelihood": float(probabilities.gather(-1, y[:, None]).log().mean()),
        "calibration_error": expected_calibration_error(y.numpy(), probabilities.numpy()),
    }


# ----------------------------------------------------------------------------------------------------- the figure


def figure(result: Result) -> Any:
    """Draw the posteriors over depth (Figure 4) and the mean depth of each model by epoch (Figure 7)."""
    from experiments.pictures import colours, panels
    from fathomless.plots.canvas import legend, start, whole_numbers

    settings = result.settings
    names = {"held_out": "held-out images"} if settings["held_out"] else {}
    names |= {f"udn_{s:g}": f"bound, from {s:g}" for s in settings["starts"]}
    first = next(iter(names))
    page, (left, right) = panels(2)
    start(left, f"Posterior over depth ({names[first]})", "depth (layers)", "probability")
    start(right, "Mean depth during training", "epoch", "layers")
    for task, colour in colours(settings["tasks"]).items():
        title = task.replace("_", " or ")
        for i, posterior in enumerate(result.curves[f"{task}/{first}"]["posterior"]):
            depths, masses = [int(depth) for depth in posterior], list(posterior.values())
            label = title if i == 0 else None
            left.plot(depths, masses, color=colour, marker="o", markersize=3, linewidth=1, label=label)
        for (name, words), line in zip(names.items(), itertools.cycle(("-", "--", ":", "-."))):
            for i, path in enumerate(result.curves[f"{task}/{name}"]["path"]):
                label = f"{title}, {words}" if i == 0 else None
                right.plot(*zip(*path, strict=True), color=colour, linestyle=line, linewidth=1, label=label)
    for ax in (left, right):
        whole_numbers(ax.xaxis)
        legend(ax)
    return page
