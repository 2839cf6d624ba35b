"""Bayesian optimisation of two test functions with networks, a Gaussian process, and random points.

    python benchmarks/bayesian_optimization.py          three seeds, about 10 minutes of one core
    python benchmarks/bayesian_optimization.py smoke    one short run of each method, less than a minute

Branin's function has two inputs, and Hartmann's has six. Each run starts with 2 d + 2 random points, the same for all
methods. A model is then fitted to all points, the expected improvement (qLogExpectedImprovement) chooses the next one
or three points, and so on. The Gaussian process is BoTorch's SingleTaskGP on inputs scaled to [0, 1], with its default
kernel and priors. The networks are one network of unbounded depth, fitted to all points for 300 epochs again for each
batch, with the posterior of the last layer of each depth (``last_layer="conjugate"``), as in Snoek et al., "Scalable
Bayesian optimization using deep neural networks", ICML 2015.

The output is the regret: the difference between the largest value of the function and the largest value found, after a
number of evaluations. It is the median of all seeds, with the smallest and the largest.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from botorch.test_functions.synthetic import SyntheticTestFunction
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from fathomless import UnboundedDepthRegressor

#: Function, number of evaluations after the first points, and points of a batch.
PROBLEMS: dict[str, tuple[Callable[[], SyntheticTestFunction], int, int]] = {
    "Branin": (lambda: Branin(negate=True), 15, 1),
    "Hartmann6": (lambda: Hartmann(dim=6, negate=True), 24, 3),
}
OPTIONS: dict[str, Any] = {  # of the networks; all others are the defaults
    "cv": 1,
    "epochs": 300,
    "last_layer": "conjugate",
    "weight_draws": 32,
    "recalibrate": False,
}
Proposal = Callable[[Tensor, Tensor, Tensor, int, int, int], Tensor]


def maximise(model: object, y: Tensor, bounds: Tensor, q: int) -> Tensor:
    """Return the q points (q, d) of the largest expected improvement over the values y, (n,)."""
    acquisition = qLogExpectedImprovement(model, best_f=y.max())
    found, _ = optimize_acqf(acquisition, bounds, q=q, num_restarts=4, raw_samples=128, sequential=True)
    return torch.as_tensor(found)


def use_networks(x: Tensor, y: Tensor, bounds: Tensor, q: int, seed: int, epochs: int) -> Tensor:
    """Fit networks to values y (n,) at points x (n, d), and return the next points."""
    fit = UnboundedDepthRegressor(**{**OPTIONS, "epochs": epochs}, random_state=seed).fit(x.numpy(), y.numpy())
    return maximise(fit.to_botorch(), y, bounds, q)


def use_process(x: Tensor, y: Tensor, bounds: Tensor, q: int, seed: int, epochs: int) -> Tensor:
    """Fit a Gaussian process, and return the next points."""
    model = SingleTaskGP(x, y[:, None], input_transform=Normalize(x.shape[1], bounds=bounds))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return maximise(model, y, bounds, q)


def use_chance(x: Tensor, y: Tensor, bounds: Tensor, q: int, seed: int, epochs: int) -> Tensor:
    """Return random points."""
    return bounds[0] + (bounds[1] - bounds[0]) * torch.rand(q, x.shape[1], dtype=torch.float64)


METHODS: dict[str, Proposal] = {"networks": use_networks, "SingleTaskGP": use_process, "random": use_chance}


def evaluations_of(name: str, smoke: bool) -> int:
    """Return the number of evaluations after the first points."""
    _, evaluations, q = PROBLEMS[name]
    return 2 * q if smoke else evaluations


def run(name: str, method: str, seed: int, smoke: bool) -> tuple[list[float], float]:
    """Return the regret after each evaluation, and the seconds of a batch."""
    make, _, q = PROBLEMS[name]
    evaluations, epochs = evaluations_of(name, smoke), 20 if smoke else OPTIONS["epochs"]
    function = make()
    bounds = function.bounds.double()
    torch.manual_seed(seed)
    first = torch.rand(2 * bounds.shape[1] + 2, bounds.shape[1], dtype=torch.float64)
    x = bounds[0] + (bounds[1] - bounds[0]) * first
    y = function(x)
    start = time.perf_counter()
    for step in range(evaluations // q):
        torch.manual_seed(1000 * seed + step)
        new = METHODS[method](x, y, bounds, q, seed, epochs)
        x, y = torch.cat([x, new]), torch.cat([y, function(new)])
    seconds = (time.perf_counter() - start) / (evaluations // q)
    return (function.optimal_value - y.cummax(0).values).tolist(), seconds


def main() -> None:
    """Print the regret of every method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=["full", "smoke"], default="full")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    smoke = arguments.mode == "smoke"
    warnings.simplefilter("ignore")  # of the optimiser of acquisition functions
    for name in PROBLEMS:
        print(f"\n{name}: regret, median (least to largest) of seeds, after evaluations", flush=True)
        for method in METHODS:
            runs = [run(name, method, seed, smoke) for seed in range(1 if smoke else arguments.seeds)]
            regret = np.array([one for one, _ in runs])  # (seeds, n)
            count = regret.shape[1]
            begin = count - evaluations_of(name, smoke)
            places = sorted({begin, (begin + count) // 2, count})
            cells = [
                f"{at}: {np.median(regret[:, at - 1]):.3g} ({regret[:, at - 1].min():.3g} to "
                f"{regret[:, at - 1].max():.3g})"
                for at in places
            ]
            seconds = np.mean([one for _, one in runs])
            print(f"{method:<13} {'   '.join(cells)}   {seconds:.1f} s a batch", flush=True)


if __name__ == "__main__":
    main()
