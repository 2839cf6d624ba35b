"""Speed, as ratios of times in one run, and memory.

    python benchmarks/speed.py               all of these
    python benchmarks/speed.py step          a training step, relative to a bare loop over a plain network
    python benchmarks/speed.py many          32 networks in one batch, per network, relative to the bare loop
    python benchmarks/speed.py fit           10,000 rows by 20 columns with the defaults, beside scikit-learn's MLP
    python benchmarks/speed.py sizes         300, 3,000 and 30,000 rows, and 10, 100 and 500 columns, with the defaults
    python benchmarks/speed.py threads       3,000 rows with the defaults on 1, 2, 4, ... threads: seconds of the clock
    python benchmarks/speed.py predict       a million rows in chunks: rows per second and peak memory
    python benchmarks/speed.py row           one row with a fitted default, and exported to ONNX: milliseconds
    python benchmarks/speed.py leapfrog      a leapfrog step of 8 chains, relative to a pass through stacked modules
    python benchmarks/speed.py candidates    40 networks of a weight manifold, one at a time relative to one batch

Ratios are medians over interleaved repetitions, on one thread; times are CPU seconds of the process, except those of
`threads`.
"""

import argparse
import importlib.util
import itertools
import os
import platform
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from fathomless import Restarts, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.manifold.candidates import CandidateStage
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.stages import StagedRun
from fathomless.inference.mcmc.scales import observation
from fathomless.inference.mcmc.weight_sampler import NetworkSampler, WeightState
from fathomless.inference.runs.run import Run
from fathomless.inference.variational import svi
from fathomless.inference.variational.batched import BatchedRun, BatchedRuns
from fathomless.inference.variational.batched import _epoch as many_epoch
from fathomless.inference.variational.padded import PaddedRows
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.stacked import stack
from fathomless.posterior.laws import DepthLaw, StickBreaking, TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.system.torch_state import set_threads

ROWS, BATCH, WIDTH = 1024, 256, 32


def clock(epoch: Callable[[], object]) -> float:
    start = time.process_time()
    epoch()
    return time.process_time() - start


def floor(x: torch.Tensor, y: torch.Tensor, depth: int) -> Callable[[], object]:
    """Return one epoch of a bare loop: tensor batching, fused Adam, nothing else."""
    order = torch.Generator().manual_seed(0)
    widths = [2, *[WIDTH] * depth]
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, fused=True)

    def epoch() -> None:
        rows = torch.randperm(ROWS, generator=order)
        xs, ys = x[rows], y[rows]
        for start in range(0, ROWS, BATCH):
            F.cross_entropy(net(xs[start : start + BATCH]), ys[start : start + BATCH]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return epoch


def posterior(depth: int, law: str) -> DepthLaw:
    """Return the law of a family whose support ends at this depth."""
    make = TruncatedPoisson if law == "poisson" else StickBreaking
    net = MLP(2, 2, 2)
    rate = 0.02
    while UnboundedDepth(net.layer, net.head, law=make(rate)).depth < depth:
        rate *= 1.02
    return make(rate)


def unbounded(x: torch.Tensor, y: torch.Tensor, depth: int, law: str) -> Callable[[], object]:
    """Return one epoch of the library's loop with a nearly constant posterior over depths up to `depth`."""
    net = MLP(2, 2, WIDTH)
    model = UnboundedDepth(net.layer, net.head, law=posterior(depth, law))
    run = Run(model, Categorical(2), Training(epochs=10**6, structure_rate=1e-9), seed=0)
    rows = Rows(x, y)
    steps = svi._make_steps(run, rows)
    return lambda: svi._epoch(run, rows, steps)


def step() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    print(f"training step, width {WIDTH}, batch {BATCH}, two classes, fused Adam: CPU time relative to the bare loop")
    for depth in (3, 7, 15):
        epochs = {"bare loop": floor(x, y, depth)}
        epochs |= {law: unbounded(x, y, depth, law) for law in ("poisson", "stick_breaking")}
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for repetition in range(130):
            for name, epoch in epochs.items():
                seconds = clock(epoch)
                if repetition >= 30:
                    times[name].append(seconds)
        base = statistics.median(times["bare loop"])
        for name in ("poisson", "stick_breaking"):
            ratios = sorted(a / b for a, b in zip(times[name], times["bare loop"], strict=True))
            print(
                f"  m = {depth:2d}  {name:<15}{statistics.median(times[name]) / base:6.2f}   "
                f"(middle half of the paired ratios {ratios[25]:.2f} to {ratios[74]:.2f}; "
                f"bare step {base / 4 * 1e6:.0f} µs)"
            )


def many() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = MLP(2, 2, WIDTH)
    print(f"networks in one batch, width {WIDTH}, batch {BATCH}, each with its own rows: CPU time per network")
    print("relative to the bare loop")
    for depth in (7, 15):
        law = posterior(depth, "poisson")
        bare = floor(x, y, depth)
        for number in (1, 8, 32):
            models = [UnboundedDepth(net.layer, net.head, law=law, seed=seed) for seed in range(number)]
            trainings = [Training(epochs=10**6, structure_rate=1e-9)] * number
            members = [
                BatchedRun(m, Categorical(2), t, i) for i, (m, t) in enumerate(zip(models, trainings, strict=True))
            ]
            runs = BatchedRuns(members)
            rows = PaddedRows.of("training", [Rows(x, y)] * number, number)
            pairs = [(clock(bare), clock(lambda: many_epoch(runs, rows)) / number) for _ in range(40)][10:]  # noqa: B023
            ratios = sorted(mine / theirs for theirs, mine in pairs)
            base = statistics.median(theirs for theirs, _ in pairs)
            print(
                f"  m = {depth:2d}  {number:3d} networks {statistics.median(m for _, m in pairs) / base:6.2f}   "
                f"(middle half of the paired ratios {ratios[7]:.2f} to {ratios[22]:.2f}; "
                f"bare step {base / 4 * 1e6:.0f} µs)"
            )


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 20))
    return X, (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(rows) > 0).astype(int)


def fit() -> None:
    X, y = table(12_000)
    X, X_test, y, y_test = X[:10_000], X[10_000:], y[:10_000], y[10_000:]
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("fit of 10,000 rows by 20 columns with the defaults, CPU seconds, accuracy on 2,000 test rows")
    scale = StandardScaler().fit(X)
    for name, model, a, b in (
        ("fathomless", UnboundedDepthClassifier(random_state=0), X, X_test),
        ("fathomless, n_restarts=5", UnboundedDepthClassifier(random_state=0, n_restarts=5), X, X_test),
        (
            "fathomless, 5 averaged",
            UnboundedDepthClassifier(random_state=0, n_restarts=Restarts(count=5, keep="average")),
            X,
            X_test,
        ),
        (
            "scikit-learn MLP, early stopping",
            MLPClassifier(early_stopping=True, random_state=0),
            scale.transform(X),
            scale.transform(X_test),
        ),
    ):
        start = time.process_time()
        model.fit(a, y)
        print(f"  {name:<34}{time.process_time() - start:6.1f} s   {model.score(b, y_test):.3f}")


def sizes() -> None:
    """Print the time of default fits by the size of the table, their scores on 10,000 other rows, and peak memory.

    Five columns of a table have an influence. The columns of a wider table begin with those of a narrower one.
    """
    print("fits with the defaults: CPU seconds, log-likelihood of 10,000 test rows in nats per row, peak memory so far")
    warnings.simplefilter("ignore", ConvergenceWarning)
    rng = np.random.default_rng(0)
    first = rng.standard_normal((40_000, 20))
    noise = rng.standard_normal(len(first))
    whole = np.concatenate([first, rng.standard_normal((40_000, 480))], 1)
    for rows, columns in ((300, 20), (3_000, 20), (3_000, 10), (3_000, 100), (3_000, 500), (30_000, 20)):
        X = whole[:, :columns]
        signal = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
        for name, make, y in (
            ("classes", UnboundedDepthClassifier, (signal + 0.7 * noise > 0).astype(int)),
            ("numbers", UnboundedDepthRegressor, signal + 0.3 * noise * (1 + X[:, 4] ** 2)),
        ):
            start = time.process_time()
            model = make(random_state=0).fit(X[:rows], y[:rows])
            seconds = time.process_time() - start
            score = model.predict_dist(X[30_000:]).log_prob(y[30_000:]).mean()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            size = f"{rows:>6,} rows, {columns:>3} columns, {name}"
            print(f"  {size}  {seconds:6.1f} s   {score:.3f}   {peak:6,.0f} MiB", flush=True)


def threads() -> None:
    """Print the time of a fit on several threads, up to one for each core."""
    print("fits of 3,000 rows by 20 columns with the defaults, seconds of the clock")
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y = table(3_000)
    count = 1
    while count <= (os.cpu_count() or 1):
        set_threads(count)
        start = time.perf_counter()
        UnboundedDepthClassifier(random_state=0).fit(X, y)
        print(f"  {count} threads  {time.perf_counter() - start:6.1f} s", flush=True)
        count *= 2
    torch.set_num_threads(1)


def row() -> None:
    """Print the latency of one row for fits with the defaults."""
    X, y = table(2_000)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("one row with fits of the defaults, milliseconds of 200 calls")
    for name, make, method in (
        ("classes", UnboundedDepthClassifier, "predict_proba"),
        ("numbers", UnboundedDepthRegressor, "predict"),
    ):
        model = make(random_state=0).fit(X, y if name == "classes" else y + 0.1 * X[:, 3])
        call = getattr(model, method)
        calls: dict[str, Callable[[], Any]] = {method: partial(call, X[:1])}
        if importlib.util.find_spec("onnxruntime"):
            calls["ONNX Runtime"] = exported(model, X[:1])
        for label, one in calls.items():
            times = [clock(one) * 1e3 for _ in range(220)][20:]
            print(
                f"  {name}, {label:<14} smallest {min(times):5.2f}, median {statistics.median(times):5.2f}, "
                f"largest {max(times):5.2f}"
            )


def exported(model: Any, rows: np.ndarray) -> Callable[[], Any]:
    """Return a call of the exported model, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = model.export(Path(folder) / "model.onnx").path
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": rows})


def predict() -> None:
    X, y = table(10_000)
    with warnings.catch_warnings(action="ignore"):
        model = UnboundedDepthClassifier(random_state=0, epochs=20).fit(X, y)
    print("prediction in chunks; peak memory of the process, including the input")
    for rows in (10_000, 100_000, 1_000_000):
        new = np.random.default_rng(1).standard_normal((rows, 20))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.process_time()
        model.predict(new)
        seconds = time.process_time() - start
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"  {rows:>9,} rows ({new.nbytes / 2**20:6.1f} MiB): {rows / seconds:>10,.0f} rows per second, "
            f"peak {after:7.0f} MiB, {after - before:+.0f} MiB by the prediction"
        )


def leapfrog() -> None:
    print("one leapfrog step of 8 chains, width 32, tanh, relative to a forward and backward pass of stacked modules")
    for rows, columns, depth in ((277, 6, 1), (277, 6, 2), (455, 13, 1), (455, 13, 3), (927, 8, 1), (927, 8, 3)):
        widths = [columns, *[WIDTH] * depth]
        layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.Tanh())]
        network = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        x, y = torch.randn(rows, columns), torch.randn(rows, 1)
        sampler = NetworkSampler(network, x, observation(Gaussian(), y, None), leapfrogs=50)
        generators = [np.random.default_rng(k) for k in range(8)]
        states = [sampler.start(generator) for generator in generators]
        modules = stack([network] * 8)
        tiled = x.repeat(8, 1)
        targets = y.repeat(8, 1)

        def passes(modules: nn.Module = modules, tiled: torch.Tensor = tiled, targets: torch.Tensor = targets) -> None:
            for _ in range(50):
                modules.zero_grad(set_to_none=True)
                (modules(tiled) - targets).square().sum().backward()

        def sweep(
            sampler: NetworkSampler = sampler,
            states: list[WeightState] = states,
            generators: list[np.random.Generator] = generators,
        ) -> None:  # including its Gibbs steps
            sampler.sweep_all(states, 0, generators)

        pairs = [(clock(passes), clock(sweep)) for _ in range(25)][5:]
        ratios = sorted(mine / theirs for theirs, mine in pairs)
        print(
            f"  {rows:4d} rows, {columns:2d} columns, depth {depth}  {statistics.median(ratios):5.2f}   (middle half "
            f"{ratios[5]:.2f} to {ratios[14]:.2f}; a step {statistics.median(m for _, m in pairs) / 50 * 1e3:.2f} ms)"
        )


def candidates() -> None:
    """Print the time of 40 networks one at a time, in ordinary modules, relative to one batch."""
    count, steps = 40, 20
    print(f"{steps} steps of {count} networks of 50 units, all rows in each: one at a time, relative to one batch")
    for rows, columns in ((100, 6), (277, 6), (455, 13), (927, 8)):
        x, y = torch.randn(rows, columns), torch.randn(rows, 1)
        network = FlatNetwork(columns, 1, (50,))
        start = 0.3 * torch.randn(count, network.size)
        none = torch.zeros(count, rows, dtype=torch.bool)
        law = Gaussian(noise="stated")
        like = torch.ones(network.size)
        noise = torch.zeros(count, 1)

        def side_by_side(stage: CandidateStage) -> None:
            StagedRun({"candidates": lambda _: stage}, 0, rounds=1).advance()

        def in_turn(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            for _ in range(count):
                module = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
                scale = nn.Parameter(torch.zeros(1))
                parameters = [*module.parameters(), scale]
                optimiser = torch.optim.Adam(parameters, lr=1e-2, fused=True)
                for _ in range(steps):
                    optimiser.zero_grad()
                    fit = (0.5 * ((module(x) - y) * torch.exp(-scale)).square() + scale).sum()
                    (fit + 0.5 * torch.stack([p.square().sum() for p in parameters]).sum()).backward()
                    optimiser.step()

        ratios = []
        for _ in range(7):
            stage = CandidateStage(
                network, law, Rows(x, y), none, start, torch.zeros_like(start), like, noise, steps=steps
            )
            mine = clock(lambda stage=stage: side_by_side(stage))  # type: ignore[misc]
            ratios.append(clock(in_turn) / mine)
        low, *_, high = ratios = sorted(ratios[1:])
        middle = statistics.median(ratios)
        print(f"  {rows:4d} rows, {columns:2d} columns  {middle:5.1f}   ({low:.1f} to {high:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "step": step,
        "many": many,
        "fit": fit,
        "sizes": sizes,
        "predict": predict,
        "threads": threads,
        "row": row,
        "leapfrog": leapfrog,
        "candidates": candidates,
    }
    parser.add_argument("what", nargs="*", help=f"{', '.join(parts)}; all by default")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread")
    for name in parser.parse_args().what or parts:
        parts[name]()


if __name__ == "__main__":
    main()
