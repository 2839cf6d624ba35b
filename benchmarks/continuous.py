"""CPU seconds and memory of a training step of continuous depth, compared with other implementations.

The references are a lower bound, plain residual networks and torchsde.

    python benchmarks/continuous.py                       the table, then memory against the number of steps
    python benchmarks/continuous.py table memory          the same
    python benchmarks/continuous.py --torchsde PYTHON     with torchsde, run by another interpreter that has it

The network is that of the paper: 5132 weights that vary with depth, 25 paths, 40 rows, 50 steps, a drift network of
width 64. A step is a forward and a backward pass. The lower bound F evaluates only the slope and the drift at each
time, with their gradients. Every variant is a separate process with one thread. The processes alternate, one step each,
and the minimum of CPU seconds is reported. Memory is the peak resident size of the process on Linux (VmHWM) minus its
size before the first step. The C library does not return freed blocks between small blocks that are still in use. A
checkpointed step leaves many of them and would appear as large as a step that stores all states; memory is therefore
shown with and without this fragmentation.
"""

import argparse
import importlib
import importlib.util
import itertools
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

SIZES = (3, 64, 64, 3)  # one column, two zeros
PATHS, ROWS, STEPS, UNITS, THETA = 25, 40, 50, 64, 0.25
MEMORY_PATHS = 10
LIMIT = 4 * 2**30  # bytes; larger runs are skipped
_RETURN = {
    "MALLOC_MMAP_THRESHOLD_": "65536"
}  # glibc: larger blocks are returned to the system as soon as they are freed

Step = Callable[[], object]


def rows() -> torch.Tensor:
    return torch.linspace(-1.5, 1.5, ROWS)[:, None]


# ---- this library (imported inside functions: the interpreter with torchsde need not have it)


def model(drift: str, solver: str, gradient: str, steps: int) -> Any:
    from fathomless.families.continuous.dynamics import MLPDynamics
    from fathomless.families.continuous.model import ContinuousDepth
    from fathomless.families.continuous.processes import OrnsteinUhlenbeck
    from fathomless.families.continuous.solve import PathInference

    network = MLPDynamics(1, 1, hidden=SIZES[1:-1], encoder="pad", augment=2, activation="swish", time="gate")
    kind = "euler" if solver == "euler" and drift == "network" else "exact"
    options = PathInference(
        drift=drift, rank=UNITS, solver=solver, transition=kind, gradient=gradient, steps=steps, jitter="none"
    )
    return ContinuousDepth(network, prior=OrnsteinUhlenbeck(rate=THETA), options=options)


def ours(drift: str = "network", solver: str = "euler", gradient: str = "unrolled") -> Callable[[int, int], Step]:
    def make(paths: int, steps: int) -> Step:
        net = model(drift, solver, gradient, steps)
        x = rows()
        noise = torch.Generator().manual_seed(0)

        def step() -> None:
            net.zero_grad()
            drawn = net.draw(x, paths, noise)
            torch.autograd.backward(drawn.f.square().mean() + 1e-3 * drawn.divergence["weights"])

        return step

    return make


def floor(paths: int, steps: int) -> Step:
    """Return a step that only evaluates slope and drift, with their gradients."""
    from fathomless.families.continuous.solve import split_weights

    net = model("network", "euler", "unrolled", steps)
    network = net.drift.network.bind(stopped=False)
    parameters = list(net.drift.network.parameters())
    w = net.mean.detach()[:, None].expand(-1, paths, -1).clone().requires_grad_()
    h = torch.randn(1, paths, ROWS, SIZES[0], generator=torch.Generator().manual_seed(1)).requires_grad_()

    def step() -> None:
        for i in range(steps):
            f = net.dynamics.slope(split_weights(w * net.scale, net.dynamics.moving), i / steps, h)
            c = network(i / steps, w)
            torch.autograd.grad((f, c), (w, h, *parameters), (f.detach(), c.detach()), allow_unused=True)

    return step


def plain(paths: int, steps: int) -> Step:
    """Return a step of `paths` plain residual networks, with separate weights in every block."""
    from fathomless.families.continuous.solve import follow, split_weights

    net = model("diagonal", "euler", "unrolled", steps)
    flat = [(net.mean.detach() * net.scale)[:, None].expand(-1, paths, -1).clone() for _ in range(steps + 1)]
    blocks = [[part.clone().requires_grad_() for part in split_weights(one, net.dynamics.moving)] for one in flat]
    grid = tuple(i / steps for i in range(steps + 1))
    h = F.pad(rows(), (0, 2)).expand(1, paths, -1, -1)

    def step() -> None:
        for block in blocks:
            for part in block:
                part.grad = None
        end = follow(net.dynamics, blocks, h, grid, [steps], "euler")[0]
        torch.autograd.backward(end[..., -1:].square().mean())

    return step


# ---- the same model with torchsde: one state of weights, hidden states and divergence, as published


class Joint(torch.nn.Module):
    """Drift and diffusion of the joint state, shape (S, P + B·H + 1)."""

    noise_type = "diagonal"

    def __init__(self, sde_type: str) -> None:
        super().__init__()
        self.sde_type = sde_type
        noise = torch.Generator().manual_seed(0)
        shapes = []
        for k, (a, b) in enumerate(itertools.pairwise(SIZES)):
            shapes += [(a, b), *[(b,)] * (4 if k == len(SIZES) - 2 else 5)]
        self.shapes = shapes
        self.size = sum(math.prod(shape) for shape in shapes)
        self.start = torch.nn.Parameter(0.1 * torch.randn(self.size, generator=noise))
        self.diffusion = math.sqrt(2.0 * THETA)
        self.net = torch.nn.ParameterList()
        for k, (a, b) in enumerate(((self.size, UNITS), (UNITS, UNITS), (UNITS, self.size))):
            weight = torch.randn(a, b, generator=noise) / math.sqrt(a) * (k < 2)
            self.net.extend([torch.nn.Parameter(weight), *(torch.nn.Parameter(torch.zeros(b)) for _ in range(4))])

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the drift."""
        w = y[:, : self.size]
        h = y[:, self.size : -1].reshape(-1, ROWS, SIZES[0])
        c = w
        for k in range(3):
            weight, bias, gate, shift, time_ = (self.net[5 * k + j] for j in range(5))
            factor = torch.sigmoid(gate * t + shift)
            c = torch.addcmul(bias * factor + time_ * t, (F.silu(c) if k else c) @ weight, factor)
        parts = torch.split(w, [math.prod(shape) for shape in self.shapes], 1)
        rest = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        for k in range(len(SIZES) - 1):
            weight, bias, a, b, d, *rest = rest
            gate = torch.sigmoid(a * t + b)
            h = torch.baddbmm((bias * gate + d * t)[:, None], h, weight * gate[:, None])
            if k < len(SIZES) - 2:
                beta, *rest = rest
                h = h * torch.sigmoid(h * F.softplus(beta)[:, None])
        price = (0.5 / self.diffusion**2) * c.square().sum(1, keepdim=True)
        return torch.cat([c - THETA * w, h.flatten(1), price], 1)

    def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the diffusion."""
        on = y.new_full((len(y), self.size), self.diffusion)
        return torch.cat([on, y.new_zeros(len(y), y.shape[1] - self.size)], 1)


def torchsde(method: str, adjoint: bool) -> Callable[[int, int], Step]:
    def make(paths: int, steps: int) -> Step:
        peer = importlib.import_module("torchsde")
        net = Joint("ito" if method == "euler" else "stratonovich")
        ends = torch.tensor([0.0, 1.0])
        h = F.pad(rows(), (0, 2)).flatten().expand(paths, -1)
        how: dict[str, Any] = {"method": method, "dt": 1.0 / steps}
        if adjoint:
            how["adjoint_method"] = "adjoint_reversible_heun" if method == "reversible_heun" else method
        seeds = iter(range(10**6))

        def step() -> None:
            net.zero_grad()
            y = torch.cat([net.start.expand(paths, -1), h, h.new_zeros(paths, 1)], 1)
            noise = peer.BrownianInterval(0.0, 1.0, size=tuple(y.shape), entropy=next(seeds))
            end = (peer.sdeint_adjoint if adjoint else peer.sdeint)(net, y, ends, bm=noise, **how)[-1]
            read = end[:, net.size : -1][:, 2 :: SIZES[0]]
            torch.autograd.backward(read.square().mean() + 1e-3 * end[:, -1].mean())

        return step

    return make


# ---- a process for each variant

VARIANTS: dict[str, Callable[[int, int], Step]] = {
    "floor F": floor,
    "Euler, unrolled": ours(),
    "Heun, unrolled": ours(solver="heun"),
    "Euler, checkpointed": ours(gradient="checkpointed"),
    "Heun, checkpointed": ours(solver="heun", gradient="checkpointed"),
    "reversible Heun": ours(solver="heun", gradient="reversible"),
    "diagonal drift, Euler": ours(drift="diagonal"),
    "plain residual networks": plain,
    "torchsde Euler, unrolled": torchsde("euler", False),
    "torchsde reversible Heun, unrolled": torchsde("reversible_heun", False),
    "torchsde midpoint, unrolled": torchsde("midpoint", False),
    "torchsde reversible Heun, adjoint": torchsde("reversible_heun", True),
    "torchsde midpoint, adjoint": torchsde("midpoint", True),
}


def resident(name: str) -> float:
    """Return VmRSS or VmHWM of this process in MiB."""
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) / 1024


def work(name: str, paths: int, steps: int) -> None:
    """Take one step for each line of standard input; print its CPU seconds and the peak memory so far."""
    torch.set_num_threads(1)
    step = VARIANTS[name](paths, steps)
    before = resident("VmRSS")
    for _ in sys.stdin:
        start = time.process_time()
        step()
        print(time.process_time() - start, resident("VmHWM") - before, flush=True)


class Worker:
    """Variant of a step in a separate process."""

    def __init__(self, name: str, python: str, paths: int, steps: int, *, returned: bool = False) -> None:
        given = [python, __file__, "--variant", name, "--paths", str(paths), "--steps", str(steps)]
        env = {**os.environ, **(_RETURN if returned else {})}
        self.process = subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.seconds: list[float] = []
        self.peak = 0.0

    def step(self) -> None:
        """Run one step and record its time and memory."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        seconds, self.peak = map(float, self.process.stdout.readline().split())
        self.seconds.append(seconds)

    def close(self) -> None:
        """Close the process."""
        self.process.communicate()


def table(peer: str | None, rounds: int) -> None:
    names = [name for name in VARIANTS if peer or not name.startswith("torchsde")]
    workers = {
        name: Worker(name, peer if peer and name.startswith("torchsde") else sys.executable, PATHS, STEPS)
        for name in names
    }
    for _ in range(rounds):
        for worker in workers.values():
            worker.step()
    for worker in workers.values():
        worker.close()
    least = {name: min(worker.seconds) for name, worker in workers.items()}
    euler, base = least["Euler, unrolled"], least["floor F"]
    print(f"a step of {PATHS} paths, {ROWS} rows, {STEPS} steps, 5132 weights; minimum of {rounds} rounds")
    print(f"  {'':<36}{'CPU s':>8}{'/ Euler':>9}{'/ F':>7}{'MiB':>7}")
    for name, seconds in least.items():
        peak = workers[name].peak
        print(f"  {name:<36}{seconds:>8.3f}{seconds / euler:>9.2f}{seconds / base:>7.2f}{peak:>7.0f}")
    print("targets")
    _target("Euler / F", euler / base, 1.15)
    _target("Heun / F", least["Heun, unrolled"] / base, 2.2)
    _target("Euler, checkpointed / unrolled", least["Euler, checkpointed"] / euler, 1.9)
    _target("Heun, checkpointed / unrolled", least["Heun, checkpointed"] / least["Heun, unrolled"], 1.9)
    _target("reversible / Euler", least["reversible Heun"] / euler, 2.7)
    _target("diagonal / plain", least["diagonal drift, Euler"] / least["plain residual networks"], 1.5)
    if peer:
        fastest = min(seconds for name, seconds in least.items() if name.startswith("torchsde"))
        _target("torchsde's fastest / Euler", fastest / euler, 1.2, least=True)
        _target("torchsde midpoint, adjoint / Euler", least["torchsde midpoint, adjoint"] / euler, 4.0, least=True)


def _target(name: str, ratio: float, wanted: float, *, least: bool = False) -> None:
    met = ratio >= wanted if least else ratio <= wanted
    print(f"  {name:<36}{ratio:>8.2f}   {'at least' if least else 'at most'} {wanted}: {'met' if met else 'MISSED'}")


def memory(peer: str | None, rounds: int) -> None:
    kinds, counts = ("Heun, unrolled", "Heun, checkpointed", "reversible Heun"), (100, 800, 1000, 10_000)
    peaks: dict[tuple[str, bool, int], float] = {}
    print(f"peak memory of a step by the number of steps, {MEMORY_PATHS} paths, {ROWS} rows, MiB")
    for returned in (True, False):
        print("  freed memory returned to the system" if returned else "  default malloc of the C library")
        print(f"  {'steps':<22}" + "".join(f"{n:>10,}" for n in counts))
        for name in kinds:
            cells = []
            for n in counts:
                grows = "reversible" not in name and not (returned and "checkpointed" in name)
                if grows and peaks.get((name, returned, 100), 0.0) * n / 100 * 2**20 > LIMIT:
                    cells.append(f"{'> 4 GiB':>10}")
                    continue
                worker = Worker(name, sys.executable, MEMORY_PATHS, n, returned=returned)
                for _ in range(2 if n < 800 else 1):
                    worker.step()
                worker.close()
                peaks[name, returned, n] = worker.peak
                cells.append(f"{worker.peak:>10,.0f}")
            print(f"  {name:<22}" + "".join(cells), flush=True)
    print("targets")
    for returned, how in ((True, ""), (False, ", malloc")):
        ratio = peaks["Heun, checkpointed", returned, 800] / peaks["Heun, unrolled", returned, 800]
        _target(f"checkpointed / unrolled, 800 steps{how}", ratio, 0.4)
        flat = [peaks["reversible Heun", returned, n] for n in counts]
        _target(f"reversible, largest / smallest{how}", max(flat) / min(flat), 1.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="table, memory; both by default")
    parser.add_argument("--torchsde", metavar="PYTHON", help="an interpreter that has torch and torchsde")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--paths", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        work(args.variant, args.paths, args.steps)
        return
    peer = args.torchsde or (sys.executable if importlib.util.find_spec("torchsde") else None)
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread, seed 0")
    parts = {"table": table, "memory": memory}
    for name in args.what or parts:
        parts[name](peer, args.rounds)


if __name__ == "__main__":
    main()
