"""Manifest, state and predictor of a run folder, for commands that only read it."""

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
from fathomless.estimators.renamed import rename_options
from fathomless.families import registry
from fathomless.system import io
from fathomless.system.errors import FileError

if TYPE_CHECKING:
    from fathomless.estimators.base import Estimator

__all__ = [
    "ASKED",
    "UNFINISHED",
    "RunManifest",
    "finished",
    "load_predictor",
    "read_manifest",
    "require_complete",
    "state",
]

#: Names of the manifest files: of the finished run in the folder, and of an unfinished one.
ASKED, UNFINISHED = "run.json", "unfinished.json"

Path_ = str | PathLike[str]

_SET_AT_THE_END: Mapping[str, Any] = {"model": "", "notes": (), "versions": {}}  # fields that the end of a run changes


@dataclass(frozen=True)
class RunManifest:
    """Command, data and options of a run.

    Attributes
    ----------
    command : tuple of str
        The command line, without ``--resume`` and ``--overwrite``.
    estimator : str
        Name of the class of the estimator.
    options : mapping
        Options that differ from their defaults; nested ones by nested names, such as ``weights__chains``.
    source, sha256, bytes : str, str, int
        Name, digest and size of the data file.
    rows, columns : int, tuple of str
        Number of rows with a target, and names of the features.
    targets : tuple of str
        Target columns.
    key, weight, groups, censored : str or None
        Columns of row names, sample weights, groups and kinds of censored rows.
    seed, threads : int
        The same seed, data, machine and number of threads give the same bytes.
    notes : tuple of str
        Notes on the table, and other versions under which a part of the fit was done.
    notation : mapping of str to str
        Notation of columns with other than plain numbers and dates, see :mod:`fathomless.tables.notations`.
    missing : tuple of str
        Words for missing values, beside the usual ones.
    versions : mapping of str to str
        Versions of fathomless, torch, numpy and Python.
    model : str
        Digest of the manifest of the model, to check that both belong together; "" before there is a model.
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
    censored: str | None = None
    notes: tuple[str, ...] = ()
    notation: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
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
        """Return the differences between this run and another one, as flags of the command line."""
        flags = {
            "seed": "--seed",
            "weight": "--weight",
            "groups": "--groups",
            "censored": "--censored",
            "threads": "--threads",
            "targets": "--target",
            "missing": "--na",
        }
        labels = {"sha256": "the data", "columns": "the columns", "estimator": "the task or the structure"}
        different = [label for name, label in labels.items() if getattr(self, name) != getattr(other, name)]
        pairs = {flag: (getattr(self, name), getattr(other, name)) for name, flag in flags.items()}
        for name in sorted({*self.options, *other.options}):
            pairs[flag_of(name)] = (self.options.get(name, "left out"), other.options.get(name, "left out"))
        shown = {
            flag: [", ".join(map(str, value)) if isinstance(value, tuple | list) else value for value in pair]
            for flag, pair in pairs.items()
        }
        return different + [f"{flag} (here {now}, there {then})" for flag, (now, then) in shown.items() if now != then]

    def lengthens(self, other: "RunManifest") -> bool:
        """Return True if the runs differ only in the number of epochs or sweeps."""
        names = {*self.options, *other.options}
        different = {name for name in names if self.options.get(name) != other.options.get(name)}
        rest_is_equal = not self.differences(replace(other, options=self.options))
        return rest_is_equal and len(different) == 1 and different <= {"epochs", "sweeps", "weights__sweeps"}

    def to_json(self) -> str:
        """Return the manifest as JSON; :meth:`from_json` is the inverse."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(found: Any, path: Path) -> "RunManifest":
        """Return the manifest in the parsed JSON of a file; `path` is for messages.

        Raises
        ------
        FileError
            If the file is not a manifest.
        """
        if isinstance(found, dict):
            found = {
                "notation": {},
                "missing": [],
                "groups": None,
                "censored": None,
                "model": "",
                **found,
            }  # fields that older runs do not have
        if not isinstance(found, dict) or set(found) != {f.name for f in fields(RunManifest)}:
            raise FileError(f"{path} is not a run manifest of fathomless; restore it from a backup or fit again")
        texts = ("command", "columns", "targets", "notes", "missing")
        whole = ("bytes", "rows", "seed", "threads")
        columns = ("key", "weight", "groups", "censored")
        valid = (
            all(isinstance(found[name], str) for name in ("estimator", "source", "sha256", "model"))
            and all(isinstance(found[name], list) and all(isinstance(v, str) for v in found[name]) for name in texts)
            and all(type(found[name]) is int and found[name] >= 0 for name in whole)
            and all(found[name] is None or isinstance(found[name], str) for name in columns)
            and all(isinstance(found[name], dict) for name in ("options", "versions", "notation"))
            and all(isinstance(value, str) for name in ("versions", "notation") for value in found[name].values())
            and 1 <= found["threads"] <= 1024
            and 0 < len(found["targets"]) == len(set(found["targets"]))
        )
        if not valid:
            raise FileError(f"{path} was altered; restore it from a backup or fit again")
        values: dict[str, Any] = {name: tuple(value) if name in texts else value for name, value in found.items()}
        values["options"] = _current_options(found["estimator"], found["options"])
        return RunManifest(**values)


def _current_options(estimator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run under their current names, without those that have no effect."""
    known = {name for family in registry.families().values() for name in family.estimators}
    if estimator not in known:
        return dict(given)
    renamed = rename_options(registry.family_of(estimator).options, given)
    return {**renamed.options, **renamed.nested}


def state(folder: Path_) -> str:
    """Return "empty", "unfinished" or "finished"."""
    folder = Path(folder)
    with io.as_file_error(f"{folder} cannot be read"):
        if (folder / UNFINISHED).is_file():
            return "unfinished"
        return "finished" if io.holds(folder) else "empty"


def read_manifest(folder: Path_, latest: bool = False) -> RunManifest | None:
    """Return the manifest of a run, or None in a folder that only ``Estimator.save`` has written.

    While a run is being repeated in its folder, this is the manifest of the old run, or with `latest` of the new one.

    Raises
    ------
    FileError
        If the manifest cannot be read, or belongs to another model than the one in the folder.
    """
    path = Path(folder) / (UNFINISHED if latest and state(folder) == "unfinished" else ASKED)
    if not path.is_file():
        return None
    manifest = RunManifest.from_json(io.read_json(path), path)
    if path.name == ASKED and manifest.model and manifest.model != io.digest(folder):
        raise FileError(
            f"{path} belongs to another model than the one in {folder}: a fit was interrupted while it replaced the "
            "run. Repeat its fit command with --resume"
        )
    return manifest


def require_complete(folder: Path_) -> None:
    """Check that the model and the scores in a folder are of the same run.

    Raises
    ------
    FileError
        If the run is not finished, or if its end was interrupted after the new model had replaced the old one.
    """
    if state(finished(folder)) == "unfinished":
        manifests = (read_manifest(folder), read_manifest(folder, latest=True))
        before, after = (None if manifest is None else replace(manifest, **_SET_AT_THE_END) for manifest in manifests)
        if before is not None and before == after:
            raise FileError(f"the end of the run in {folder} was interrupted; repeat its fit command with --resume")


def finished(folder: Path_) -> Path:
    """Return the folder of a finished run, or of an estimator saved from Python.

    Raises
    ------
    FileError
        If the run is not finished; the message says how to resume it.
    """
    folder = Path(folder)
    if state(folder) == "unfinished" and not io.holds(folder):
        raise FileError(f"the run in {folder} is not finished; repeat its fit command with --resume")
    return folder


def load_predictor(folder: Path_) -> tuple["Predictor | Estimator", RunManifest | None]:
    """Load the predictor (or the density) in a folder, and the manifest of the run or None.

    Raises
    ------
    FileError
        If the folder has no finished fit; the message says how to resume it.
    """
    return registry.predictor(finished(folder)), read_manifest(folder)
