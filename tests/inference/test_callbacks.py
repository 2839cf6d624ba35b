"""What is told of a training while it runs, and a training that pauses."""

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathomless.estimators.values import ELBO, CheckpointOptions
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.inference.runs.callbacks import Checkpoint, History, TensorBoard, write_history
from fathomless.inference.runs.run import Run
from fathomless.system import io
from fathomless.system.errors import DataError, DivergenceError, PausedError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

EPOCHS = 12
X = np.random.default_rng(0).normal(size=(120, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1]


def fit(*callbacks: Any, checkpoint: Path | None = None, **options: Any) -> UnboundedDepthRegressor:
    """Twelve epochs of two steps; layers come and go, and every fourth epoch the history gets a row."""
    given = {
        "epochs": EPOCHS,
        "width": 6,
        "batch_size": 60,
        "structure_from": ELBO(rate=1.0),
        "patience": None,
        **options,
    }
    estimator = UnboundedDepthRegressor(random_state=0, checkpoint=checkpoint, callbacks=callbacks, **given)
    return estimator.fit(X, Y)


def pause_at(*epochs: int) -> Any:
    def ask(run: Run) -> None:
        run.pause = run.epoch in epochs

    return ask


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows_of(folder: Path) -> list[dict[str, float]]:
    """Read both files, which must agree."""
    with open(folder / "history.csv", newline="", encoding="utf-8") as file:
        table = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == table
    return table


# ----------------------------------------------------------------------------------------------- pausing


@pytest.mark.parametrize("weights", ["map", "meanfield"])
@pytest.mark.parametrize("pauses", [(4,), (8,), (4, 8)], ids=str)
def test_a_fit_that_pauses_and_goes_on_ends_in_the_same_bytes(
    tmp_path: Path, pauses: tuple[int, ...], weights: str
) -> None:
    whole = fit(weights=weights)
    for epoch in pauses:
        with pytest.raises(PausedError, match=f"paused after epoch {epoch} of {EPOCHS}; with a checkpoint, the same"):
            fit(pause_at(epoch), checkpoint=CheckpointOptions(tmp_path / "checkpoint", seconds=1e9), weights=weights)
    resumed = fit(checkpoint=tmp_path / "checkpoint", weights=weights)
    assert resumed.history_ == whole.history_
    assert files(resumed.save(tmp_path / "resumed")) == files(whole.save(tmp_path / "whole"))


def test_a_classifier_that_pauses_at_every_row_ends_in_the_same_bytes(tmp_path: Path) -> None:
    def classify(*callbacks: Any, checkpoint: Path | None = None) -> UnboundedDepthClassifier:
        estimator = UnboundedDepthClassifier(
            width=4,
            epochs=20,
            patience=None,
            structure_from="elbo",
            random_state=1,
            checkpoint=checkpoint,
            callbacks=callbacks,
        )
        return estimator.fit(X, np.where(Y > 0, "up", "down"))

    pauses = 0
    while True:
        try:
            done = classify(lambda run: setattr(run, "pause", True), checkpoint=tmp_path / "checkpoint")
            break
        except PausedError:
            pauses += 1
    assert pauses == 2  # rows at the epochs 8, 16 and 20, and after the last there is nothing to pause
    assert files(done.save(tmp_path / "paused")) == files(classify().save(tmp_path / "whole"))


def test_a_pause_writes_a_checkpoint_however_recent_the_last_one_is(tmp_path: Path) -> None:
    with pytest.raises(PausedError):
        fit(pause_at(8), checkpoint=CheckpointOptions(tmp_path, seconds=1e9))
    assert io.load(tmp_path, kinds={"checkpoint"}).meta["run"]["epoch"] == 8


def test_checkpoints_wait_their_seconds_unless_the_run_ends(tmp_path: Path) -> None:
    written: list[int] = []

    def look(run: Run) -> None:  # before the checkpoint of this row is written
        if io.holds(tmp_path):
            written.append(io.load(tmp_path, kinds={"checkpoint"}).meta["run"]["epoch"])

    fit(look, checkpoint=CheckpointOptions(tmp_path, seconds=1e9))
    assert written == [4, 4]
    assert io.load(tmp_path, kinds={"checkpoint"}).meta["run"]["epoch"] == EPOCHS


def test_a_wish_to_pause_after_the_last_epoch_has_nothing_to_stop() -> None:
    assert fit(pause_at(EPOCHS)).n_iter_ == EPOCHS


def test_a_wish_to_pause_gives_way_to_one_to_stop() -> None:
    def end(run: Run) -> None:
        run.pause = run.stop = run.epoch == 4

    assert fit(end).n_iter_ == 4


def test_a_paused_fit_leaves_the_estimator_as_it_was(tmp_path: Path) -> None:
    estimator = UnboundedDepthRegressor(epochs=EPOCHS, width=4, random_state=0, callbacks=[pause_at(8)])
    before = dict(vars(estimator))
    with pytest.raises(PausedError):
        estimator.fit(X, Y)
    assert vars(estimator) == before
    assert not Checkpoint(tmp_path).load()


# ----------------------------------------------------------------------------------------------- history


def test_history_files_hold_what_the_run_holds_at_every_row(tmp_path: Path) -> None:
    seen: list[int] = []

    def compare(run: Run) -> None:
        assert rows_of(tmp_path) == run.history
        seen.append(run.epoch)

    done = fit(History(tmp_path), compare)
    assert seen == [4, 8, 12]
    assert rows_of(tmp_path) == done.history_


def test_history_is_appended_not_written_anew(tmp_path: Path) -> None:
    def spoil(run: Run) -> None:
        if run.epoch == 4:
            (tmp_path / "history.jsonl").write_text("spoilt\n", encoding="utf-8")

    fit(History(tmp_path), spoil)
    assert (tmp_path / "history.jsonl").read_text(encoding="utf-8").count("\n") == 3


def test_the_history_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path: Path) -> None:
    with pytest.raises(PausedError):
        fit(History(tmp_path / "history"), pause_at(8), checkpoint=tmp_path / "checkpoint")
    # what a killed process may leave: rows after its checkpoint, and half a line
    for name in ("history.csv", "history.jsonl"):
        with open(tmp_path / "history" / name, "a", encoding="utf-8") as file:
            file.write('9,{"epoch')
    done = fit(History(tmp_path / "history"), checkpoint=tmp_path / "checkpoint")
    assert rows_of(tmp_path / "history") == done.history_


def test_a_history_that_is_used_again_begins_anew(tmp_path: Path) -> None:
    keeper = History(tmp_path)
    fit(keeper)
    done = fit(keeper, epochs=8, learning_rate=1e-3)
    assert rows_of(tmp_path) == done.history_


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_numbers_of_a_history_are_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    folder = tmp_path_factory.mktemp("history")
    history = [{"epoch": i, "elbo": value} for i, value in enumerate(values)]
    write_history(folder, history)
    assert rows_of(folder) == history


def test_a_column_that_a_row_lacks_stays_empty(tmp_path: Path) -> None:
    write_history(tmp_path, [{"epoch": 1}, {"epoch": 2, "score": 0.5}])
    assert (tmp_path / "history.csv").read_text(encoding="utf-8") == "epoch,score\n1,\n2,0.5\n"


# --------------------------------------------------------------------------------------------- tensorboard


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_every_row_also_of_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(PausedError):
        fit(TensorBoard(tmp_path / "board"), pause_at(8), checkpoint=tmp_path / "checkpoint")
    done = fit(TensorBoard(tmp_path / "board"), checkpoint=tmp_path / "checkpoint")
    found = scalars(tmp_path / "board")
    assert set(found) == set(done.history_[0]) - {"epoch"}
    for name, values in found.items():
        assert values == {int(row["epoch"]): np.float32(row[name]) for row in done.history_}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_second_training_takes_the_place_of_the_first_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(TensorBoard(tmp_path))
    done = fit(TensorBoard(tmp_path), epochs=8, learning_rate=1e-3)
    assert scalars(tmp_path)["elbo"] == {int(row["epoch"]): np.float32(row["elbo"]) for row in done.history_}


def test_tensorboard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DataError, match=r"tensorboard is not installed: pip install 'fathomless\[track\]'"):
        TensorBoard(tmp_path)


# ------------------------------------------------------------------------------------------------- failing


def test_a_callback_that_fails_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    def fail(run: Run) -> None:
        if run.epoch == 8:
            raise DivergenceError(f"the bound is {math.nan}")

    with pytest.raises(DivergenceError, match="the bound is nan"):
        fit(fail, checkpoint=CheckpointOptions(tmp_path / "checkpoint", seconds=0))
    assert io.load(tmp_path / "checkpoint", kinds={"checkpoint"}).meta["run"]["epoch"] == 4
    resumed = fit(checkpoint=CheckpointOptions(tmp_path / "checkpoint", seconds=0))
    assert resumed.history_ == fit().history_
