"""Damaged folders of models and checkpoints: they are loaded, or an error with a remedy is raised."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathomless.estimators.values import CheckpointOptions
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.posterior.laws import PoissonPrior
from fathomless.system import io
from fathomless.system.errors import DataError, FileError
from refusals import frame, numbers, refused, regressor

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return regressor(cv=1).fit(frame(), numbers()[:, 0]).save(tmp_path / "model")


def load(folder: Path) -> Any:
    return UnboundedDepthRegressor.load(folder)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the metadata, and write a valid checksum."""
    held = io.load(folder, kinds={"UnboundedDepthRegressor"})
    change(held.meta)
    io.save(folder, kind=held.kind, tensors=held.tensors, meta=held.meta)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no folder .*nowhere; check the path"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"holds no manifest.json, so nothing was saved there; check the path"):
        load(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("pattern", ["manifest.json", "*.safetensors"])
def test_truncated_files_are_refused(pattern: str, share: float, folder: Path) -> None:
    (path,) = folder.glob(pattern)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FileError, match=r"not valid JSON|it was cut off: copy it again"):
        load(folder)


@pytest.mark.parametrize("pattern", ["manifest.json", "*.safetensors"])
def test_altered_files_are_refused(pattern: str, folder: Path) -> None:
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match=r"was altered|not valid JSON|lacks"):
        load(folder)


def test_lost_and_foreign_files_are_refused(folder: Path, tmp_path: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    path.unlink()
    with pytest.raises(FileError, match="is missing; copy the whole folder again"):
        load(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    with pytest.raises(FileError, match="lacks 'format'"):
        load(other)
    with pytest.raises(FileError, match="was not written by fathomless; choose another folder or move it away"):
        regressor().fit(numbers(), numbers()[:, 0]).save(other)
    io.save(tmp_path / "c", kind="checkpoint", tensors={}, meta={})
    with pytest.raises(FileError, match="holds a 'checkpoint'; allowed here: 'UnboundedDepthRegressor'"):
        load(tmp_path / "c")


def test_a_model_of_a_newer_version_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(FileError, match=r"has format 99 and was written by a newer version.*upgrade fathomless"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("options"),
        lambda meta: meta.pop("layout"),
        lambda meta: meta["options"].pop("width"),
        lambda meta: meta["options"].update(width=5),
        lambda meta: meta["options"].update(width="wide"),
        lambda meta: meta["options"].update(of_the_future=1),
        lambda meta: meta["options"].update(depth_law={"class": "os.system", "fields": {"command": "true"}}),
        lambda meta: meta["options"].update(depth_law={"class": "TruncatedPoisson", "fields": {"rate": "x"}}),
        lambda meta: meta["layout"].update(layers=1),
        lambda meta: meta["layout"].update(support=[]),
        lambda meta: meta["layout"].update(heads="all"),
        lambda meta: meta["schema"].update(columns=[]),
        lambda meta: meta["schema"]["columns"].pop(),
        lambda meta: meta["target"].update(scale=[0.0]),
        lambda meta: meta.update(target=None),
    ],
    ids=[
        "no options",
        "no layout",
        "other width",
        "wider",
        "width of text",
        "unknown option",
        "foreign class",
        "altered law",
        "too few layers",
        "no support",
        "altered heads",
        "no columns",
        "too few columns",
        "no scale",
        "no target",
    ],
)
def test_contents_that_do_not_fit_are_refused(change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    rewrite(folder, change)
    with pytest.raises(FileError, match=r"does not contain an estimator that this version can load .*save it again"):
        load(folder)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("I was here before")
    below = tmp_path / "file" / "model"
    fitted = regressor().fit(numbers(), numbers()[:, 0])
    with pytest.raises(FileError, match=r"could not be saved in .*model: Not a directory .*choose another folder"):
        fitted.save(below)
    with pytest.raises(FileError, match=r"file.*choose another folder|could not be saved"):
        fitted.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "I was here before"
    refused("cannot be written", numbers(), numbers()[:, 0], kind=FileError, checkpoint=below)


def test_an_option_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    class Mine(PoissonPrior):
        pass

    fitted = regressor(depth_prior=Mine(0.5)).fit(numbers(), numbers()[:, 0])
    with pytest.raises(DataError, match="type Mine cannot be saved; allowed are plain values and HardTruncation"):
        fitted.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_damaged_checkpoint_is_told_before_training(tmp_path: Path) -> None:
    X = numbers(100)
    options = {"checkpoint": CheckpointOptions(tmp_path / "c", seconds=0)}
    regressor(**options).fit(X, X[:, 0])
    (path,) = (tmp_path / "c").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    epochs: list[int] = []
    with pytest.raises(FileError, match="it was cut off: copy it again"):
        regressor(**options, callbacks=[lambda run: epochs.append(run.epoch)]).fit(X, X[:, 0])
    assert not epochs
