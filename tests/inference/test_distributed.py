"""Several processes that train one network: the path of one process, the same weights everywhere, one voice."""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fathomless.app import manifests
from fathomless.app.cli import main
from fathomless.data.rows import Rows
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import PathInference
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.crossfit import crossfit, fold_indices
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.callbacks import Checkpoint, History
from fathomless.inference.runs.distributed import Ranks, checksum, ranks, start_group
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational import svi
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.laws import FixedDepth, StickBreaking, TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.posterior.model import Model
from fathomless.system import io
from fathomless.system.errors import ConvergenceWarning, DataError, RankError
from trainings import state_of

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

COUNT = 2
LIMIT = 400.0  # seconds for one start of all processes, on a machine that is busy
EVERY = {"epochs": 8, "batch_size": 34, "structure_every": 2, "patience": 6, "evaluate_every": 2}
PATHS: dict[str, dict[str, Any]] = {  # 103 rows in 4 batches of 25 or 26: two ranks never have equal shares of all
    "adam": {"training": {"structure_rate": 30.0}},
    "sgd": {"training": {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 0.5, "structure_rate": 300.0}},
    "drawn": {"training": {"structure_rate": 30.0, "draws": 2, "clip_norm": 1.0}, "model": {"weights": "meanfield"}},
    "weighted": {"training": {"structure_rate": 30.0}, "weighted": True},
    "natural": {"training": {"structure_optimizer": "natural", "structure_rate": 3.0, "structure_radius": 0.5}},
    "regression": {"training": {"structure_rate": 30.0, "calibrate": True}, "law": StickBreaking(), "numbers": True},
    "looks": {"training": {"learning_rate": 0.05}, "law": TruncatedPoisson(), "looks": 4},
    "paths": {"training": {"draws": 2, "warm_up": 0.3}, "paths": {"drift": "lowrank", "rank": 3, "learned": True}},
    "few": {"training": {"structure_rate": 30.0, "batch_size": 1, "epochs": 4}, "rows": 7},
}

CROSSED: dict[str, dict[str, Any]] = {  # several networks: shares of two ranks
    "partitions": {"folds": [2, 2], "weighted": True},  # the rows of a rank are those of the other one, too
    "features": {"folds": [3], "numbers": True, "used": [[True, False], [True, True], [False, True]]},
    "one": {"folds": [3], "chosen": 1},
    "diverging": {"folds": [3], "spoilt": 2},
    "fixed": {"folds": [3], "searches": False},
}
USUAL: dict[str, Any] = {"width": 6, "epochs": 3, "random_state": 0}
DOUBTFUL: dict[str, Any] = {"width": 6, "epochs": 3, "cv": 1, "random_state": 0, "last_layer": "laplace"}
LIMITED: dict[str, Any] = {"width": 6, "epochs": 5000, "cv": 2, "minutes": 0.02, "random_state": 0}

# ------------------------------------------------------------------------------- what a process does


def data(n: int, weighted: bool = False, numbers: bool = False) -> Rows:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = (x[:, :1] * 2).sin() + x[:, 1:] if numbers else (x[:, 0] * x[:, 1] > 0).long()
    return Rows(x, y, torch.rand(n, generator=g, dtype=torch.float64) + 0.5 if weighted else None)


def model(outputs: int = 2, paths: dict[str, Any] | None = None, **options: Any) -> Model:
    if paths is not None:
        dynamics = MLPDynamics(2, outputs, width=4, hidden=(5,))
        return ContinuousDepth(dynamics, options=PathInference(**paths), seed=4, dtype=torch.float64)
    net = MLP(2, outputs, 8)
    return UnboundedDepth(net.layer, net.head, **{"dtype": torch.float64, "seed": 4, **options})


def train(path: dict[str, Any], **options: Any) -> Run:
    numbers, weighted, n = path.get("numbers", False), path.get("weighted", False), path.get("rows", 103)
    likelihood = Gaussian(noise="learned").double() if numbers else Categorical(2)
    own = {"law": path.get("law", TruncatedPoisson()), **path.get("model", {}), "paths": path.get("paths")}
    net = model(1 if numbers else 2, **own)
    training = Training(**{**EVERY, **path["training"]})
    valid = data(41, weighted, numbers)
    rows = data(n, weighted, numbers)
    if "looks" in path:
        options["search"] = StructureSearch(training.epochs, first=path["looks"])
    run: Run = state_of(svi.fit, net, likelihood, rows, valid, training=training, seed=9, **options)
    return run


def cross(path: dict[str, Any], **options: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Cross-fit networks; return all tensors of the result, and the rest of it."""
    numbers = path.get("numbers", False)
    rows = data(61, path.get("weighted", False), numbers)
    folds = torch.stack([torch.arange(61) * 7 % count for count in path["folds"]])
    inside, outside = fold_indices(folds)
    law = FixedDepth((2,)) if "searches" in path else TruncatedPoisson()
    prior = WeightPrior(1.0)
    starts = [
        (
            model(1 if numbers else 2, seed=k, law=law, weight_prior=prior),
            Gaussian().double() if numbers else Categorical(2),
        )
        for k in range(path.get("chosen", len(inside)))
    ]
    inside, outside = inside[: len(starts)], outside[: len(starts)]
    if "spoilt" in path:
        with torch.no_grad():
            next(starts[path["spoilt"]][0].parameters()).fill_(math.nan)
    used = torch.tensor(path["used"]) if "used" in path else None
    training = Training(**EVERY, learning_rate=0.05, clip_norm=1.0)
    search = None if "searches" in path else StructureSearch(training.epochs, first=3, widened=True)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of the one that diverges
        fitted, seen = crossfit(
            starts, rows, inside, outside, used=used, training=training, search=search, seed=9, **options
        )
    tensors = {**fitted.model.state_dict(), "f": seen.f, "weights": seen.log_weight}
    tensors |= {f"likelihood/{name}": value for name, value in fitted.likelihood.state_dict().items()}
    if fitted.log_densities is not None:
        tensors["densities"] = fitted.log_densities.log_density
    return tensors, {"history": fitted.history, "diverged": list(fitted.diverged), "score": fitted.score}


def cross_all(home: Path) -> None:
    for name, path in CROSSED.items():
        tensors, meta = cross(path)
        io.save(home / name / str(ranks().rank), kind="crossed", tensors=tensors, meta=meta)


def be_killed_crossing(home: Path) -> None:
    """Lose rank 1 in the middle of the training of several networks."""

    def die(run: Run) -> None:
        if run.epoch == 6 and run.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    cross(CROSSED["partitions"], callbacks=[die, Checkpoint(home / "checkpoint", seconds=0.0)])


def go_on_crossing(home: Path) -> None:
    keeper = Checkpoint(home / "checkpoint", seconds=0.0)
    epochs: list[int] = []
    tensors, meta = cross(
        CROSSED["partitions"], callbacks=[lambda run: epochs.append(run.epoch), keeper], resume=keeper.load()
    )
    assert epochs[0] == 6
    io.save(home / "killed" / str(ranks().rank), kind="crossed", tensors=tensors, meta=meta)


def keep(run: Run, folder: Path) -> None:
    """Save all that a training has led to, one folder per rank."""
    io.save(folder / str(run.ranks.rank), kind="end", tensors=run.tensors(), meta=run.meta())


def follow_all_paths(home: Path) -> None:
    for name, path in PATHS.items():
        keep(train(path), home / name)


def be_killed(home: Path) -> None:
    """Lose rank 1 in the middle of a training, once its checkpoint of epoch 4 is there."""

    def die(run: Run) -> None:
        if run.epoch == 6 and run.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    train(PATHS["drawn"], callbacks=[die, History(home), Checkpoint(home / "checkpoint", seconds=0.0)])


def go_on(home: Path) -> None:
    keeper = Checkpoint(home / "checkpoint", seconds=0.0)
    epochs: list[int] = []
    run = train(
        PATHS["drawn"], callbacks=[lambda r: epochs.append(r.epoch), History(home), keeper], resume=keeper.load()
    )
    assert epochs == [6, 8]
    keep(run, home / "killed")


def be_refused(home: Path) -> None:
    """Each time something else is wrong with rank 1; all ranks are told, and can go on to the next."""
    rank, path = ranks().rank, PATHS["adam"]
    net = MLP(2, 2, 8)

    def spoil(run: Run) -> None:
        if run.epoch == 4 and rank == 1:
            with torch.no_grad():
                run.model.layers["1"][0].weight[0, 0] += 1e-15  # type: ignore[index, union-attr]

    def normed(kind: type[nn.Module]) -> UnboundedDepth:
        return UnboundedDepth(lambda k: nn.Sequential(net.layer(k), kind(8)), net.head, dtype=torch.float64)

    def fit(model: UnboundedDepth, rows: Rows | None = None, **options: Any) -> Fitted:
        return svi.fit(model, Categorical(2), rows or data(50), training=Training(epochs=2, **options))

    trials: dict[str, Callable[[], Run | Fitted]] = {
        "weights": lambda: fit(model(seed=rank)),
        "data": lambda: fit(model(), data(50 + rank)),
        "options": lambda: fit(model(), learning_rate=0.01 + rank),
        "callbacks": lambda: train(path, callbacks=[print] * rank),
        "later": lambda: train(path, callbacks=[spoil]),
        "statistics": lambda: fit(normed(nn.BatchNorm1d)),
        "none": lambda: fit(normed(nn.LayerNorm)),
    }
    for name, trial in trials.items():
        said = "nothing"
        try:
            trial()
        except (RankError, DataError) as error:
            said = f"{type(error).__name__}: {error}"
        io.write_text(home / f"{name}-{rank}.txt", said)


def wish(home: Path) -> None:
    """Stop by the wish of one rank; use an estimator; drop out, which is each rank's own."""
    rank = ranks().rank

    def enough(run: Run) -> None:
        run.stop = run.stop or (rank == 1 and run.epoch == 4)

    run = train(PATHS["adam"], callbacks=[enough])
    X = np.random.default_rng(0).normal(size=(90, 2))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # short on purpose
        estimator = UnboundedDepthRegressor(width=6, epochs=3, cv=1, random_state=0).fit(X, X[:, 0])
        doubtful = UnboundedDepthRegressor(**DOUBTFUL).fit(X, X[:, 0])
    estimator.save(home / f"estimator-{rank}")
    doubtful.save(home / f"doubtful-{rank}")
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        UnboundedDepthRegressor(**USUAL).fit(X, X[:, 0]).save(home / f"usual-{rank}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        limited = UnboundedDepthRegressor(**LIMITED).fit(X, X[:, 0])
    assert any("minutes=0.02" in str(warning.message) for warning in said), said
    limited.save(home / f"limited-{rank}")
    seen: list[Tensor] = []

    class Dropping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.extend([nn.functional.dropout(torch.ones(60))] * self.training)
            return super().forward(x)

    dropping = UnboundedDepth(lambda k: Dropping(2, 2), lambda k: nn.Linear(2, 2), dtype=torch.float64)
    svi.fit(dropping, Categorical(2), data(50), training=Training(epochs=1))
    io.save(home / f"wish-{rank}", kind="wish", tensors={"dropped": seen[0]}, meta={"epoch": run.epoch})


def do_all(home: Path) -> None:
    follow_all_paths(home)
    cross_all(home)
    be_refused(home)
    wish(home)


def command(folders: list[Path], words: list[Any]) -> None:
    """Be one of the processes of a command line."""
    os.chdir(folders[int(os.environ["RANK"])])
    sys.exit(main([str(word) for word in words]))


# ------------------------------------------------------------------------------- starting processes


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int | None
    said: str


def be_rank(
    rank: int, port: int, said: Path, alone: bool, job: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """Do a job as one of the ranks, in the environment that torchrun would have set; a child process runs this."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(COUNT)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    told = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, 1)
    os.dup2(told, 2)
    torch.set_num_threads(1)
    with contextlib.nullcontext() if alone else start_group():
        job(*arguments)


def together(job: Callable[..., None], *arguments: Any) -> list[Ended]:
    """Let two processes do a job, and wait for both; a command line starts the group by itself."""
    context = multiprocessing.get_context("forkserver")
    # or every child loads them
    context.set_forkserver_preload(
        [
            *("torch._dynamo", "pytest", "fathomless.app.cli", "fathomless.app.manifests"),
            *("fathomless.families.continuous.model", "fathomless.families.depth.estimator"),
        ]
    )
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # with us, as with torchrun
    with tempfile.TemporaryDirectory() as home:
        said = [Path(home) / str(rank) for rank in range(COUNT)]
        processes = [
            context.Process(target=be_rank, args=(rank, meeting.port, said[rank], job is command, job, arguments))
            for rank in range(COUNT)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT)
            process.kill()  # does nothing to one that has ended
        return [Ended(process.exitcode, path.read_text()) for process, path in zip(processes, said, strict=True)]


def well(done: list[Ended]) -> None:
    assert [one.code for one in done] == [0] * COUNT, "\n".join(one.said for one in done)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every path, followed by two processes; and what they do beside, since a start takes seconds."""
    home = tmp_path_factory.mktemp("paths")
    well(together(do_all, home))
    return home


# ------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("name", PATHS)
def test_two_processes_follow_the_path_of_one(paths: Path, name: str) -> None:
    alone = train(PATHS[name])
    first, second = (io.load(paths / name / str(rank), kinds={"end"}) for rank in range(COUNT))
    assert checksum(first.tensors, first.meta) == checksum(second.tensors, second.meta)
    layout, other = alone.meta()["layout"], first.meta["layout"]
    assert layout.pop("masses", []) == pytest.approx(other.pop("masses", []), rel=1e-9)
    assert layout == other
    depths = {row.get("deepest") for row in alone.history}
    assert len(depths) > 1 or name in ("few", "looks", "paths")  # layers came or went, in the same steps
    for row, other in zip(alone.history, first.meta["history"], strict=True):
        assert row == pytest.approx(other, rel=1e-9, abs=1e-9)
    own = alone.tensors()
    assert own.keys() == first.tensors.keys()
    for key, value in own.items():
        assert torch.allclose(value.double(), first.tensors[key].double(), rtol=1e-7, atol=1e-9), key


@pytest.mark.parametrize("name", CROSSED)
def test_networks_divided_among_processes_are_those_of_one_process(paths: Path, name: str) -> None:
    """Each process trains its share of the networks, on the same batches; the result is the same on all of them."""
    tensors, meta = cross(CROSSED[name])
    first, second = (io.load(paths / name / str(rank), kinds={"crossed"}) for rank in range(COUNT))
    assert checksum(first.tensors, first.meta) == checksum(second.tensors, second.meta)
    assert meta["diverged"] == first.meta["diverged"] == ([2] if name == "diverging" else [])
    # a network that is about to diverge has large weights, which amplify rounding
    near = 1e-6 if name == "diverging" else 1e-9
    for row, other in zip(meta["history"], first.meta["history"], strict=True):
        assert row == pytest.approx(other, rel=near, abs=near)
    assert tensors.keys() == first.tensors.keys()
    for key, value in tensors.items():
        assert torch.allclose(value.double(), first.tensors[key].double(), rtol=max(1e-7, near), atol=near), key


def test_shares_of_networks_partition_them() -> None:
    for networks in (1, 2, 5, 10):
        for count in (1, 2, 3, 8):
            shares = [Ranks(rank, count).share_networks(networks) for rank in range(count)]
            assert [number for share, counts in shares if counts for number in share] == list(range(networks))
            assert all(0 < len(share) <= -(-networks // count) for share, _ in shares)


def test_networks_of_a_process_that_was_lost_are_trained_to_the_same_bytes(paths: Path, tmp_path: Path) -> None:
    done = together(be_killed_crossing, tmp_path)
    assert done[1].code == -signal.SIGKILL
    with pytest.raises(DataError, match="written by 2 processes, but this run has 1"):
        cross(CROSSED["partitions"], resume=Checkpoint(tmp_path / "checkpoint").load())
    well(together(go_on_crossing, tmp_path))
    for rank in range(COUNT):
        homes = (tmp_path / "killed", paths / "partitions")
        resumed, whole = (io.load(home / str(rank), kinds={"crossed"}) for home in homes)
        assert checksum(resumed.tensors, resumed.meta) == checksum(whole.tensors, whole.meta)


def test_ranks_agree(paths: Path) -> None:
    """A posterior from held-out rows: one law, one phase and one best epoch on all ranks, to the bit."""
    first, second = (io.load(paths / "looks" / str(rank), kinds={"end"}) for rank in range(COUNT))
    assert first.meta["looks"]["focusing"]
    assert first.meta["looks"] == second.meta["looks"]
    assert first.meta["best"] == second.meta["best"]


def test_the_gradient_of_the_ranks_together_is_that_of_the_whole_batch() -> None:
    """Each rank's share of the bound, evaluated one after the other in one process, adds up to the bound."""
    batch, size = data(11, weighted=True), 103

    def gradients(group: Ranks) -> list[Tensor]:
        run = Run(model(weights="meanfield"), Categorical(2), Training(draws=2), seed=1)
        run.ranks = group
        run.optimizer = torch.optim.SGD(run.named_parameters().values(), lr=0.0)  # stays where it is
        svi._step(run, batch, size, count=120.0)
        return [p.grad for p in run.named_parameters().values() if p.grad is not None]

    class Share(Ranks):
        """A rank whose sums are made by this test."""

        def add(self, tensors: Any) -> None:
            """Leave the share as it is."""

    whole = gradients(Ranks())
    parts = [gradients(Share(rank, 3)) for rank in range(3)]
    assert len(whole) > 10
    for one, *shares in zip(whole, *parts, strict=True):
        assert torch.allclose(one, torch.stack(shares).sum(0), rtol=1e-9, atol=1e-14)


def test_shares_are_all_rows_once_and_nearly_equal() -> None:
    for n in (1, 2, 7, 64):
        for count in (1, 2, 3, 5):
            shares = [Ranks(rank, count).share(data(n)) for rank in range(count)]
            assert torch.equal(torch.cat([share.x for share in shares]), data(n).x)
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_run_that_lost_a_process_goes_on_to_the_same_bytes(paths: Path, tmp_path: Path) -> None:
    done = together(be_killed, tmp_path)
    assert done[1].code == -signal.SIGKILL
    assert done[0].code == 1  # the other one does not wait for ever
    well(together(go_on, tmp_path))
    for rank in range(COUNT):
        resumed, whole = (io.load(home / str(rank), kinds={"end"}) for home in (tmp_path / "killed", paths / "drawn"))
        assert checksum(resumed.tensors, resumed.meta) == checksum(whole.tensors, whole.meta)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 4  # written by one rank


def test_what_differs_between_processes_is_told_on_all_of_them(paths: Path) -> None:
    for name, words in {
        "weights": "RankError: after step 0, rank 1 of 2 had another network",
        "data": "RankError: after step 0, rank 1 of 2",
        "options": "RankError: after step 0, rank 1 of 2",
        "callbacks": "RankError: after step 0, rank 1 of 2",
        "later": "RankError: after step 24, rank 1 of 2",  # at the next evaluation: no layer was created before
        "statistics": "DataError: layers.1.1 is a BatchNorm1d",
        "none": "nothing",
    }.items():
        for rank in range(COUNT):
            assert (paths / f"{name}-{rank}.txt").read_text().startswith(words), name


def test_one_rank_s_wish_counts_for_all_and_estimators_agree(paths: Path) -> None:
    first, second = (io.load(paths / f"wish-{rank}", kinds={"wish"}) for rank in range(COUNT))
    assert first.meta["epoch"] == second.meta["epoch"] == 4
    assert not torch.equal(first.tensors["dropped"], second.tensors["dropped"])
    X = np.random.default_rng(0).normal(size=(90, 2))
    alone = UnboundedDepthRegressor(width=6, epochs=3, cv=1, random_state=0).fit(X, X[:, 0]).predict(X)
    doubtful = UnboundedDepthRegressor(**DOUBTFUL).fit(X, X[:, 0]).predict(X, return_std=True)
    usual = UnboundedDepthRegressor(**USUAL).fit(X, X[:, 0])
    assert usual.fold_ is not None
    for rank in range(COUNT):
        fitted = UnboundedDepthRegressor.load(paths / f"usual-{rank}")
        assert np.array_equal(fitted.fold_, usual.fold_)
        # without the laws of the residual, which tests learn in fewer steps (short_recalibration)
        means = [one.predict_dist(X).network_mixture.mean.numpy() for one in (fitted, usual)]
        assert means[0] == pytest.approx(means[1], rel=1e-9, abs=1e-9)
        fitted = UnboundedDepthRegressor.load(paths / f"estimator-{rank}")
        assert fitted.predict(X) == pytest.approx(alone, rel=1e-9, abs=1e-9)
        fitted = UnboundedDepthRegressor.load(paths / f"doubtful-{rank}")
        assert np.array(fitted.predict(X, return_std=True)) == pytest.approx(np.array(doubtful), rel=1e-6)


def test_ranks_end_a_fit_with_a_time_limit_together(paths: Path) -> None:
    """The clock of the first rank counts for all: trials, epochs and networks are the same on all ranks."""
    first, second = (UnboundedDepthRegressor.load(paths / f"limited-{rank}") for rank in range(COUNT))
    assert 0 < first.n_iter_ == second.n_iter_ < LIMITED["epochs"]
    assert first.trials_ == second.trials_
    X = np.random.default_rng(1).normal(size=(5, 2))
    assert np.array_equal(first.predict(X), second.predict(X))


def test_without_torchrun_there_is_one_rank() -> None:
    with start_group() as group:
        assert group == ranks() == Ranks()
        assert group.agree(True, False) == (True, False)
        assert group.is_first("anything")
        group.compare(0, {})
        group.refuse_statistics(nn.BatchNorm1d(2))


def test_a_checksum_sees_names_types_shapes_and_bytes() -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.tensor(1.0)}
    others: list[dict[str, Tensor]] = [
        {"a": torch.zeros(3, 2), "b": base["b"]},
        {"a": torch.zeros(2, 3), "c": base["b"]},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": base["b"]},
        {"a": -torch.zeros(2, 3), "b": base["b"]},
        {"a": base["a"].bfloat16(), "b": base["b"]},
    ]
    found = [checksum(one) for one in (base, *others)] + [checksum(base, {"plain": 1})]
    assert len(set(found)) == len(found)
    assert checksum(dict(reversed(base.items()))) == checksum(base)


# ------------------------------------------------------------------------------- the command line


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(120, 3))
    rows = np.column_stack([x, np.sin(2 * x[:, 0]) + x[:, 1]])
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header="a,b,c,price", comments="")
    return tmp_path / "table.csv"


def fit_words(table: Path, out: Path, epochs: int, *more: str) -> list[Any]:
    quick = [
        "--epochs",
        epochs,
        "--width",
        "6",
        "--batch-size",
        "16",
        "--patience",
        "none",
        "--checkpoint.seconds",
        "0",
    ]
    return ["fit", table, "--target", "price", "--out", out, *quick, *more]


@contextlib.contextmanager
def torchrun(*words: Any) -> Iterator[subprocess.Popen[str]]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(COUNT), "--standalone"]
    line = [sys.executable, *launch, "-m", "fathomless.app.cli", *map(str, words)]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(io.__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env={**os.environ, **own}, stdout=pipe, stderr=pipe, text=True) as launched:
        try:
            yield launched
        finally:
            launched.kill()


def test_torchrun_fits_a_table_pauses_on_a_signal_and_goes_on(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    history = out / "history.jsonl"
    with torchrun(*fit_words(table, out, 24)) as launched:
        began = time.monotonic()
        while not (history.is_file() and len(history.read_text().splitlines()) > 3):
            assert launched.poll() is None, launched.communicate()[1]
            assert time.monotonic() - began < LIMIT
            time.sleep(0.02)
        launched.send_signal(signal.SIGTERM)
        _, said = launched.communicate(timeout=LIMIT)
    assert launched.returncode != 0
    assert said.count("was paused after epoch") == 1, said
    assert said.count("stopping after this epoch") == 1
    assert "To resume: torchrun --nproc-per-node ... --no-python fathomless fit --resume" in said
    assert manifests.state(out) == "unfinished"
    # in the environment of torchrun, without its start
    done = together(command, [tmp_path] * COUNT, fit_words(table, out, 24, "--resume"))
    well(done)
    assert sum(one.said.count("Report: ") for one in done) == 1
    assert [event["event"] for event in map(json.loads, (out / "log.jsonl").read_text().splitlines())] == [
        *("started", "paused", "resumed", "finished")
    ]
    assert json.loads(history.read_text().splitlines()[-1])["epoch"] == 24
    assert main(["predict", str(out), str(table), "--out", str(tmp_path / "predictions.csv")]) == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 121


def test_a_failure_ends_all_processes_with_one_line(table: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for where, words, message in (
        (elsewhere, fit_words(Path(table.name), tmp_path / "a", 9), "error: there is no file table.csv"),
        (tmp_path, fit_words(table, tmp_path / "b", 9, "--target", "prize"), "prize"),
        (tmp_path, fit_words(table, tmp_path / "c", 9, "--widht", "3"), "did you mean --width?"),
    ):
        done = together(command, [tmp_path, where], words)
        lines = [line for one in done for line in one.said.splitlines()]
        assert all(one.code in (1, 2) for one in done), lines
        assert len(lines) == 1, lines
        assert message in lines[0]
