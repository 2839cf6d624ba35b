"""Long computations in parts. Each result is saved as soon as it is computed, and is not computed again."""

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.locks import hold_folder
from fathomless.system.progress import Progress, Silent

__all__ = ["call_in_parallel", "iterate_parts", "run_parts"]

Part = Callable[[], Mapping[str, Any]]


def run_parts(
    parts: Mapping[str, Part], *, settings: Mapping[str, Any], **options: Any
) -> tuple[dict[str, dict[str, Any]], float]:
    """Compute the parts of a long computation, in order or in parallel.

    Parameters
    ----------
    parts, settings, **options
        As of :func:`iterate_parts`.

    Returns
    -------
    results : dict
        Result of each part that was computed, or found on disk, in the order of the parts.
    seconds : float
        Total time of the parts, over all runs.

    Raises
    ------
    DataError, FileError
        As :func:`iterate_parts` does.
    """
    found, seconds = dict[str, dict[str, Any]](), 0.0
    for name, values, taken in iterate_parts(parts, settings=settings, **options):
        found[name], seconds = values, seconds + taken
    return {name: found[name] for name in parts if name in found}, seconds


def iterate_parts(
    parts: Mapping[str, Part],
    *,
    settings: Mapping[str, Any],
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    deadline: float | None = None,
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield each part of a long computation as soon as it is done: its name, its result and its time in seconds.

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
    deadline : float, optional
        Time in seconds since the epoch after which no part is started.

    Raises
    ------
    DataError
        If a part on disk has other settings.
    FileError
        If another process writes to the same folder, or it cannot be written.
    """
    settings = json.loads(json.dumps(settings))  # in the form in which it is read from disk
    display = progress or Silent()
    with contextlib.nullcontext() if out is None else hold_folder(out):
        paths = {
            name: None if out is None else Path(out) / "parts" / f"{name.replace('/', '-')}.json" for name in parts
        }
        saved = {name: _read_part(path, settings) for name, path in paths.items() if path is not None and path.exists()}
        display.start(len(parts), len(saved))
        try:
            for name, kept in saved.items():
                yield name, kept["values"], kept["seconds"]
            rest = {name: make for name, make in parts.items() if name not in saved}
            for done, (name, values, taken) in enumerate(_compute(rest, jobs, deadline or math.inf), len(saved) + 1):
                if (path := paths[name]) is not None:
                    kept = {"settings": settings, "seconds": taken, "values": values}
                    io.write_text(path, json.dumps(kept, indent=1) + "\n")
                display.advance(done, {})
                yield name, values, taken
        finally:
            display.close()


def _compute(parts: Mapping[str, Part], jobs: int, deadline: float) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Compute the parts that start before a deadline; yield each as soon as it is done."""
    done: Iterator[tuple[str, dict[str, Any], float] | None]
    if jobs == 1:
        done = (_compute_part(name, make, deadline) for name, make in parts.items())
    else:
        from joblib import delayed

        done = call_in_parallel((delayed(_compute_part)(name, make, deadline) for name, make in parts.items()), jobs)
    yield from (part for part in done if part is not None)


def call_in_parallel(calls: Iterable[Any], jobs: int | None = None) -> Iterator[Any]:
    """Make calls by joblib, and yield each result as soon as it is known.

    A backend that returns all results at the end, such as Ray, makes as many calls at once as it has workers, so that
    the results of earlier calls are not lost with a worker.

    Parameters
    ----------
    calls : iterable of joblib.delayed
        Calls.
    jobs : int, optional
        Number of workers; that of ``joblib.parallel_config`` by default.
    """
    from joblib import Parallel, effective_n_jobs
    from joblib.parallel import get_active_backend

    if get_active_backend()[0].supports_return_generator:
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        return
    rest = iter(calls)
    while some := list(itertools.islice(rest, effective_n_jobs(jobs))):
        yield from Parallel(n_jobs=jobs)(some)


def _compute_part(name: str, make: Part, deadline: float) -> tuple[str, dict[str, Any], float] | None:
    """Compute a part; return None after the deadline."""
    if time.time() > deadline:
        return None
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
