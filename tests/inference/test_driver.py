"""The driver of runs: order of events, pause, stop, display, and checkpoints, alike for all four inferences."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.manifold.stages import Stage, StagedRun, run_stages
from fathomless.inference.mcmc.chains import Chains, Plan, Sampler, run_chains
from fathomless.inference.runs.callbacks import Checkpoint, open_checkpoint
from fathomless.inference.runs.distributed import Ranks
from fathomless.inference.runs.driver import ResumableRun, drive
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.batched import BatchedRuns, fit_batched
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.likelihoods import Categorical
from fathomless.system import io
from fathomless.system.errors import DataError, DivergenceError, PausedError
from fathomless.system.progress import Progress


class Display(Progress):
    """A display that records its calls beside those of other callbacks."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def start(self, total: int, done: int = 0) -> None:
        self.events.append(("start", total, done))

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        assert values["epoch"] == done
        self.events.append(("display", done))

    def close(self) -> None:
        self.events.append("close")


# ------------------------------------------------------------------------------------- a run that only counts


class Count(ResumableRun):
    """Counts to four."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch, self.stop, self.pause = epoch, False, False
        self.history: list[dict[str, float]] = []

    @property
    def epochs(self) -> int:
        return 4

    def advance(self) -> None:
        self.epoch += 1
        self.history.append({"epoch": self.epoch})

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def meta(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "history": self.history}

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.epoch, self.history = meta["epoch"], list(meta["history"])


def counted(run: Count, *callbacks: Callable[[Count], None], **options: Any) -> list[Any]:
    """Drive a count; return its events, with the error that ended it, if any."""
    events: list[Any] = []

    def advance() -> None:
        run.advance()
        events.append(("evaluate", run.epoch))

    def noted(number: int, callback: Callable[[Count], None]) -> Callable[[Count], None]:
        def call(run: Count) -> None:
            events.append((f"callback {number}", run.epoch))
            callback(run)

        return call

    listed = [noted(number, callback) for number, callback in enumerate(callbacks)]
    try:
        drive(run, advance, callbacks=listed, progress=Display(events), **options)
    except (PausedError, ZeroDivisionError) as error:
        events.append(error)
    return events


def nothing(run: Count) -> None:
    """Leave the run as it is."""


def asking(at: int, *wishes: str) -> Callable[[Any], None]:
    """Return a callback that asks to pause or stop after an epoch."""

    def callback(run: Any) -> None:
        for wish in wishes if run.epoch == at else ():
            setattr(run, wish, True)

    return callback


def of(epoch: int, callbacks: int = 2) -> list[Any]:
    return [("evaluate", epoch), *((f"callback {k}", epoch) for k in range(callbacks)), ("display", epoch)]


def test_each_round_is_evaluated_then_passed_to_callbacks_then_displayed() -> None:
    assert counted(Count(), nothing, nothing) == [("start", 4, 0), *of(1), *of(2), *of(3), *of(4), "close"]
    assert counted(Count(2), nothing, nothing) == [("start", 4, 2), *of(3), *of(4), "close"]
    assert counted(Count(4), nothing) == [("start", 4, 4), "close"]


def test_a_pause_takes_effect_once_all_callbacks_and_the_display_are_done() -> None:
    *events, error = counted(Count(), asking(2, "pause"), nothing)
    assert events == [("start", 4, 0), *of(1), *of(2), "close"]
    assert isinstance(error, PausedError)
    assert str(error).startswith("the fit was paused after epoch 2 of 4; with a checkpoint, the same call continues")
    *_, error = counted(Count(), asking(2, "pause"), unit="sweep")
    assert "paused after sweep 2 of 4" in str(error)


@pytest.mark.parametrize(
    ("at", "wishes"), [(2, ("stop",)), (2, ("pause", "stop")), (4, ("pause",)), (4, ("stop",))], ids=str
)
def test_a_stop_ends_the_run_and_neither_it_nor_the_end_is_paused(at: int, wishes: tuple[str, ...]) -> None:
    rounds = [event for epoch in range(1, at + 1) for event in of(epoch)]
    assert counted(Count(), asking(at, *wishes), nothing) == [("start", 4, 0), *rounds, "close"]


def test_an_error_in_a_callback_closes_the_display() -> None:
    *events, error = counted(Count(), lambda run: 1 // (run.epoch - 2), nothing)
    assert events == [("start", 4, 0), *of(1), ("evaluate", 2), ("callback 0", 2), "close"]
    assert isinstance(error, ZeroDivisionError)


def test_what_one_process_asks_for_holds_in_all_before_the_next_callback_and_one_has_the_display() -> None:
    @dataclass(frozen=True)
    class Asked(Ranks):
        """The second of two processes; the first one asks for a pause."""

        def agree(self, *wishes: bool) -> tuple[bool, ...]:
            stop, _ = wishes
            return stop, True

    seen: list[bool] = []
    *events, error = counted(Count(), nothing, lambda run: seen.append(run.pause), ranks=Asked(1, 2))
    assert seen == [True]
    assert events == of(1)[:-1]
    assert isinstance(error, PausedError)


# ----------------------------------------------------------------------------------------- the four inferences


class Walk(Sampler[float]):
    def start(self, generator: np.random.Generator) -> float:
        return float(generator.normal())

    def sweep(self, state: float, done: int, generator: np.random.Generator) -> float:
        return 0.5 * state + float(generator.normal())

    def follow(self, state: float) -> dict[str, float]:
        return {"x": state}

    def keep(self, state: float) -> dict[str, Any]:
        return {"x": np.array([state])}

    def pack(self, state: float) -> dict[str, Any]:
        return {"x": np.array(state)}

    def unpack(self, arrays: Mapping[str, Any]) -> float:
        return float(arrays["x"])


class Bowl(Stage):
    def __init__(self, centre: Tensor) -> None:
        super().__init__(steps=8)
        self.centre, self.at = centre, torch.zeros(2, requires_grad=True)

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        return [([self.at], 0.3)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        return (self.at - self.centre - torch.randn(2, generator=generator)).square().sum()

    def metrics(self) -> dict[str, float]:
        return {"distance": float((self.at.detach() - self.centre).norm())}

    def finish(self) -> dict[str, Tensor]:
        return {"at": self.at}


NET = MLP(2, 2, 4)
X = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
DATA = Rows(X, (X[:, 0] > 0).long())
TRAINING = Training(epochs=7, batch_size=12, evaluate_every=2, patience=None)  # rows after 2, 4, 6 and 7


def model(seed: int) -> UnboundedDepth:
    return UnboundedDepth(NET.layer, NET.head, seed=seed)


def train(**options: Any) -> None:
    fit(model(0), Categorical(2), DATA, DATA, training=TRAINING, **options)


def train_two(**options: Any) -> None:
    fit_batched([model(0), model(1)], [Categorical(2), Categorical(2)], DATA, DATA, training=TRAINING, **options)


def sample(**options: Any) -> None:
    run_chains(Walk(), Plan(chains=2, sweeps=4, states=2), 0, **options)


def minimise(**options: Any) -> None:
    plan = {"one": lambda found: Bowl(torch.ones(2)), "two": lambda found: Bowl(2.0 * found["one/at"])}
    run_stages(plan, 0, rounds=2, **options)


INFERENCES = [(train, Run, 2), (train_two, BatchedRuns, 2), (sample, Chains, 1), (minimise, StagedRun, 1)]
each = pytest.mark.parametrize(
    ("infer", "state", "every"), INFERENCES, ids=lambda value: getattr(value, "__name__", None)
)
# a training looks at every second epoch and at its last, so each of the four has four rounds


def state_of(run: ResumableRun) -> tuple[dict[str, Any], str]:
    tensors = {name: value.detach().contiguous().numpy().tobytes() for name, value in run.tensors().items()}
    return tensors, json.dumps(run.meta())


@each
def test_every_inference_has_a_resumable_run_and_the_driver_s_order(infer: Any, state: type, every: int) -> None:
    events: list[Any] = []

    def callback(run: ResumableRun) -> None:
        assert type(run) is state
        assert ResumableRun in type(run).__mro__
        assert run.history[-1]["epoch"] == run.epoch
        assert not run.stop
        assert not run.pause
        events.append(("callback", run.epoch))

    infer(callbacks=[callback], progress=Display(events))
    total = events[0][1]
    rounds = [min(every * k, total) for k in (1, 2, 3, 4)]
    assert rounds[-1] == total
    told = [event for epoch in rounds for event in (("callback", epoch), ("display", epoch))]
    assert events == [("start", total, 0), *told, "close"]


@each
def test_every_inference_resumes_to_the_same_state_and_pauses_only_before_its_end(
    infer: Any, state: type, every: int, tmp_path: Path
) -> None:
    ends: list[Any] = []

    def end(run: ResumableRun) -> None:
        if run.epoch == run.epochs:
            ends.append(state_of(run))

    def attempt(*callbacks: Any, kept: bool = True) -> None:
        listed, resume = open_checkpoint(callbacks, tmp_path / "kept" if kept else None, 1e9, lambda: "one")
        infer(callbacks=listed, resume=resume)

    attempt(end, kept=False)
    with pytest.raises(PausedError, match=f"the fit was paused after (epoch|sweep) {2 * every} of"):
        attempt(asking(2 * every, "pause"), end)
    attempt(lambda run: setattr(run, "pause", run.epoch == run.epochs), end)  # ends, though asked to pause
    assert len(ends) == 2
    assert ends[0] == ends[1]
    attempt(end)  # from the checkpoint of the end: nothing is left to do
    assert len(ends) == 2


@each
def test_every_inference_closes_its_display_after_an_error(infer: Any, state: type, every: int) -> None:
    events: list[Any] = []

    def fail(run: ResumableRun) -> None:
        raise DivergenceError("no")

    with pytest.raises(DivergenceError, match="no"):
        infer(callbacks=[fail], progress=Display(events))
    assert events[1:] == ["close"]


# --------------------------------------------------------------------------------------------- the checkpoint


def never() -> str:
    raise AssertionError("nothing asks for the fingerprint")


def test_without_a_folder_there_is_no_checkpoint_and_no_fingerprint() -> None:
    assert open_checkpoint(None, None, 1.0, never) == ([], None)
    assert open_checkpoint((nothing,), None, 1.0, never) == ([nothing], None)


def test_a_checkpoint_is_the_last_callback_and_belongs_to_its_fingerprint(tmp_path: Path) -> None:
    callbacks, resume = open_checkpoint([nothing], tmp_path, 7.0, lambda: "a", torch.device("cpu"))
    first, checkpoint = callbacks
    assert first is nothing
    assert resume is None
    assert isinstance(checkpoint, Checkpoint)
    assert (checkpoint.folder, checkpoint.seconds, checkpoint.extra) == (tmp_path, 7.0, {"fingerprint": "a"})
    run = Count(3)
    checkpoint(run)
    assert open_checkpoint([], tmp_path, 7.0, lambda: "a")[1] == ({}, run.meta())
    with pytest.raises(DataError, match="belongs to a fit with other data or other options"):
        open_checkpoint([], tmp_path, 7.0, lambda: "b")
    assert io.holds(tmp_path)
    assert open_checkpoint([], tmp_path, 7.0, lambda: "a", replace=True)[1] == ({}, run.meta())
    with pytest.raises(DataError, match="was written on device 'cpu'"):  # the same fit, which could go on there
        open_checkpoint([], tmp_path, 7.0, lambda: "a", torch.device("cuda"), replace=True)
    assert io.holds(tmp_path)
    assert open_checkpoint([], tmp_path, 7.0, lambda: "b", torch.device("cuda"), replace=True)[1] is None
    assert not io.holds(tmp_path)
