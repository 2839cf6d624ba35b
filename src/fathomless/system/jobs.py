"""Long computations in parts. Each result is saved as soon as it is computed, and is not computed again."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.locks import hold_folder
from fathomless.system.progress import Progress, Silent

__all__ = ["run_parts"]

Part = Callable[[], Mapping[str, Any]]


def run_parts(
    parts: Mapping[str, Part],
    *,
    settings: Mapping[str, Any],
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> tuple[dict[str, dict[str, Any]], float]:
    """Compute the parts of a long computation, in order or in parallel.

    Parameters
    ----------
    parts : mapping of str to callable
        Functions that return plain JSON. The file of a part has its name, with ``-`` for ``/``.
    settings : mapping
        All settings that the parts depend on, as plain JSON. A part on disk must have the same settings.
    out : path, optional
        Folder; results are saved in ``out/parts``. Nothing is saved by default.
    progress : Progress, optional
        Display.
    jobs : int
        Number of processes; with more than one each part must be picklable. -1 means one for each core.

    Returns
    -------
    results : dict
        Result of each part.
    seconds : float
        Total time of the parts, over all runs.

    Raises
    ------
    DataError
        If a part on disk has other settings.
    FileError
        If another process writes to the same folder, or it cannot be written.
    """
    with contextlib.nullcontext() if out is None else hold_folder(out):
        return _run_parts(parts, settings, out, progress, jobs)


def _run_parts(
    parts: Mapping[str, Part],
    settings: Mapping[str, Any],
    out: str | PathLike[str] | None,
    progress: Progress | None,
    jobs: int,
) -> tuple[dict[str, dict[str, Any]], float]:
    settings = json.loads(json.dumps(settings))  # in the form in which it is read from disk
    display = progress or Silent()
    found: dict[str, dict[str, Any]] = {}
    seconds = 0.0
    paths = {name: None if out is None else Path(out) / "parts" / f"{name.replace('/', '-')}.json" for name in parts}
    for name, path in paths.items():
        if path is not None and path.exists():
            kept = _read_part(path, settings)
            found[name], seconds = kept["values"], seconds + kept["seconds"]
    display.start(len(parts), len(found))
    try:
        for name, values, taken in _compute({name: make for name, make in parts.items() if name not in found}, jobs):
            found[name], seconds = values, seconds + taken
            if (path := paths[name]) is not None:
                kept = {"settings": settings, "seconds": taken, "values": values}
                io.write_text(path, json.dumps(kept, indent=1) + "\n")
            display.advance(len(found), {})
    finally:
        display.close()
    return {name: found[name] for name in parts}, seconds


def _compute(parts: Mapping[str, Part], jobs: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Compute parts; yield each as soon as it is done."""
    if jobs == 1:
        yield from (_compute_part(name, make) for name, make in parts.items())
        return
    from joblib import Parallel, delayed

    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_compute_part)(name, make) for name, make in parts.items()
    )


def _compute_part(name: str, make: Part) -> tuple[str, dict[str, Any], float]:
    start = time.monotonic()
    values = json.loads(json.dumps(make()))
    return name, values, time.monotonic() - start


def _read_part(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read a part and check its settings."""
    kept = io.read_json(path)
    if not isinstance(kept, dict) or set(kept) != {"settings", "seconds", "values"}:
        raise DataError(f"{path} does not hold a part of an experiment; remove it, or give another folder")
    if kept["settings"] != settings:
        differing = sorted(k for k in {*settings, *kept["settings"]} if settings.get(k) != kept["settings"].get(k))
        raise DataError(f"{path} has other settings ({', '.join(differing)}); give another folder, or remove this one")
    return kept
