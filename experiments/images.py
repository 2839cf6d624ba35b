"""Image classification by sparse networks: accuracy, density and calibration (Tables 1 and 2 of the paper).

A fully connected network (784-400-600-10) and a convolutional one are trained on MNIST, Fashion-MNIST and the available
part of Kuzushiji-MNIST. Their spike-and-slab weights are trained by local reparameterisation (LRT), with flows (FLOW)
or by relaxed weights (LBBNN). They are compared with Monte Carlo dropout and with an ensemble that takes about as long.

The paper's protocol leaves the structure far from the optimum of the evidence lower bound: inclusion logits start on
(-15, 10) and cannot move by more than 8.25 in 250 epochs. The protocol of this library starts all of them near 1 and
multiplies the divergence by T < 1, because at T = 1 the bound prunes so much that accuracy falls far below that of the
paper. It freezes the structure after two thirds of the training, and trains the remaining weights further.

The networks "skip" and "skip_wide" have connections from the pixels to every layer, as in the successor of the paper
(arXiv:2503.10496), which has 97 % on MNIST with 935 weights on active paths. T rises from 0 over most of the training,
so that units and connections are chosen among many; a network that begins at the final T prunes in the first two
epochs, before the weights are learned. Then the structure is frozen, and the weights are trained with a small T.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from experiments.results import Request, Result, Value
from fathomless.data import datasets
from fathomless.data.rows import Rows
from fathomless.families.baselines.model import dropout_network, finite_network
from fathomless.families.sparse.export import to_sparse
from fathomless.families.sparse.model import InputSkip, SparseNetwork, freeze_after
from fathomless.families.sparse.paths import active_paths
from fathomless.inference.runs.distributed import local_device
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import Architecture
from fathomless.nn.bayesian import bayesian
from fathomless.nn.images import Augment
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Categorical
from fathomless.posterior.metrics import accuracy, brier, expected_calibration_error
from fathomless.posterior.model import Model
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in, seeded_globals

__all__ = ["PROTOCOLS", "Perceptron", "convolutional", "figure", "fully_connected", "pixels", "run", "skipping"]

_SETS = ("mnist", "fashion_mnist", "kmnist_partial")
_LOOKS = (1, 2, 3, 5, 8, 10, 15, 20, 25)
_SHARED = {"schedule": "cosine", "draws": 100, "curve_draws": 5}
_SKIP: dict[str, Any] = {
    "batch_size": 500,
    "learning_rate": 4e-3,
    "schedule": "constant",
    "warm_up": 0.7,
    "frozen_after": None,
    "refit": {"epochs": 20, "batch_size": 200, "learning_rate": 2e-3, "temperature": 0.03},
}
#: The settings of each preset.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "default": {
        "batch_size": 200,
        "learning_rate": 2e-3,
        "structure_rate": 3.0,
        "temperature": 0.025,
        "inclusion": 0.01,
        "scale": 0.1,
        "frozen_after": 2.0 / 3.0,
        "hidden": (64, 64),
        "methods": ("lrt", "flow", "dropout", "ensemble"),
        "nets": {
            "fc": {"epochs": 30},
            "conv": {"epochs": 6},
            "conv_augmented": {"epochs": 6, "crop": 2},
            "skip": {"widths": (100, 100), "temperature": 2.0, "scale": 1.0, "epochs": 40, **_SKIP},
            "skip_wide": {"widths": (300, 100), "temperature": 0.03, "scale": 0.1, "epochs": 30, **_SKIP},
        },
        **_SHARED,
    },
    "paper": {
        "batch_size": 100,
        "learning_rate": 1e-4,
        "structure_rate": 1.0,
        "temperature": 1.0,
        "inclusion": 0.1,
        "scale": 1.0,
        "frozen_after": None,
        "hidden": (250, 250),
        "methods": ("lrt", "flow"),
        "nets": {"fc": {"epochs": 250}, "conv": {"epochs": 250}},
        **_SHARED,
        "schedule": ((125, 1.0), (125, 0.1)),
    },
}


@dataclass(frozen=True)
class Perceptron(Architecture):
    """Fully connected network as separate layers, for the baselines.

    Parameters
    ----------
    sizes : sequence of int
        Number of inputs, of units of each layer, and of classes.
    """

    sizes: tuple[int, ...] = (784, 400, 600, 10)

    def layer(self, depth: int) -> nn.Module:
        """Return a linear map followed by ReLU."""
        return nn.Sequential(_initialise(nn.Linear(self.sizes[depth - 1], self.sizes[depth])), nn.ReLU())

    def head(self, depth: int) -> nn.Module:
        """Return a linear map."""
        return _initialise(nn.Linear(self.sizes[depth], self.sizes[-1]))


def fully_connected() -> nn.Sequential:
    """Return the network 784-400-600-10 with rectified units."""
    layers = (nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 10))
    return nn.Sequential(nn.Flatten(), *map(_initialise, layers))


def skipping(widths: Sequence[int]) -> nn.Sequential:
    """Return a network with rectified units and connections from the pixels to every layer."""
    return nn.Sequential(nn.Flatten(), InputSkip(784, widths, 10, nn.ReLU()))


def convolutional() -> nn.Sequential:
    """Return the paper's variant of LeNet: two 5 × 5 convolutions with average pooling, then 768-256-84-10."""
    stages = (nn.Conv2d(1, 32, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(32, 48, 5), nn.ReLU(), nn.AvgPool2d(2))
    top = (nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*map(_initialise, stages), nn.Flatten(), *map(_initialise, top))


def run(request: Request) -> Result:
    """Train and score every method; see :class:`experiments.Module`.

    The smoke run is two epochs of LRT with the paper's protocol at ten times its learning rate, on 3,000 images of
    MNIST. The preset "paper" takes 250 epochs on an accelerator, and the first 10 of them without one.
    """
    full = request.mode == "full"
    device = local_device()
    own = dict(PROTOCOLS[request.preset if full else "paper"])
    notes: tuple[str, ...] = ()
    if not full:
        own |= {"nets": {"fc": {"epochs": 2}}, "methods": ("lrt",), "draws": 10, "learning_rate": 1e-3}
    elif request.preset == "paper" and device.type == "cpu":
        own |= {"nets": {"fc": {"epochs": 10}}, "draws": 10}
        notes = ("without an accelerator: the first 10 of 250 epochs, on MNIST, fully connected",)
    sets = _SETS if full and request.preset == "default" else _SETS[:1]
    tasks = [("fc", name, method) for method in own["methods"] for name in sets]
    if "conv" in own["nets"]:
        tasks += [("conv", "mnist", method) for method in own["methods"] if method in ("lrt", "flow")]
    if "conv_augmented" in own["nets"]:
        tasks += [("conv", "fashion_mnist", "lrt"), *(("conv_augmented", name, "lrt") for name in _SETS[:2])]
    tasks += [(net, name, "lrt") for net in own["nets"] if net.startswith("skip") for name in _SETS[:2]]
    settings = {
        "seed": request.seed,
        "rows": None if full else 3000,
        "paper": request.preset == "paper" or not full,
        **own,
    }
    parts = {
        f"{net}/{name}/{method}": (lambda n=net, d=name, m=method: _part(n, d, m, settings, request.data, device))
        for net, name, method in tasks
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values = {f"{name}/{key}": Value(value) for name, part in results.items() for key, value in part["scores"].items()}
    curves = {name: part["curve"] for name, part in results.items()}
    return Result(
        "images",
        request.mode,
        request.preset if full else "paper",
        request.seed,
        values,
        settings,
        seconds,
        curves,
        notes,
    )


def _part(
    net: str,
    name: str,
    method: str,
    settings: Mapping[str, Any],
    data: str | PathLike[str] | None,
    device: torch.device,
) -> dict[str, Any]:
    """Train one network; return its scores on the test images and the history of its training."""
    train, test = pixels(name, settings["rows"], data, device)
    settings = {**settings, **settings["nets"][net]}
    epochs = settings["epochs"]
    sparse = method in ("lrt", "flow", "lbbnn")
    start = time.process_time()
    curve: list[dict[str, float]] = []
    frozen = settings["frozen_after"]
    training = Training(
        epochs=epochs,
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"] if sparse else 1e-3,
        structure_rate=settings["structure_rate"],
        structure_every=1,
        schedule=settings["schedule"] if sparse else "cosine",
        temperature=settings["temperature"] if sparse else 1.0,
        warm_up=settings.get("warm_up", 0.0),
    )
    seed = fold_in(settings["seed"], net, name, method)
    if not sparse:
        model: Model = _baseline(method, seed, train, training).to(device)
    else:
        plain = _plain(net, name, settings)
        model = _sparse(plain, method, settings, seed, conv=net.startswith("conv")).to(device)
        watch = [] if frozen is None else [freeze_after(round(frozen * epochs))]
        fit(
            model,
            Categorical(10),
            train,
            training=training,
            seed=seed,
            callbacks=[*watch, _score_epochs(curve, len(train), test, settings)],
        )
        if "refit" in settings:
            refit = Training(**settings["refit"])
            fit(model.freeze(), Categorical(10), train, training=refit, seed=fold_in(seed, "refit"))
    scores = {"cpu_seconds": time.process_time() - start}
    for structure in ("average", "median") if isinstance(model, SparseNetwork) else ("average",):
        if isinstance(model, SparseNetwork):
            model.set_prediction(structure)
        scores |= {f"{structure}/{key}": v for key, v in _scores(model, test, settings["draws"]).items()}
    if isinstance(model, SparseNetwork):
        paths = active_paths(model.network)
        scores |= {"density": paths.density, "active_density": paths.active_density, "active_weights": paths.counts[2]}
        if net == "fc":
            scores |= _compare_export(model, test)
    return {"scores": scores, "curve": curve}


def pixels(name: str, rows: int | None, data: str | PathLike[str] | None, device: torch.device) -> tuple[Rows, Rows]:
    """Return training and test images in [0, 1] with a channel axis: all, or `rows` and a third of `rows`."""
    dataset = datasets.load(name, data)
    train, test = dataset.splits[0]
    labels = torch.as_tensor(dataset.y, dtype=torch.int64)
    whole = torch.as_tensor(dataset.X)[:, None]

    def of(index: Any) -> Rows:
        return Rows((whole[index].float() / 255.0).to(device), labels[index].to(device))

    return (of(train), of(test)) if rows is None else (of(train[:rows]), of(test[: rows // 3]))


def _plain(net: str, name: str, settings: Mapping[str, Any]) -> Callable[[], nn.Sequential]:
    """Return the function that builds a network without posteriors of its weights."""
    if net == "fc":
        return fully_connected
    if net == "conv":
        return convolutional
    if net == "conv_augmented":  # mirror images of clothes are clothes, but not those of digits
        augment = Augment(settings["crop"], padding="zeros", flip="random" if name == "fashion_mnist" else "none")
        return lambda: nn.Sequential(augment, *convolutional())
    return lambda: skipping(settings["widths"])


def _sparse(
    plain: Callable[[], nn.Sequential], method: str, settings: Mapping[str, Any], seed: int, *, conv: bool
) -> SparseNetwork:
    """Build a spike-and-slab network with the initial values of the protocol."""
    prior = SlabPrior(settings["inclusion"], settings["scale"])
    paper = settings["paper"]
    hidden = tuple(settings["hidden"])
    relaxed, flows = method == "lbbnn", method == "flow"
    flow = FlowOptions(hidden=hidden)
    if paper:
        wide: dict[str, Any] = {
            "base_mean": (0.0, 1.0),
            "base_log_variance": (-9.0, 1.0),
            "summary": 1.0,
            "intercept": False,
        }
        flow = FlowOptions(hidden=hidden, gate=0.0, shift=0.0, output=1.0, **wide)

    def make(_: str, part: nn.Module) -> SpikeSlab:
        start = bias = SlabStart()
        if paper:
            narrow = (flows and (not conv or isinstance(part, nn.Linear))) or relaxed
            logit = (-10.0, 15.0) if conv else (-15.0, 10.0)
            if relaxed:
                logit = (0.0, 1.0)
            start = SlabStart(mean=0.01 if narrow else 0.2, log_scale=(-9.0, 0.1), logit=logit)
            bias = SlabStart(mean=0.2, log_scale=(-9.0, 1.0))
        squash = "hardtanh" if isinstance(part, nn.Linear) else "identity"
        multiplier = replace(flow, squash=squash) if flows else None
        estimator = "relaxed" if relaxed else "local"
        return SpikeSlab(part, prior, multiplier=multiplier, estimator=estimator, start=start, bias_start=bias)

    with seeded_globals(fold_in(seed, "weights")):
        return SparseNetwork(bayesian(plain(), make))


def _baseline(method: str, seed: int, train: Rows, training: Training) -> Model:
    """Train dropout with rate ½, or an ensemble of three networks, which takes as long as LRT."""
    flat = Rows(train.x.flatten(1), train.y)
    members: list[Model] = []
    for i in range(1 if method == "dropout" else 3):
        start = {"seed": fold_in(seed, "member", i)}
        model = (
            dropout_network(Perceptron(), 2, 0.5, **start)
            if method == "dropout"
            else finite_network(Perceptron(), 2, **start)
        )
        fit(model.to(train.x.device), Categorical(10), flat, training=training, seed=fold_in(seed, "order", i))
        members.append(model)
    return (members[0] if len(members) == 1 else Ensemble(members)).eval()


def _score_epochs(curve: list[dict[str, float]], size: int, test: Rows, settings: Mapping[str, Any]) -> Any:
    """Return a callback that scores the test images at some epochs, for the curves only (no selection)."""

    def callback(run: Run) -> None:
        last = run.history[-1]
        row = {name: last[name] for name in ("epoch", "elbo", "log_likelihood", "density", "expected_density")}
        row["loss_per_batch"] = -last["elbo"] * settings["batch_size"] / size
        if run.epoch in _LOOKS or run.epoch == run.training.epochs:
            model = run.model
            assert isinstance(model, SparseNetwork)
            model.eval()
            for structure in ("average", "median"):
                model.set_prediction(structure)
                row[structure] = _scores(model, test, settings["curve_draws"])["accuracy"]
            model.set_prediction("average").train()
        curve.append(row)

    return callback


@torch.no_grad()
def _compare_export(model: SparseNetwork, test: Rows) -> dict[str, float]:
    """Compare the exported median model with the dense network: ratios of bytes, multiplications and time."""
    plain = fully_connected().to(test.x.device).eval()
    example = test.x[:1000]
    small = to_sparse(model.network, example=example)
    report = small.report
    with tempfile.TemporaryDirectory() as folder:
        small.save(Path(folder) / "small")
        stored = float(sum(path.stat().st_size for path in (Path(folder) / "small").iterdir()))
    before, after = report.multiply_adds or (1, 1)
    found = {
        "export/bytes_on_disk": stored,
        "export/times_smaller": report.bytes_dense / stored,
        "export/times_fewer_products": before / after,
        "export/difference": float(report.difference or 0.0),
        "export/agreement": float(report.agreement or 0.0),
    }
    single = to_sparse(model.network, format="dense").network
    for rows, network in ((1, single), (1000, small.network)):
        x = example[:rows]
        found[f"export/times_faster_{rows}"] = _seconds(plain, x) / _seconds(network, x)
    return found


def _seconds(network: nn.Module, x: Tensor) -> float:
    """Return the shortest time of many forward passes, in seconds."""
    times = []
    for _ in range(100 if len(x) == 1 else 20):
        start = time.perf_counter()
        network(x)
        times.append(time.perf_counter() - start)
    return min(times)


@torch.no_grad()
def _scores(model: Model, test: Rows, draws: int) -> dict[str, float]:
    """Score the average class probabilities of sampled networks."""
    flat = not isinstance(model, SparseNetwork)
    total: list[Tensor] = []
    for part in test.parts(2000):
        generator = as_generator(0, device=part.x.device)
        log_p = torch.full((len(part), 10), -torch.inf, dtype=torch.float64, device=part.x.device)
        each = 1 if isinstance(model, Ensemble) else min(draws, 10)
        for _ in range(1 if isinstance(model, Ensemble) else max(1, draws // each)):
            drawn = model.draw(part.x.flatten(1) if flat else part.x, each, generator)
            weighed = drawn.log_weight[:, None, None] + drawn.f.double().log_softmax(-1)
            log_p = torch.logaddexp(log_p, weighed.logsumexp(0))
        total.append(log_p - log_p.logsumexp(-1, keepdim=True))
    log_probs = torch.cat(total).cpu()
    y = test.y.cpu()
    probs = log_probs.exp().numpy()
    labels = y.numpy()
    return {
        "accuracy": accuracy(labels, probs.argmax(1)),
        "log_likelihood": float(log_probs.gather(1, y[:, None]).mean()),
        "brier": brier(labels, probs),
        "calibration_error": expected_calibration_error(labels, probs),
    }


def _initialise(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


def figure(result: Result) -> Any:
    """Draw accuracy and density by epoch for every training."""
    from experiments.pictures import panels
    from fathomless.plots.canvas import legend, start

    page, (left, right) = panels(2, across=2, width=4.4)
    start(left, "Test accuracy", "epoch", "share")
    start(right, "Density of the median model", "epoch", "share of the weights")
    for name, curve in result.curves.items():
        if curve:
            looked = [row for row in curve if "average" in row]
            (line,) = left.plot([r["epoch"] for r in looked], [r["average"] for r in looked], label=name)
            left.plot([r["epoch"] for r in looked], [r["median"] for r in looked], "--", color=line.get_color())
            right.plot([r["epoch"] for r in curve], [r["density"] for r in curve], color=line.get_color())
    legend(left)
    return page
