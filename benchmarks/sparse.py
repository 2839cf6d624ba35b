"""Time of a training step of sparse networks (784-400-600-10), relative to a plain network.

    python benchmarks/sparse.py            one thread, batches of 100
    python benchmarks/sparse.py --batch 500
    python benchmarks/sparse.py --peers    with the layers of bayesian-torch and torch-uncertainty, if installed

Each number is a median over interleaved repetitions of a few steps: CPU time of the process, and its ratio to a bare
PyTorch loop with fused Adam. The layers of other libraries are mean-field layers, the closest that they have; their
divergences are added as in their documentation.
"""

import argparse
import importlib
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fathomless.data.rows import Rows
from fathomless.families.sparse.model import SparseNetwork
from fathomless.inference.runs.run import Run
from fathomless.inference.variational import svi
from fathomless.inference.variational.training import Training
from fathomless.nn.bayesian import bayesian
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.posterior.likelihoods import Categorical

STEPS, REPETITIONS = 5, 15
FORMS: dict[str, dict[str, Any]] = {
    "dense (slab alone)": {"inclusion": False},
    "lrt": {},
    "lrt, compiled": {"compiled": True},
    "flow, hidden (64, 64)": {"multiplier": FlowOptions(hidden=(64, 64))},
    "flow, hidden (64, 64), compiled": {"compiled": True, "multiplier": FlowOptions(hidden=(64, 64))},
    "flow, coupling": {"multiplier": FlowOptions(kind="coupling", hidden=(64, 64))},
    "flow, hidden (250, 250)": {"multiplier": FlowOptions(hidden=(250, 250))},
    "relaxed": {"estimator": "relaxed"},
}


def plain() -> nn.Sequential:
    """Return the plain network that all others are built from."""
    layers = (nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 10))
    return nn.Sequential(*layers)


def bare(net: nn.Module, divergence: Callable[[], Any], x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return a few steps of a bare loop with fused Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

    def steps() -> None:
        for part, labels in zip(x.chunk(STEPS), y.chunk(STEPS), strict=True):
            loss: torch.Tensor = F.cross_entropy(net(part), labels) + divergence()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return steps


def ours(options: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return the same steps in the training loop of this library."""
    model = SparseNetwork(bayesian(plain(), lambda _, part: SpikeSlab(part, **options)))
    run = Run(model, Categorical(10), Training(epochs=10**6, batch_size=len(x) // STEPS, structure_every=1), seed=0)
    rows = Rows(x, y)
    steps = svi._make_steps(run, rows)
    return lambda: svi._epoch(run, rows, steps)


def peers(x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return the steps of mean-field layers of other libraries that are installed."""
    found: dict[str, Callable[[], object]] = {}
    if importlib.util.find_spec("bayesian_torch"):
        layers = importlib.import_module("bayesian_torch.layers")
        for name in ("LinearReparameterization", "LinearFlipout"):
            kind = getattr(layers, name)
            sizes = ((784, 400), (400, 600), (600, 10))
            parts = nn.ModuleList(kind(a, b) for a, b in sizes)
            found[f"bayesian-torch {name}"] = _pairs(parts, x, y)
    if importlib.util.find_spec("torch_uncertainty"):
        kind = importlib.import_module("torch_uncertainty.layers.bayesian").BayesLinear
        net = nn.Sequential(kind(784, 400), nn.ReLU(), kind(400, 600), nn.ReLU(), kind(600, 10))
        own = [part for part in net if isinstance(part, kind)]

        def divergence() -> Any:
            return sum(part.log_variational_posterior - part.log_prior for part in own) / 60_000

        found["torch-uncertainty BayesLinear"] = bare(net, divergence, x, y)
    return found


def _pairs(parts: nn.ModuleList, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return the steps of a network whose layers return (output, divergence)."""
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3, fused=True)

    def steps() -> None:
        for h, labels in zip(x.chunk(STEPS), y.chunk(STEPS), strict=True):
            total = torch.zeros(())
            for i, part in enumerate(parts):
                h, kl = part(h.relu() if i else h)
                total = total + kl
            loss: torch.Tensor = F.cross_entropy(h, labels) + total / 60_000
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return steps


def main() -> None:
    """Measure and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--batch", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    rows = args.batch * STEPS
    x = torch.rand(rows, 784, generator=g)
    y = torch.randint(10, (rows,), generator=g)
    floor = "plain network"
    forms = {floor: bare(plain(), lambda: 0.0, x, y), **{name: ours(own, x, y) for name, own in FORMS.items()}}
    if args.peers:
        forms |= peers(x, y)
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for i in range(REPETITIONS + 1):
        for name, steps in forms.items():
            start = time.process_time()
            steps()
            if i:  # the first one warms up
                taken[name].append((time.process_time() - start) / STEPS)
    print(f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}, one thread")
    print(f"784-400-600-10, batch {args.batch}: CPU milliseconds per step, and median ratio to the plain network\n")
    for name, times in taken.items():
        ratios = sorted(a / b for a, b in zip(times, taken[floor], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        print(
            f"{name:<46}{1e3 * statistics.median(times):>8.1f}{statistics.median(ratios):>8.2f}  ({low:.2f}-{high:.2f})"
        )


if __name__ == "__main__":
    main()
