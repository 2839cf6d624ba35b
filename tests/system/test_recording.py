"""Recorded training steps. A recorder of the CPU calls the function again, so that bytes can be compared."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fathomless import Adam, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold import recalibration
from fathomless.nn.architectures import MLP
from fathomless.system.errors import ConvergenceWarning, PausedError
from fathomless.system.recording import RECORDERS, Replayed
from trainings import Syncs

Call = Callable[[], Sequence[Tensor]]


class Recorder:
    """A recorder of the CPU, with the numbers of recordings and replays."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, call: Call, device: torch.device) -> tuple[list[Tensor], Callable[[], None]]:
        self.recorded += 1
        outputs: list[Tensor] = []

        def replay() -> None:
            self.replayed += 1
            found = call()
            for kept, value in zip(outputs, found, strict=False):
                kept.copy_(value)
            outputs.extend(found[len(outputs) :])

        return outputs, replay


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setitem(RECORDERS, "cpu", found)
    return found


def test_a_function_is_recorded_in_its_fourth_call(recorder: Recorder) -> None:
    total = torch.zeros(())

    def add() -> list[Tensor]:
        total.add_(1.0)
        return [total * 2.0]

    call = Replayed(add, torch.device("cpu"))
    results = [call()[0] for _ in range(6)]
    assert [float(value) for value in results] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]  # copies, which keep their values
    assert (recorder.recorded, recorder.replayed) == (1, 3)
    assert call.recorded


def test_without_a_recorder_a_function_is_called() -> None:
    call = Replayed(lambda: [torch.ones(())], torch.device("cpu"))
    assert all(float(call()[0]) == 1.0 for _ in range(6))
    assert not call.recorded


def test_a_function_that_cannot_be_recorded_is_called_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: Call, device: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(RECORDERS, "cpu", refuse)
    call = Replayed(lambda: [torch.ones(())], torch.device("cpu"))
    for _ in range(3):
        call()
    with pytest.warns(ConvergenceWarning, match="could not be recorded as a CUDA graph"):
        assert float(call()[0]) == 1.0
    assert float(call()[0]) == 1.0


ESTIMATORS: dict[str, Any] = {
    "regression": UnboundedDepthRegressor(cv=3, epochs=24, width=6, random_state=0),
    "classification": UnboundedDepthClassifier(cv=3, epochs=24, width=6, random_state=0),
    "single": UnboundedDepthRegressor(cv=1, validation_fraction=0.3, epochs=24, width=6, random_state=0),
    "clipped": UnboundedDepthRegressor(
        cv=3, epochs=24, width=6, random_state=0, optimizer=Adam(clip_norm=1.0, warm_up=0.5), weight_prior="columns"
    ),
    "residual": UnboundedDepthRegressor(
        cv=2, epochs=12, width=6, random_state=0, architecture="residual", noise="input"
    ),
}


def bytes_of_predictions(fitted: Any, X: Any) -> bytes:
    p = fitted.predict_dist(X)
    parts = [p.probs] if isinstance(fitted, UnboundedDepthClassifier) else [p.mean, p.icdf(0.9)]
    return b"".join(np.asarray(part).tobytes() for part in parts)


def table(name: str, rows: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    y = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=rows)
    return X, (y > 0.0).astype(int) if name == "classification" else y


@pytest.mark.parametrize("name", ESTIMATORS)
def test_recorded_steps_give_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(name)
    fit = ESTIMATORS[name].set_params(batch_size=100)
    plain = bytes_of_predictions(fit.fit(X, y), X)
    recorder = Recorder()
    monkeypatch.setitem(RECORDERS, "cpu", recorder)
    assert bytes_of_predictions(fit.fit(X, y), X) == plain
    assert recorder.recorded >= 2  # before and after the support was reduced
    assert recorder.replayed > 20


def test_a_resumed_fit_with_recorded_steps_has_the_same_bytes(recorder: Recorder, tmp_path: Path) -> None:
    X, y = table("regression")
    fit = UnboundedDepthRegressor(cv=3, epochs=24, width=6, random_state=0, batch_size=100)
    whole = bytes_of_predictions(fit.fit(X, y), X)

    def pause(run: Any) -> None:
        run.pause = run.epoch in (6, 18)

    fit.set_params(checkpoint=tmp_path / "checkpoint", callbacks=[pause])
    for _ in range(2):
        with pytest.raises(PausedError):
            fit.fit(X, y)
    assert bytes_of_predictions(fit.fit(X, y), X) == whole


@pytest.mark.filterwarnings("ignore:the posterior over depth depends on its initial value")
@pytest.mark.parametrize("options", [{"weights": "meanfield"}, {"cv": 1, "structure_from": "elbo"}], ids=str)
def test_steps_that_draw_or_move_the_law_are_not_recorded(options: dict[str, Any], recorder: Recorder) -> None:
    X, y = table("regression", 80)
    UnboundedDepthRegressor(epochs=8, width=4, random_state=0, recalibrate=False, **options).fit(X, y)
    assert recorder.recorded == 0


def test_the_key_of_a_step_changes_with_the_structure() -> None:
    net = MLP(2, 1, 4)
    model = UnboundedDepth(net.layer, net.head)
    assert model.step_key() is None  # the law is trained
    model.weigh({1: 0.5, 2: 0.5})
    first = model.step_key()
    assert first is not None
    model.weigh({1: 0.5, 2: 0.5})
    assert model.step_key() == first
    model.weigh({1: 0.25, 2: 0.75})
    assert model.step_key() != first
    drawn = UnboundedDepth(lambda k: torch.nn.Sequential(net.layer(k), torch.nn.Dropout(0.1)), net.head)
    drawn.weigh({1: 1.0})
    assert drawn.step_key() is None


@pytest.mark.recalibration
@pytest.mark.parametrize("name", ["regression", "classification", "residual"])
def test_recorded_steps_copy_nothing_from_or_to_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph cannot contain such copies. The optimisers of the CPU count their steps on the host."""
    found: list[str] = []

    def watch(call: Call, device: torch.device) -> tuple[list[Tensor], Callable[[], None]]:
        first = [True]

        def replay() -> None:  # constants of the structure are computed before the recording
            with Syncs("lift_fresh") if first.pop() else contextlib.nullcontext() as copies:
                call()
            first.append(False)
            found.extend(copies.found if copies else [])

        return [], replay

    # the number of outputs is 0, so that only the trainings themselves are of interest
    monkeypatch.setitem(RECORDERS, "cpu", watch)
    monkeypatch.setattr("fathomless.inference.variational.svi._sum_parts", lambda *given: torch.zeros(3).double())
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
    X, y = table(name, 600)
    ESTIMATORS[name].set_params(batch_size=100).fit(X, y)
    assert found == []


def test_rows_of_large_tables_are_drawn_in_the_order_of_the_steps() -> None:
    """Indices are drawn for many steps at once, in the order in which single steps would draw them."""
    generator = torch.Generator().manual_seed(0)
    training: Any = recalibration._Training.__new__(recalibration._Training)
    training.inside = [torch.arange(10), torch.arange(5)]
    training.batch, training.generator, training.device = 4, torch.Generator().manual_seed(0), torch.device("cpu")
    drawn = training._draw_rows()
    for _ in range(3):
        step = [torch.randint(len(rows), (4,), generator=generator) for rows in training.inside]
        assert torch.equal(drawn.pop(), torch.stack(step))
