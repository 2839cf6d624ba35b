"""What is called after every row of a history: it is written down, the state is kept."""

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
    """Write the history to a folder as it grows: ``history.csv`` and, a JSON object per line, ``history.jsonl``.

    A run that is resumed writes both anew, so that they hold what the run holds. Of several ranks the first one writes.

    Parameters
    ----------
    folder : path
        Where; created if needed.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self._names: list[str] = []
        self._rows = 0

    def __call__(self, run: ResumableRun) -> None:
        """Append the rows that are new."""
        if ranks().rank:
            return
        names = list(run.history[-1])
        if names != self._names or len(run.history) < self._rows:
            write_history(self.folder, run.history)
        else:
            for name, text in _written(run.history[self._rows :], names).items():
                io.append_text(self.folder / name, text)
        self._names, self._rows = names, len(run.history)


def write_history(folder: str | PathLike[str], history: Sequence[Mapping[str, float]]) -> None:
    """Write a whole history as ``history.csv`` and ``history.jsonl``, each in one step."""
    names = list(history[-1]) if history else []
    files = _written(history, names)
    io.write_text(Path(folder) / "history.csv", ",".join(names) + "\n" + files["history.csv"])
    io.write_text(Path(folder) / "history.jsonl", files["history.jsonl"])


def _written(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, str]:
    table = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    objects = [json.dumps(nonfinite.name_nonfinite(row)) for row in rows]
    return {"history.csv": "".join(f"{line}\n" for line in table), "history.jsonl": "".join(f"{o}\n" for o in objects)}


class TensorBoard:
    """Write every row of the history for TensorBoard; of several ranks the first one does.

    Parameters
    ----------
    folder : path
        Where TensorBoard looks (``tensorboard --logdir FOLDER``).

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
        """Write the last row."""
        if ranks().rank:
            return
        row = run.history[-1]
        if self._writer is None:  # of what an interrupted run wrote, what comes now takes the place
            self._writer = self._open(int(row["epoch"]))
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))
        self._writer.flush()


class Checkpoint:
    """Write the run to a folder, atomically: at the first row of the history, then at most every so many seconds.

    The end of a run is written too, and where it is asked to pause. Of several ranks the first one writes, and
    all read: they must see the same files.

    Parameters
    ----------
    folder : Path
        Where.
    seconds : float
        Least time between two checkpoints; 0 writes one at every evaluation.
    extra : mapping
        More JSON to keep beside the run, for instance a fingerprint of the data.
    device : torch.device, optional
        Where the run is. One on an accelerator goes on there alone: its generators draw other numbers elsewhere.
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
        self.folder, self.seconds, self.extra = Path(folder), seconds, dict(extra or {})
        if device is not None and device.type != "cpu":
            self.extra["device"] = device.type
        self._last, self._before = -math.inf, list[dict[str, str]]()

    def __call__(self, run: ResumableRun) -> None:
        """Write, if it is time."""
        if ranks().rank:
            return
        ended = run.stop or run.epoch >= run.epochs
        if ended or run.pause or time.monotonic() - self._last >= self.seconds:
            meta = {"run": nonfinite.encode_nonfinite(run.meta()), "extra": self.extra}
            meta |= {"before": self._before} if self._before else {}
            io.save(self.folder, kind=self.kind, tensors=run.tensors(), meta=meta)
            self._last = time.monotonic()

    def found(self, before: list[dict[str, str]] | None = None, *, replace: bool = False) -> State | None:
        """Return the state in the folder, or None if there is none.

        Parameters
        ----------
        before : list, optional
            Gets the versions under which the run was begun, if these are others than now, with a warning.
        replace : bool
            Whether the checkpoint of another run is removed.

        Raises
        ------
        FileError
            If the checkpoint is damaged.
        DataError
            If it belongs to another run (its `extra` differs) and is not replaced, or to a device of another kind.
        """
        if not io.holds(self.folder):
            return None
        saved = io.load(self.folder, kinds={self.kind})
        there, here = (extra.get("device", "cpu") for extra in (saved.meta["extra"], self.extra))
        if saved.meta["extra"] | {"device": ""} == self.extra | {"device": ""} and there != here:
            raise DataError(
                f"the checkpoint in {self.folder} was written on device {there!r}, and this fit is on {here!r}, whose "
                f"generators draw other numbers; set device={there!r}, or give another folder to start anew"
            )
        if saved.meta["extra"] != self.extra:
            if replace:
                io.remove(self.folder)
                return None
            raise DataError(
                f"the checkpoint in {self.folder} belongs to a fit of other data or other options; give another "
                "folder, or delete this one to start anew"
            )
        self._before = list(saved.meta.get("before", []))
        if saved.written_by != (now := io.versions()):
            self._before = [*(one for one in self._before if one != saved.written_by), saved.written_by]
            unlike = [name for name in now if saved.written_by.get(name) != now[name]]
            told = ", ".join(f"{name} {saved.written_by.get(name, 'unknown')} (now {now[name]})" for name in unlike)
            warnings.warn(
                f"the checkpoint in {self.folder} was written by {told}; the fit goes on, and may end in other bytes "
                "than one under a single version",
                DataWarning,
                stacklevel=2,
            )
        if before is not None:
            before += [one for one in self._before if one not in before]
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
        Those of the user; they run before the checkpoint is written.
    folder : path, optional
        Place of the checkpoint; without it there is none, and nothing to resume.
    seconds : float
        Least time between two checkpoints.
    fingerprint : callable
        Returns the name of the data and options that a checkpoint belongs to; called only if there is a folder.
    device : torch.device, optional
        Device of the run; see :class:`Checkpoint`.
    before : list, optional
        Gets the versions under which the run was begun, if these are others than now.
    replace : bool
        Whether the checkpoint of another run is removed instead of refused.

    Returns
    -------
    callbacks : list of callables
        Callbacks for the run.
    resume : (tensors, meta) or None
        State in the folder.

    Raises
    ------
    FileError
        If the folder cannot be written, or its checkpoint is damaged.
    DataError
        If the checkpoint belongs to another run, or to a device of another kind.
    """
    given = list(callbacks or ())
    if folder is None:
        return given, None
    checkpoint = Checkpoint(folder, seconds, {"fingerprint": fingerprint()}, device)
    return [*given, checkpoint], checkpoint.found(before, replace=replace)
