"""Fits of models, not of estimators, in any mode of torch; threads that share global streams; children by fork."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.data.rows import Rows
from fathomless.estimators.values import HMC
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational import svi
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.errors import DataError
from fathomless.system.rng import building, seeded_globals

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

MODES: list[Callable[[], AbstractContextManager[Any]]] = [torch.no_grad, torch.inference_mode]
TINY: dict[str, Any] = {"epochs": 4, "width": 4, "validation_fraction": 0.2, "random_state": 0}
#: Weights that are sampled.
CHAINS = TINY | {"weights": HMC(chains=2, sweeps=16, leapfrogs=3, states=4), "cv": 2}
CHAINS = {name: value for name, value in CHAINS.items() if name != "validation_fraction"}


def table() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=60)


def started(seed: int = 0) -> tuple[UnboundedDepth, Gaussian, Rows]:
    X, y = (torch.as_tensor(part, dtype=torch.float32) for part in table())
    net = MLP(inputs=2, outputs=1, width=4)
    return UnboundedDepth(net.layer, net.head, seed=seed), Gaussian(1), Rows(X, y[:, None])


def bits(*modules: nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for module in modules for value in module.state_dict().values()]


@pytest.mark.parametrize("mode", MODES)
def test_models_are_trained_in_any_mode(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    model, likelihood, rows = started()
    svi.fit(model, likelihood, rows, rows, training=Training(epochs=3))
    other, its, _ = started()
    with mode():
        svi.fit(other, its, rows, rows, training=Training(epochs=3))
        assert not torch.is_grad_enabled()
    assert bits(model, likelihood) == bits(other, its)


@pytest.mark.parametrize("mode", MODES)
def test_models_are_trained_side_by_side_in_any_mode(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    found = []
    for around in (torch.enable_grad, mode):
        pairs = [started(seed)[:2] for seed in (0, 1)]
        models, likelihoods = zip(*pairs, strict=True)
        rows = started()[2]
        with around():
            fit_batched(models, likelihoods, rows, training=Training(epochs=3))
        found.append(bits(*models, *likelihoods))
    assert found[0] == found[1]


@pytest.mark.parametrize("part", ["x", "model"])
def test_tensors_of_inference_mode_are_refused(part: str) -> None:
    model, likelihood, rows = started()
    with torch.inference_mode():
        inside = started()
        model, rows = (inside[0], rows) if part == "model" else (model, inside[2])
    with pytest.raises(DataError, match=rf"^{part}.* was made inside torch\.inference_mode\(\)"):
        svi.fit(model, likelihood, rows)


@pytest.mark.parametrize("mode", MODES)
def test_parts_and_fits_that_go_on_are_those_of_the_usual_mode(
    mode: Callable[[], AbstractContextManager[Any]], tmp_path: Any
) -> None:
    X, y = table()
    options = {**TINY, "structure_from": "elbo", "warm_start": True}

    def found() -> bytes:
        first = UnboundedDepthRegressor(**options).partial_fit(X, y).partial_fit(X, y)
        first.predict(X)
        loaded = fathomless.load(first.save(tmp_path / "run"))
        loaded.predict(X)
        return bytes(loaded.fit(X, y).predict(X).tobytes())

    expected = found()
    with mode():
        first = found()
    assert first == expected


def test_a_loaded_estimator_goes_on_outside_the_mode_it_was_loaded_in(tmp_path: Any) -> None:
    X, y = table()
    options = {**TINY, "structure_from": "elbo", "warm_start": True}
    UnboundedDepthRegressor(**options).fit(X, y).save(tmp_path / "run")
    with torch.inference_mode():
        loaded = fathomless.load(tmp_path / "run")
        told = loaded.predict_dist(X)
        told.quantile(0.5)
    assert not told.mean.is_inference()
    loaded.fit(X, y)


@pytest.mark.parametrize("options", [CHAINS], ids=["chains"])
def test_sampled_weights_use_up_no_global_stream_and_fit_in_any_mode(options: dict[str, Any], tmp_path: Any) -> None:
    X, y = table()
    before = torch.get_rng_state()
    expected = UnboundedDepthRegressor(**options).fit(X, y).predict(X)
    with torch.inference_mode():
        estimator = UnboundedDepthRegressor(**options).fit(X, y)
    assert np.array_equal(fathomless.load(estimator.save(tmp_path / "run")).predict(X), expected)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(one, expected) for one in pool.map(estimator.predict, [X] * 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_predictions_part_by_part_leave_the_mode_to_the_caller() -> None:
    estimator = UnboundedDepthRegressor(**TINY).fit(*table())
    for _ in estimator._predictives(table()[0]):
        assert torch.is_grad_enabled()


def test_one_thread_at_a_time_has_the_global_stream() -> None:
    def drawn(seed: int) -> float:
        with seeded_globals(seed):
            first = float(torch.rand(()))
            threading.Event().wait(0.001)
            return first + float(torch.rand(()))

    expected = [drawn(seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drawn, range(16))) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_modules_are_built_in_single_precision(dtype: torch.dtype) -> None:
    with building(0):
        expected = nn.Linear(3, 2).weight
    torch.set_default_dtype(dtype)
    try:
        with building(0):
            found = nn.Linear(3, 2).weight
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


FORKED = """
import multiprocessing, threading
import numpy as np
from fathomless import UnboundedDepthRegressor
from fathomless.system.rng import seeded_globals

r = np.random.default_rng(0)
X = r.normal(size=(60, 2))
y = X[:, 0] + 0.1 * r.normal(size=60)
m = UnboundedDepthRegressor(random_state=0, epochs=4, cv=2, width=4).fit(X, y)

def answer(_):
    return m.predict(X), UnboundedDepthRegressor(random_state=0, epochs=4, cv=2, width=4).fit(X, y).predict(X)

if __name__ == "__main__":
    held, done = threading.Event(), threading.Event()
    def hold():
        with seeded_globals(0):
            held.set()
            done.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()  # the child is forked while another thread has the global streams
    pool = multiprocessing.get_context("fork").Pool(1)
    found = pool.map_async(answer, [0])
    done.set()
    predicted, fitted = found.get(timeout=60)[0]
    pool.terminate()
    assert np.allclose(predicted, m.predict(X))
    assert np.allclose(fitted, predicted)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs os.fork")
def test_a_forked_child_predicts_and_fits() -> None:
    threads = {**os.environ, "OMP_NUM_THREADS": "2"}
    words = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(words, env=threads, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
