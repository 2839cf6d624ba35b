"""A fit that is killed at any moment, again and again, ends in the bytes of a fit that was never killed."""

import multiprocessing
import signal
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fathomless import io
from fathomless.estimators import UnboundedDepthClassifier, UnboundedDepthRegressor

FITS = [  # one or more of each family of laws, with point estimates and with drawn weights
    ("poisson", "map"),
    ("poisson", "meanfield"),
    ("two_sided", "map"),
    ("taper", "meanfield"),
    ("quantile", "map"),
    ("stick_breaking", "meanfield"),
    ("categorical", "map"),
]
KILLS = 4  # of each fit
EPOCHS = 48


def build(law: str, weights: str, checkpoint: Path | None) -> Any:
    kind = UnboundedDepthClassifier if law in ("poisson", "quantile") else UnboundedDepthRegressor
    return kind(
        depth_law=law,
        weights=weights,
        width=6,
        epochs=EPOCHS,
        batch_size=32,
        structure_rate=2.0,  # the support changes under way, so that layers come and go
        patience=None,
        random_state=0,
        checkpoint=checkpoint,
        checkpoint_seconds=0,
    )


def fit(law: str, weights: str, checkpoint: Path | None, model: Path, started: Any = None) -> None:
    """Fit and save; also what the child process runs."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = (X[:, 0] * X[:, 1] > 0) if law in ("poisson", "quantile") else np.sin(2 * X[:, 0]) + X[:, 1]
    estimator = build(law, weights, checkpoint)
    if started is not None:
        started.send(True)
    estimator.fit(X, y).save(model)


@pytest.fixture(scope="module")
def server() -> Any:
    """Processes that start in no time, with torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fathomless.estimators"])
    return context


def kill_once(server: Any, arguments: tuple[Any, ...], patience: float | None) -> bool:
    """Run a fit, kill it after so many seconds of training (None: never); return whether it was killed alive."""
    listening, started = server.Pipe(duplex=False)
    child = server.Process(target=fit, args=(*arguments, started))
    child.start()
    started.close()
    try:
        listening.recv()  # the training begins now
        if patience is not None:
            wait([child.sentinel], timeout=patience)
            child.kill()
        child.join()
    finally:
        listening.close()
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode == -signal.SIGKILL


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fathomless.errors.ConvergenceWarning")
def test_a_fit_that_is_killed_at_random_moments_ends_in_the_same_bytes(server: Any, tmp_path: Path) -> None:
    random, kills, between = Random(0), 0, 0
    for law, weights in FITS:
        home = tmp_path / f"{law} {weights}"
        home.mkdir()
        began = time.monotonic()
        kill_once(server, (law, weights, None, home / "whole"), None)
        length = time.monotonic() - began
        for _ in range(KILLS):
            before = epoch(home / "checkpoint")
            kills += kill_once(server, (law, weights, home / "checkpoint", home / "model"), random.uniform(0.1, 0.4))
