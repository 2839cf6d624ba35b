"""What a run folder says of itself, and what predicts from it: all that a command needs which only reads it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import fathomless
from fathomless.app.commands.flags import flag_of
from fathomless.estimators.predictor import Predictor
from fathomless.estimators.renamed import rename, renaming
from fathomless.families import registry
from fathomless.system import io
from fathomless.system.errors import FileError

if TYPE_CHECKING:
    from fathomless.estimators.base import Estimator

__all__ = ["ASKED", "UNFINISHED", "RunManifest", "complete", "finished", "predictor", "read_manifest", "state"]

#: Files that tell what was asked: of the run that is there, and of one that is not finished.
ASKED, UNFINISHED = "run.json", "unfinished.json"

Path_ = str | PathLike[str]

_OF_THE_END: Mapping[str, Any] = {"model": "", "notes": (), "versions": {}}  # what the end of a run adds, or changes


@dataclass(frozen=True)
class RunManifest:
    """What was asked of a run.

    Attributes
    ----------
    command : tuple of str
        The command line, without ``--resume`` and ``--overwrite``.
    estimator : str
        Name of its class.
    options : mapping
        Options that differ from their defaults; those of values by nested names, such as ``weights__chains``.
    source, sha256, bytes : str, str, int
        Name of the data file, digest and size of what was read.
    rows, columns : int, tuple of str
        Rows with a target, and the columns that predict it.
    targets : tuple of str
        Columns that are predicted.
    key, weight, groups : str or None
        Columns that name the rows, that say how often each counts, and which of them belong together.
    seed, threads : int
        The same seed, data, machine and number of threads give the same bytes.
    notes : tuple of str
        What was done to the table, for the reader; and other versions under which a part of the fit was done.
    notation : mapping of str to str
        How columns write numbers and dates that are not plain, see :mod:`fathomless.tables.notations`.
    versions : mapping of str to str
        Of fathomless, torch, numpy and Python.
    model : str
        Digest of the model's own manifest, which says that both belong together; "" before there is a model.
    """

    command: tuple[str, ...]
    estimator: str
    source: str
    sha256: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    targets: tuple[str, ...]
    seed: int
    threads: int
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    weight: str | None = None
    groups: str | None = None
    notes: tuple[str, ...] = ()
    notation: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(
        default_factory=lambda: {
            "fathomless": fathomless.__version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
    )
    model: str = ""

    def differences(self, other: "RunManifest") -> list[str]:
        """Return what makes this run another one than `other`, in the words of the command line."""
        flags = {
            "seed": "--seed",
            "weight": "--weight",
            "groups": "--groups",
            "threads": "--threads",
            "targets": "--target",
        }
        named = {"sha256": "the data", "columns": "the columns", "estimator": "the task or the structure"}
        unlike = [text for name, text in named.items() if getattr(self, name) != getattr(other, name)]
        told = {flag: (getattr(self, name), getattr(other, name)) for name, flag in flags.items()}
        for name in sorted({*self.options, *other.options}):
            told[flag_of(name)] = (
                self.options.get(name, "left out"),
                other.options.get(name, "left out"),
            )
        shown = {
            flag: [", ".join(map(str, one)) if isinstance(one, tuple | list) else one for one in pair]
            for flag, pair in told.items()
        }
        return unlike + [f"{flag} (here {now}, there {then})" for flag, (now, then) in shown.items() if now != then]

    def lengthens(self, other: "RunManifest") -> bool:
        """Whether this is another run with more, or less, of the same: epochs or sweeps, and nothing else, differ."""
        names = {*self.options, *other.options}
        unlike = {name for name in names if self.options.get(name) != other.options.get(name)}
        alike = not self.differences(replace(other, options=self.options))
        return alike and len(unlike) == 1 and unlike <= {"epochs", "sweeps", "weights__sweeps"}

    def to_json(self) -> str:
        """Write as JSON; :meth:`from_json` gives an equal one."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(found: Any, path: Path) -> "RunManifest":
        """Read what :meth:`to_json` wrote and :func:`fathomless.system.io.read_json` parsed.

        Raises
        ------
        FileError
            If it was altered so that it is none.
        """
        if isinstance(found, dict):
            found = {"notation": {}, "groups": None, "model": "", **found}  # older runs have none
        if not isinstance(found, dict) or set(found) != {f.name for f in fields(RunManifest)}:
            raise FileError(f"{path} is not what fathomless wrote there; restore it from a backup or fit again")
        texts = ("command", "columns", "targets", "notes")
        whole = ("bytes", "rows", "seed", "threads")
        sound = (
            all(isinstance(found[name], str) for name in ("estimator", "source", "sha256", "model"))
            and all(isinstance(found[name], list) and all(isinstance(v, str) for v in found[name]) for name in texts)
            and all(type(found[name]) is int and found[name] >= 0 for name in whole)
            and all(found[name] is None or isinstance(found[name], str) for name in ("key", "weight", "groups"))
            and all(isinstance(found[name], dict) for name in ("options", "versions", "notation"))
            and all(isinstance(value, str) for name in ("versions", "notation") for value in found[name].values())
            and 1 <= found["threads"] <= 1024
            and 0 < len(found["targets"]) == len(set(found["targets"]))
        )
        if not sound:
            raise FileError(f"{path} was altered; restore it from a backup or fit again")
        values: dict[str, Any] = {name: tuple(value) if name in texts else value for name, value in found.items()}
        values["options"] = _options_now(found["estimator"], found["options"])
        return RunManifest(**values)


def _options_now(estimator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run by the names that they have now; those without effect are left out."""
    places = {name for family in registry.families().values() for name in family.estimators}
    if estimator not in places:
        return dict(given)
    kind = registry.family_of(estimator).options
    found = renaming(kind, rename(kind, given)[0])
    return {**found.options, **found.nested}


def state(folder: Path_) -> str:
    """Return "empty", "unfinished" or "finished"."""
    folder = Path(folder)
    with io.as_file_error(f"{folder} cannot be read"):
        if (folder / UNFINISHED).is_file():
            return "unfinished"
        return "finished" if io.holds(folder) else "empty"


def read_manifest(folder: Path_, latest: bool = False) -> RunManifest | None:
    """Return what was asked of a run, or None in a folder that ``Estimator.save`` alone wrote.

    In a folder whose run is done anew and not finished yet, this is the old run, or with `latest` the new one.

    Raises
    ------
    FileError
        If it cannot be read, or belongs to another model than the one in the folder.
    """
    path = Path(folder) / (UNFINISHED if latest and state(folder) == "unfinished" else ASKED)
    if not path.is_file():
        return None
    found = RunManifest.from_json(io.read_json(path), path)
    if path.name == ASKED and found.model and found.model != io.digest(folder):
        raise FileError(
            f"{path} belongs to another model than the one in {folder}: a fit was interrupted while it replaced the "
            "run. Repeat its fit command with --resume"
        )
    return found


def complete(folder: Path_) -> None:
    """Refuse to show a run whose new model is in place while its scores are still those of the old one.

    Raises
    ------
    FileError
        If its end was interrupted, or it is not finished.
    """
    if state(finished(folder)) == "unfinished":
        before, after = read_manifest(folder), read_manifest(folder, latest=True)
        one, other = (None if told is None else replace(told, **_OF_THE_END) for told in (before, after))
        if one is not None and one == other:
            raise FileError(f"the end of the run in {folder} was interrupted; repeat its fit command with --resume")


def finished(folder: Path_) -> Path:
    """Return the folder of a run, or of what was saved from Python.

    Raises
    ------
    FileError
        If the run is not finished; the message says how to go on.
    """
    folder = Path(folder)
    if state(folder) == "unfinished" and not io.holds(folder):
        raise FileError(f"the run in {folder} is not finished; repeat its fit command with --resume")
    return folder


def predictor(folder: Path_) -> tuple["Predictor | Estimator", RunManifest | None]:
    """Load the predictor of a folder, or its density; and the manifest of the run, if it is one.

    Raises
    ------
    FileError
        If there is none, or none yet; the message says how to go on.
    """
    return registry.predictor(finished(folder)), read_manifest(folder)
