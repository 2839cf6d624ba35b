"""Training steps of several networks: under ``vmap``, as stacked modules, and one after another.

    python benchmarks/side_by_side.py                                  all cases, one JSON line each
    python benchmarks/side_by_side.py ensemble --networks 2 10         one case, some sizes
    python benchmarks/side_by_side.py agreement                        differences of the outputs after some steps

Cases, with the default networks (8 columns, one target):

- ``ensemble``: networks of depth 3, as in a deep ensemble.
- ``restarts``: networks of unbounded depth, each with its own posterior over depth (4 depths), by the evidence bound.
- ``temperatures``: sparse networks of two layers, each with its own temperature.
- ``transformers``: an ensemble of networks of two transformer blocks, which have no stacked form; blocks are applied
  one after another.
- ``drawn``: networks of two layers with an independent Gaussian on each weight, which have no stacked form at all.

Implementations:

- ``vmap``: :func:`fathomless.inference.variational.batched.fit_batched`.
- ``stacked``: one network of stacked weights on stacked rows, trained by
  :func:`fathomless.inference.variational.svi.fit`. Networks of depth are stacked by the library
  (:mod:`fathomless.nn.stacked`), sparse networks by this script.
- ``own_laws`` (only for restarts): stacked weights with a posterior over depth for each network, implemented in this
  script. ``stacked`` has one posterior for all networks, as in cross-fitting. Different supports, which need masks in
  the optimiser, are not implemented, so the time is a lower bound.
- ``in_turn``: :func:`fathomless.inference.variational.svi.fit` for each network.

The implementations alternate in one process on one thread. Times are medians over epochs: milliseconds of CPU time of
the process for one step of all networks, and the time of each one divided by that of ``vmap``.
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.families.baselines.model import finite_network, mean_field_network
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.sparse.model import SparseNetwork
from fathomless.inference.out_of_fold.crossfit import StackedLikelihood
from fathomless.inference.runs.run import Run
from fathomless.inference.variational import batched, svi
from fathomless.inference.variational.batched import BatchedRun, BatchedRuns
from fathomless.inference.variational.padded import PaddedRows
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP, TabularTransformer
from fathomless.nn.bayesian import bayesian
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SpikeSlabPosterior
from fathomless.posterior.capabilities import HasStructureLaw
from fathomless.posterior.laws import TruncatedPoisson, depth_terms
from fathomless.posterior.likelihoods import Gaussian
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import ListedPosterior, make_depth_posterior
from fathomless.system.draws import normal

COLUMNS, BATCH = 8, 256
INCLUSION, SCALE = 0.1, 0.3  # prior of the sparse family
NETWORKS, WIDTHS, ROWS = (2, 5, 10, 32), (32, 64, 256), (300, 3000)
SECONDS, LEAST, MOST = 0.8, 2, 15  # minimum time of one implementation in a case; limits on the number of timed epochs

Way = Callable[[], object]  # one epoch
Start = Callable[[int], Model]


def table(rows: int, dtype: torch.dtype) -> Rows:
    """Return a table with one target."""
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(0), dtype=dtype)
    y = (2.0 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:3]
    return Rows(x, y, None)


def starts(case: str, width: int, dtype: torch.dtype) -> Start:
    """Return the function that builds network i of a case."""
    net = MLP(COLUMNS, 1, width)
    match case:
        case "ensemble":
            return lambda i: finite_network(net, 3, seed=i, dtype=dtype)
        case "restarts":
            return lambda i: UnboundedDepth(net.layer, net.head, law=TruncatedPoisson(1.0), seed=i, dtype=dtype)
        case "transformers":
            return lambda i: finite_network(TabularTransformer(COLUMNS, 1, width), 2, seed=i, dtype=dtype)
        case "drawn":
            return lambda i: mean_field_network(net, 2, seed=i, dtype=dtype)

    def sparse(i: int) -> SparseNetwork:
        torch.manual_seed(i)
        sizes = [COLUMNS, width, width, 1]
        parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())][:-1]
        make = bayesian(nn.Sequential(*parts), lambda _, part: SpikeSlab(part, SlabPrior(INCLUSION, SCALE)))
        return SparseNetwork(make.to(dtype))

    return sparse


def plans(case: str, networks: int) -> list[Training]:
    """Return the training options of each network; the posterior over depth is nearly constant."""
    several = case == "temperatures"
    base = Training(epochs=10**6, batch_size=BATCH, structure_rate=3.0 if several else 1e-9)
    return [replace(base, temperature=0.5**i if several else 1.0) for i in range(networks)]


class StackedSlab(nn.Module):
    """Sparse linear layers of F networks on stacked rows, with local reparameterisation."""

    def __init__(self, layers: Sequence[SpikeSlab]) -> None:
        super().__init__()
        self.weight = self._stacked([layer.weight for layer in layers])
        self.bias = self._stacked([layer.bias for layer in layers if layer.bias is not None])

    @staticmethod
    def _stacked(each: Sequence[SpikeSlabPosterior]) -> nn.ParameterDict:
        named = [dict(one.named_parameters()) for one in each]
        return nn.ParameterDict({name: torch.stack([one[name].detach() for one in named]) for name in named[0]})

    def forward(self, x: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return outputs (F, B, out) for x (F, B, in), and the divergence of each network (F,)."""
        (mean, variance, first), (centre, spread, second) = _moments(self.weight, INCLUSION), _moments(self.bias, 0.5)
        middle = torch.baddbmm(centre[:, None], x, mean.mT)
        wide = torch.baddbmm(spread[:, None], x.square(), variance.mT)
        return middle + wide.clamp_min(1e-12).sqrt() * normal(middle, noise), first + second


def _moments(own: nn.ParameterDict, inclusion: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of weights, and the divergence of each network, as ``spike_slab.moments`` does."""
    mean, log_scale = own["mean"], own["log_scale"]
    scale = SCALE if inclusion == INCLUSION else SlabPrior(INCLUSION, SCALE).for_biases().scale
    variance = (2.0 * log_scale).exp()
    slab = (variance + mean.square()) * (0.5 / float(scale) ** 2) + (torch.tensor(scale).log() - 0.5) - log_scale
    if "logit" not in own:
        return mean, variance, slab.flatten(1).sum(1, dtype=torch.float64)
    alpha = own["logit"].sigmoid()
    odds = torch.tensor(inclusion, dtype=torch.float64).logit()
    k = alpha * (slab + own["logit"] - float(odds)) - nn.functional.softplus(own["logit"])
    divergence = k.flatten(1).sum(1, dtype=torch.float64) + nn.functional.softplus(odds) * mean[0].numel()
    return alpha * mean, alpha * (variance + (1.0 - alpha) * mean.square()), divergence


class StackedSparse(HasStructureLaw):
    """Sparse networks in stacked form, each with its own temperature."""

    def __init__(self, models: Sequence[SparseNetwork], temperatures: Sequence[float]) -> None:
        super().__init__()
        each = zip(*([layer for _, layer in model.sparse_layers()] for model in models), strict=True)
        self.layers = nn.ModuleList(StackedSlab(layers) for layers in each)
        self.register_buffer("temperatures", torch.tensor(temperatures, dtype=torch.float64), persistent=False)

    @property
    def stochastic(self) -> bool:
        """True, since the weights are random."""
        return True

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate all networks on stacked rows; the divergence is the sum of T times the KL divergences."""
        assert generator is not None
        count = len(self.get_buffer("temperatures"))
        h = x.reshape(count, -1, x.shape[-1])
        total = torch.zeros(count, dtype=torch.float64)
        for i, layer in enumerate(self.layers):
            h, divergence = layer(torch.relu(h) if i else h, generator)
            total = total + divergence
        f = h.reshape(1, len(x), -1)
        none = torch.zeros(1, dtype=torch.int64)
        return Draws(f, f.new_zeros(1), none, {"weights": (total * self.get_buffer("temperatures")).sum()})

    def structure(self) -> ListedPosterior:
        """Return a posterior with a single structure."""
        return make_depth_posterior({0: 1.0})

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the inclusion logits."""
        return {name: p for name, p in self.named_parameters() if name.endswith("logit")}


class OwnLaws:
    """Stacked networks of unbounded depth with separate posteriors over depth on a common support."""

    def __init__(self, models: Sequence[UnboundedDepth], training: Training) -> None:
        first = models[0]
        self.model = first.stack(models[1:])
        self.training = training
        self.count = len(models)
        self.step = 0
        self.noise = StackedLikelihood([Gaussian() for _ in models]).to(first._weights_dtype())
        self.eta = nn.Parameter(torch.stack([model._eta().detach() for model in models]))
        weights = [p for name, p in self.model.named_parameters() if name not in self.model.structure_parameters()]
        structure = {"params": [self.eta], "lr": training.learning_rate * training.structure_rate}
        groups: list[dict[str, Any]] = [{"params": [*weights, *self.noise.parameters()]}, structure]
        self.optimizer = torch.optim.Adam(groups, lr=training.learning_rate, eps=1e-10, fused=True)
        self.order = torch.Generator().manual_seed(0)
        self.law = self._law()

    def _law(self) -> tuple[Tensor, Tensor]:
        """Return q (F, m) and KL(q, p) (F,)."""
        model = self.model
        q, _, divergence = vmap(lambda eta: depth_terms(model.law, eta, model._support, model._log_prior))(self.eta)
        return q, divergence

    def advance(self, batch: Rows, size: int) -> None:
        """Take one optimiser step."""
        self.step += 1
        moves = self.step % self.training.structure_every == 0
        q, divergence = self._law() if moves else (self.law[0].detach(), self.law[1].detach())
        f, _ = self.model._evaluate(batch.x, None, None)  # (m, F·B, K)
        log_p = self.noise.log_prob(f, batch.y).reshape(len(f), self.count, -1).sum(-1).double()  # (m, F)
        present = [getattr(owner, name) for owner, name in self.model._divergence_charges.owners]
        decay = 0.5 * torch.stack([p.flatten(1).square().sum(1) for p in present], 1).double()  # (F, P)
        fit = (q * log_p.T).sum(1) * (size * self.count / len(batch))
        bound = fit - (q @ self.model._charges * decay).sum(1) - divergence
        torch.autograd.backward([-bound.sum() / size])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if moves:
            with torch.no_grad():
                self.law = self._law()

    def epoch(self, rows: StackedRows) -> None:
        """Pass over the rows once."""
        for batch in rows.batches(BATCH, self.order):
            self.advance(batch, rows.index.shape[1])


def ways(case: str, count: int, width: int, rows: Rows) -> tuple[dict[str, Way], Callable[[], dict[str, list[Model]]]]:
    """Return one epoch of each implementation, and a function that returns the trained networks of each."""
    dtype = rows.x.dtype
    start = starts(case, width, dtype)
    trainings = plans(case, count)
    own, models = [start(i) for i in range(count)], [start(i) for i in range(count)]
    noise = [Gaussian().to(dtype) for _ in range(3 * count)]
    members = [BatchedRun(own[i], noise[i], trainings[i], i) for i in range(count)]
    runs = BatchedRuns(members)
    stack = PaddedRows.of("training", rows, count)
    alone = [Run(start(i), noise[count + i], trainings[i], i) for i in range(count)]
    blocks = StackedRows.of(rows, [torch.arange(len(rows))] * count)
    sparse = [model for model in models if isinstance(model, SparseNetwork)]
    deep = [model for model in models if isinstance(model, UnboundedDepth)]
    found: dict[str, Way] = {
        "vmap": lambda: batched._epoch(runs, stack),
        "in_turn": lambda: [svi._epoch(one, rows, svi._make_steps(one, rows)) for one in alone],
    }
    trained = {"vmap": own, "in_turn": [one.model for one in alone]}
    if case != "drawn":
        joint = deep[0].stack(deep[1:]) if deep else StackedSparse(sparse, [t.temperature for t in trainings])
        run = Run(joint, StackedLikelihood(noise[2 * count :]).to(dtype), trainings[0], 0)
        steps = svi._make_steps(run, blocks)
        found["stacked"] = lambda: svi._epoch(run, blocks, steps)
        trained["stacked"] = [joint]
    if case == "restarts":
        laws = OwnLaws(copy.deepcopy(deep), trainings[0])
        found["own_laws"] = lambda: laws.epoch(blocks)
        trained["own_laws"] = [laws.model]

    def written() -> dict[str, list[Model]]:
        for k in range(count):
            runs.write(k)
        return trained

    return found, written


def measure(case: str, count: int, width: int, size: int) -> dict[str, object]:
    """Time the implementations alternately."""
    epochs, _ = ways(case, count, width, table(size, torch.float32))
    steps = -(-size // BATCH)
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for repetition in range(MOST + 1):
        for name, epoch in epochs.items():
            begin = time.process_time()
            epoch()
            times[name].append((time.process_time() - begin) / steps)
        if repetition >= LEAST and steps * sum(times["vmap"][1:]) > SECONDS:
            break
    times = {name: each[1:] for name, each in times.items()}  # the first epoch warms up
    ratios = {
        name: statistics.median(a / b for a, b in zip(each, times["vmap"], strict=True)) for name, each in times.items()
    }
    return {
        "case": case,
        "width": width,
        "rows": size,
        "networks": count,
        "epochs": len(times["vmap"]),
        **{f"{name}_ms": round(1e3 * statistics.median(each), 2) for name, each in times.items()},
        **{f"{name}/vmap": round(value, 2) for name, value in ratios.items() if name != "vmap"},
    }


def agreement(case: str, dtype: torch.dtype, count: int = 3, epochs: int = 20) -> dict[str, object]:
    """Compare outputs after training from the same starts, with one batch per epoch so that row order has no effect."""
    rows = table(200, dtype)
    found, written = ways(case, count, 32, rows)
    for _ in range(epochs):
        for epoch in found.values():
            epoch()
    f: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, models in written().items():
            if len(models) == count:
                f[name] = torch.stack([model.eval().draw(rows.x).f for model in models], 1)  # (S, F, B, K)
            else:
                joint = models[0].eval().draw(rows.x.repeat(count, 1)).f
                f[name] = joint.reshape(len(joint), count, len(rows), -1)
    one = f.pop("in_turn")
    return {
        "agreement with in_turn": case,
        "dtype": str(dtype),
        "steps": epochs,
        "networks": count,
        **{f"largest difference of {name}": float((each - one).abs().max()) for name, each in f.items()},
        **{f"same bytes of {name}": bool(torch.equal(each, one)) for name, each in f.items()},
    }


def main() -> None:
    """Print one JSON line for each case and size."""
    cases = ("ensemble", "restarts", "temperatures", "transformers", "drawn")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"agreement, {', '.join(cases)}; all by default")
    parser.add_argument("--networks", type=int, nargs="+", default=NETWORKS)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "python": platform.python_version(), "threads": 1}), flush=True)
    for case in args.cases or ["agreement", *cases]:
        if case == "agreement":
            for name in cases[:2]:  # drawn weights follow other streams of random numbers
                for dtype in (torch.float32, torch.float64):
                    print(json.dumps(agreement(name, dtype)), flush=True)
            continue
        for width in args.widths:
            for size in args.rows:
                for count in args.networks:
                    print(json.dumps(measure(case, count, width, size)), flush=True)


if __name__ == "__main__":
    main()
