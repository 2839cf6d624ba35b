"""A fit that is killed at any moment, again and again, ends in the bytes of a fit that was never killed."""

import multiprocessing
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor

FITS = [  # several families of laws, point estimates and drawn weights, depth by held-out rows and by the bound
    ("poisson", "meanfield", "auto"),
    ("two_sided", "map", "elbo"),
    ("quantile", "map", "elbo"),
    ("stick_breaking", "meanfield", "auto"),
]
KILLS = 5  # of each fit
EPOCHS = 40


def fit(law: str, weights: str, structure: str, checkpoint: Path, model: Path, news: Connection) -> None:
    """Fit and save, telling of every epoch before its checkpoint is written; a child process runs this."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    classes = law in ("poisson", "quantile")
    estimator = (UnboundedDepthClassifier if classes else UnboundedDepthRegressor)(
        depth_law=law,
        weights=weights,
        structure_from=structure,
        width=6,
        epochs=EPOCHS,
        batch_size=32,
        structure_rate=1.0,  # the support changes under way: layers come and go
        patience=None,
        random_state=0,
        checkpoint=checkpoint,
        checkpoint_seconds=0,
        callbacks=[lambda run: news.send((run.epoch, run.model.depth))],
    )
    estimator.fit(X, X[:, 0] * X[:, 1] > 0 if classes else np.sin(2 * X[:, 0]) + X[:, 1])
    estimator.save(model)


class Life:
    """One process that fits."""

    def __init__(self, context: Any, *arguments: Any) -> None:
        self.listening, news = context.Pipe(duplex=False)
        self.child = context.Process(target=fit, args=(*arguments, news))
        self.child.start()
        news.close()  # the child holds the other end, so its death is heard

    def news(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the depth of every epoch, until the end."""
        while True:
            try:
                yield self.listening.recv()
            except EOFError:
                return

    def end(self, kill: bool) -> int:
        """Kill the process, or wait for it; return its exit code."""
        if kill:
            self.child.kill()
        self.child.join()
        self.listening.close()
        return self.child.exitcode


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_fit_that_is_killed_at_random_moments_ends_in_the_same_bytes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch._dynamo", "fathomless.families.depth.estimator"]
    )  # or torch loads it in every child
    random, kills, resumed, depths = Random(0), 0, 0, {}
    for law, *ways in FITS:
        home = tmp_path / law
        whole = Life(context, law, *ways, home / "other", home / "whole")
        depths[law] = {depth for _, depth in whole.news()}
        assert whole.end(kill=False) == 0
        for _ in range(KILLS):
            life = Life(context, law, *ways, home / "checkpoint", home / "killed")
            first, due, began = 0, random.randint(2, EPOCHS // (KILLS + 1)), time.monotonic()
            for epoch, _ in life.news():
                first = first or epoch
                if epoch >= first + due:
                    break
                began = time.monotonic()
            # somewhere in the writing of this checkpoint or in the epoch after it
            time.sleep(random.uniform(0.0, time.monotonic() - began))
            kills += life.end(kill=True) == -signal.SIGKILL
            resumed += first > 1
            assert not (home / "killed").exists()
        life = Life(context, law, *ways, home / "checkpoint", home / "killed")
        reached = [epoch for epoch, _ in life.news()]
        assert life.end(kill=False) == 0
        assert reached[0] > 2 * KILLS  # it went on
        assert reached[-1] == EPOCHS
        assert files(home / "killed") == files(home / "whole"), law
    assert kills >= 16
    assert resumed >= 12
    assert sum(len(found) > 1 for found in depths.values()) >= 2  # layers did come and go
