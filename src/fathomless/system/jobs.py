"""Long computations in parts: each is kept as soon as it is done, and not done again."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.locks import writing
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
    """Run the parts of a computation, in their order or several at once.

    Parameters
    ----------
    parts : mapping of str to callable
        Each returns plain JSON. A name becomes that of a file, with ``-`` for ``/``.
    settings : mapping
        Plain JSON: whatever the parts depend on. A part that is found on disk must have been made with the same.
    out : path, optional
        Folder; parts are kept in ``out/parts``. Without it nothing is kept.
    progress : Progress, optional
        Display.
    jobs : int
        Processes that work side by side; each part must be picklable then. -1 is one for each core.

    Returns
    -------
    found : dict
        What each part returned.
    seconds : float
        How long they took, over all runs.

    Raises
    ------
    DataError
        If a part on disk was made with other settings.
    FileError
        If another process writes parts to the same folder, or it cannot be written.
    """
    with contextlib.nullcontext() if out is None else writing(out):
        return _run_parts(parts, settings, out, progress, jobs)


def _run_parts(
    parts: Mapping[str, Part],
    settings: Mapping[str, Any],
    out: str | PathLike[str] | None,
    progress: Progress | None,
    jobs: int,
) -> tuple[dict[str, dict[str, Any]], float]:
    settings = json.loads(json.dumps(settings))  # as it comes back from disk
    display = progress or Silent()
    found: dict[str, dict[str, Any]] = {}
    seconds = 0.0
    paths = {name: None if out is None else Path(out) / "parts" / f"{name.replace('/', '-')}.json" for name in parts}
    for name, path in paths.items():
        if path is not None and path.exists():
            kept = _kept(path, settings)
            found[name], seconds = kept["values"], seconds + kept["seconds"]
    display.start(len(parts), len(found))
    try:
        for name, values, taken in _made({name: make for name, make in parts.items() if name not in found}, jobs):
            found[name], seconds = values, seconds + taken
            if (path := paths[name]) is not None:
                kept = {"settings": settings, "seconds": taken, "values": values}
                io.write_text(path, json.dumps(kept, indent=1) + "\n")
            display.advance(len(found), {})
    finally:
        display.close()
    return {name: found[name] for name in parts}, seconds


def _made(parts: Mapping[str, Part], jobs: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Make parts; yield each as soon as it is done."""
    if jobs == 1:
        yield from (_one(name, make) for name, make in parts.items())
        return
    from joblib import Parallel, delayed

    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_one)(name, make) for name, make in parts.items()
    )


def _one(name: str, make: Part) -> tuple[str, dict[str, Any], float]:
    start = time.monotonic()
    values = json.loads(json.dumps(make()))
    return name, values, time.monotonic() - start


def _kept(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read a part, if it was made with these settings."""
    kept = io.read_json(path)
    if not isinstance(kept, dict) or set(kept) != {"settings", "seconds", "values"}:
        raise DataError(f"{path} does not hold a part of an experiment; remove it, or give another folder")
    if kept["settings"] != settings:
        differing = sorted(k for k in {*settings, *kept["settings"]} if settings.get(k) != kept["settings"].get(k))
        raise DataError(
            f"{path} was made with other settings ({', '.join(differing)}); give another folder, or remove this one"
        )
    return kept
