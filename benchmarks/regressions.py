"""Times that must not grow: training steps, batched fits, prediction, start of the command line.

    pytest benchmarks/regressions.py --benchmark-only --benchmark-autosave
    pytest benchmarks/regressions.py --benchmark-only --benchmark-compare --benchmark-compare-fail=median:30%

The second command compares with the last saved run on the same machine and fails if a median grew by 30 %. The extra
``bench`` is needed.
"""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from speed import ROWS, posterior, unbounded

from fathomless import UnboundedDepthClassifier
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational.batched import BatchedRun, BatchedRuns
from fathomless.inference.variational.batched import _epoch as many_epoch
from fathomless.inference.variational.padded import PaddedRows
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.likelihoods import Categorical


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] * x[:, 1] > 0).long()


@pytest.mark.parametrize("depth", [3, 7, 15])
def test_epoch_of_one_network(benchmark: BenchmarkFixture, depth: int) -> None:
    benchmark(unbounded(*data(), depth, "poisson"))


@pytest.mark.parametrize("number", [1, 8, 32])
def test_epoch_of_networks_side_by_side(benchmark: BenchmarkFixture, number: int) -> None:
    net = MLP(2, 2, 32)
    law = posterior(7, "poisson")
    training = Training(epochs=10**6, structure_rate=1e-9)
    models = [UnboundedDepth(net.layer, net.head, law=law, seed=seed) for seed in range(number)]
    runs = BatchedRuns([BatchedRun(model, Categorical(2), training, seed) for seed, model in enumerate(models)])
    rows = PaddedRows.of("training", [Rows(*data())] * number, number)
    benchmark(many_epoch, runs, rows)


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_prediction(benchmark: BenchmarkFixture, rows: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 20))
    y = rng.integers(2, size=2000)
    with warnings.catch_warnings(action="ignore"):
        model = UnboundedDepthClassifier(random_state=0, epochs=5).fit(X, y)
    benchmark(model.predict_proba, rng.standard_normal((rows, 20)))


def test_help_of_the_command_line(benchmark: BenchmarkFixture) -> None:
    benchmark(subprocess.run, [sys.executable, "-m", "fathomless.app.cli", "--help"], capture_output=True, check=True)
