"""Callbacks after each evaluation: history files, TensorBoard, checkpoints."""

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.driver import ResumableRun, State
from fathomless.system import io, nonfinite
from fathomless.system.errors import DataError, DataWarning

__all__ = ["Checkpoint", "History", "TensorBoard", "open_checkpoint", "write_history"]


class History:
    """Callback that writes the history to a folder, as ``history.csv`` and ``history.jsonl`` (one object per line).

    A resumed run writes both files again, so that they agree with its history. With several ranks, only the first one
    writes.

    Parameters
    ----------
    folder : path
        Folder of the files; created if needed.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self._names: list[str] = []
        self._rows = 0

    def __call__(self, run: ResumableRun) -> None:
        """Append the new rows."""
        if ranks().rank:
            return
        names = list(run.history[-1])
        if names != self._names or len(run.history) < self._rows:
            write_history(self.folder, run.history)
        else:
            for name, text in _format_rows(run.history[self._rows :], names).items():
                io.append_text(self.folder / name, text)
        self._names = names
        self._rows = len(run.history)


def write_history(folder: str | PathLike[str], history: Sequence[Mapping[str, float]]) -> None:
    """Write a whole history as ``history.csv`` and ``history.jsonl``, each file atomically."""
    names = list(history[-1]) if history else []
    files = _format_rows(history, names)
    io.write_text(Path(folder) / "history.csv", ",".join(names) + "\n" + files["history.csv"])
    io.write_text(Path(folder) / "history.jsonl", files["history.jsonl"])


def _format_rows(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, str]:
    """Return the text of rows by the name of the file."""
    table = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    objects = [json.dumps(nonfinite.name_nonfinite(row)) for row in rows]
    return {"history.csv": "".join(f"{line}\n" for line in table), "history.jsonl": "".join(f"{o}\n" for o in objects)}


class TensorBoard:
    """Callback that writes every row of the history for TensorBoard; with several ranks, only the first one writes.

    Parameters
    ----------
    folder : path
        Folder of the event files (``tensorboard --logdir FOLDER``).

    Raises
    ------
    DataError
        If tensorboard is not installed.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise DataError("tensorboard is not installed: pip install 'fathomless[track]'") from error
        self._open: Callable[[int], Any] = lambda epoch: SummaryWriter(str(folder), purge_step=epoch)
        self._writer: Any = None

    def __call__(self, run: ResumableRun) -> None:
        """Write the last row of the history."""
        if ranks().rank:
            return
        row = run.history[-1]
        if self._writer is None:  # purge_step removes what an interrupted run wrote from this epoch on
            self._writer = self._open(int(row["epoch"]))
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))
        self._writer.flush()


class Checkpoint:
    """Callback that writes the run to a folder, atomically, after evaluations and at most once in a given time.

    The first evaluation, the end of a run and a pause are always written. With several ranks, the first one writes and
    all read, so they need a shared folder.

    Parameters
    ----------
    folder : Path
        Folder of the checkpoint.
    seconds : float
        Shortest time between two checkpoints; 0 writes one after every evaluation.
    extra : mapping
        Additional JSON for the checkpoint, for instance a fingerprint of the data.
    device : torch.device, optional
        Device of the run. A run on an accelerator can be resumed only there, since random generators of other devices
        draw other numbers.
    """

    kind = "checkpoint"

    def __init__(
        self,
        folder: str | PathLike[str],
        seconds: float = 30.0,
        extra: Mapping[str, Any] | None = None,
        device: torch.device | None = None,
    ) -> None:
        io.writable(folder)
        self.folder = Path(folder)
        self.seconds = seconds
        self.extra = dict(extra or {})
        if device is not None and device.type != "cpu":
            self.extra["device"] = device.type
        self._last = -math.inf  # time of the last checkpoint
        self._before: list[dict[str, str]] = []  # other versions that have written this run

    def __call__(self, run: ResumableRun) -> None:
        """Write the run if a checkpoint is due."""
        group = ranks()
        if group.rank and not run.divided:
            return
        ended = run.stop or run.epoch >= run.epochs
        due = ended or run.pause or time.monotonic() - self._last >= self.seconds
        if run.divided:
            due = group.gather(due)[0]
        if not due:
            return
        tensors = run.tensors()
        if run.divided:
            parts = group.gather({name: value.detach().cpu() for name, value in tensors.items()})
            tensors = {f"{rank}/{name}": value for rank, part in enumerate(parts) for name, value in part.items()}
        if group.rank:
            return
        meta = {"run": nonfinite.encode_nonfinite(run.meta()), "extra": self.extra}
        meta |= {"before": self._before} if self._before else {}
        io.save(self.folder, kind=self.kind, tensors=tensors, meta=meta)
        self._last = time.monotonic()

    def load(self, before: list[dict[str, str]] | None = None, *, replace: bool = False) -> State | None:
        """Load the state in the folder; return None if there is none.

        Parameters
        ----------
        before : list, optional
            List to which the versions that wrote the checkpoint are appended, if they differ from the present ones; a
            warning is issued too.
        replace : bool
            If True, remove the checkpoint of another run instead of raising an error.

        Raises
        ------
        FileError
            If the checkpoint is damaged.
        DataError
            If it belongs to another run (its `extra` differs) and is not replaced, or to another type of device.
        """
        if not io.holds(self.folder):
            return None
        saved = io.load(self.folder, kinds={self.kind})
        there, here = (extra.get("device", "cpu") for extra in (saved.meta["extra"], self.extra))
        if saved.meta["extra"] | {"device": ""} == self.extra | {"device": ""} and there != here:
            raise DataError(
                f"the checkpoint in {self.folder} was written on device {there!r}, and this fit is on {here!r}, whose "
                f"generators draw other numbers; set device={there!r}, or give another folder to start a new fit"
            )
        if saved.meta["extra"] != self.extra:
            if replace:
                io.remove(self.folder)
                return None
            raise DataError(
                f"the checkpoint in {self.folder} belongs to a fit with other data or other options; give another "
                "folder, or delete this one to start a new fit"
            )
        self._before = list(saved.meta.get("before", []))
        present = io.versions()
        if saved.written_by != present:
            self._before = [*(entry for entry in self._before if entry != saved.written_by), saved.written_by]
            differing = [name for name in present if saved.written_by.get(name) != present[name]]
            versions = ", ".join(
                f"{name} {saved.written_by.get(name, 'unknown')} (now {present[name]})" for name in differing
            )
            warnings.warn(
                f"the checkpoint in {self.folder} was written by {versions}; the fit continues, but its result may not "
                "be bit-identical to that of a single version",
                DataWarning,
                stacklevel=2,
            )
        if before is not None:
            before += [entry for entry in self._before if entry not in before]
        return saved.tensors, nonfinite.decode_nonfinite(saved.meta["run"])


def open_checkpoint(
    callbacks: Sequence[Callable[[Any], None]] | None,
    folder: str | PathLike[str] | None,
    seconds: float,
    fingerprint: Callable[[], str],
    device: torch.device | None = None,
    before: list[dict[str, str]] | None = None,
    *,
    replace: bool = False,
) -> tuple[list[Callable[[Any], None]], State | None]:
    """Return the callbacks of a run, with its checkpoint last, and the state to resume from.

    Parameters
    ----------
    callbacks : sequence of callables, optional
        Callbacks of the user; they are called before the checkpoint is written.
    folder : path, optional
        Folder of the checkpoint; by default there is no checkpoint, and nothing to resume.
    seconds : float
        Shortest time between two checkpoints.
    fingerprint : callable
        Returns the fingerprint of the data and options that a checkpoint belongs to; called only if there is a folder.
    device : torch.device, optional
        Device of the run; see :class:`Checkpoint`.
    before : list, optional
        As in :meth:`Checkpoint.load`.
    replace : bool
        If True, remove the checkpoint of another run instead of raising an error.

    Returns
    -------
    callbacks : list of callables
        Callbacks for the run.
    resume : (tensors, meta) or None
        State in the folder, if there is one.

    Raises
    ------
    FileError
        If the folder cannot be written, or its checkpoint is damaged.
    DataError
        If the checkpoint belongs to another run, or to another type of device.
    """
    user_callbacks = list(callbacks or ())
    if folder is None:
        return user_callbacks, None
    checkpoint = Checkpoint(folder, seconds, {"fingerprint": fingerprint()}, device)
    state = checkpoint.load(before, replace=replace)
    return [*user_callbacks, checkpoint], state
