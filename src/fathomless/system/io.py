"""Atomic reading and writing of tensors, JSON and text.

A saved object is a folder with two files::

    manifest.json                      kind, versions of the writer, metadata, checksums
    tensors-<16 hex digits>.safetensors    named by content, so that old and new files have different names

The manifest is replaced last and in one step. At any moment the folder has the complete old object or the complete new
one. Loading never executes code. Checksums detect accidental changes, not attacks.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fathomless.system.errors import DataError, FileError
from fathomless.system.version import __version__

__all__ = [
    "FORMAT",
    "Saved",
    "append_text",
    "as_file_error",
    "digest",
    "header",
    "holds",
    "load",
    "read_json",
    "real",
    "remove",
    "remove_file",
    "save",
    "versions",
    "writable",
    "write_bytes",
    "write_text",
]

#: Version of the layout of saved folders; a newer one is refused.
FORMAT = 1

_MANIFEST = "manifest.json"
_PARTIALS = ("manifest.json.partial", "tensors.partial")
_DEEPEST = 200  # levels of a path
_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
_LIMIT = 32 << 20  # bytes of a manifest; measurements that need more are tensors
_DEPTH = 64  # nested levels of the metadata
_RETRIES = 30  # how often a reader follows a writer that replaces what it is reading
_KEYS: Mapping[str, type] = {
    "format": int,
    "kind": str,
    "written_by": dict,
    "tensors": dict,
    "meta": dict,
    "checksum": str,
}
_RESTORE = "restore it from a backup or save again"
_TENSOR_KEYS: Mapping[str, type] = {"file": str, "sha256": str, "bytes": int}

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Saved:
    """Content of a saved folder, as returned by :func:`load`.

    Attributes
    ----------
    kind : str
        Kind of object, for instance ``"model"``.
    tensors : dict of str to Tensor
        On the CPU, contiguous, with the data types that were saved.
    meta : dict
        Plain JSON values; tuples have become lists.
    written_by : dict
        Versions of fathomless, torch, numpy and python that wrote it.
    """

    kind: str
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    written_by: dict[str, Any]


# ---------------------------------------------------------------------------------------------- saving


def save(folder: PathLike, *, kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Save named tensors and metadata as a folder; the same input gives the same bytes.

    If the process is killed or the power fails, the folder has either its previous content or the complete new
    object. Other files in the folder are left alone.

    Parameters
    ----------
    folder : path
        Created if needed. An object saved there before is replaced.
    kind : str
        Kind of object; :func:`load` refuses unexpected kinds.
    tensors : mapping of str to Tensor
        Dense tensors on any device, of any data type that safetensors knows.
    meta : mapping
        None, booleans, integers, finite floats, strings, lists, tuples and mappings with text keys; NumPy
        scalars are converted.

    Raises
    ------
    DataError
        If the metadata or the tensors cannot be represented. Nothing has been written.
    FileError
        If the folder cannot be written, for instance because the disk is full. The previous content is unchanged
        and no temporary file is left.

    Notes
    -----
    Two writers must not write to one folder at the same time. ``requires_grad``, devices, strides and shared memory of
    tensors are not saved.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as home:
    ...     folder = save(Path(home) / "m", kind="demo", tensors={"w": torch.ones(2)}, meta={"rate": 0.1})
    ...     load(folder, kinds={"demo"}).meta
    {'rate': 0.1}
    """
    folder = Path(folder)
    blob = _tensor_bytes(tensors)
    digest = hashlib.sha256(blob).hexdigest()
    name = f"tensors-{digest[:16]}.safetensors"
    manifest = _manifest_bytes(
        {
            "format": FORMAT,
            "kind": kind,
            "written_by": versions(),
            "tensors": {"file": name, "sha256": digest, "bytes": len(blob)},
            "meta": _plain(meta, "meta"),
        }
    )
    with as_file_error(f"{kind} could not be saved in {folder}", "; what was saved there before is untouched"):
        _refuse_strangers(folder)
        _refuse_file(folder, folder)
        folder.mkdir(parents=True, exist_ok=True)
        _commit(folder, name, blob, manifest)
    return folder


def writable(folder: PathLike) -> Path:
    """Check that a folder can be written, before a long computation whose result is saved there.

    An unnamed temporary file is written next to the folder; the folder is not created, and no file remains.

    Raises
    ------
    FileError
        If the path is a file, lies below one, holds a manifest of another program, or cannot be written.

    Notes
    -----
    The disk may still be full, or the folder become read-only, later.
    """
    folder = Path(folder)
    with as_file_error(f"{folder} cannot be written"):
        _refuse_strangers(folder)
        if len(folder.parts) > _DEEPEST:
            raise FileError(f"{str(folder)[:60]}… has {len(folder.parts):,} levels; up to {_DEEPEST} are allowed")
        place = folder
        while not place.exists() and place.parent != place:
            place = place.parent
        _refuse_file(place, folder)
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"?")
    return folder


def write_text(path: PathLike, text: str) -> Path:
    """Write a text file in UTF-8 atomically: at any moment it has the complete old text or the complete new one.

    Raises
    ------
    FileError
        If the file cannot be written; its previous content is unchanged.
    """
    return write_bytes(path, text.encode("utf-8", "surrogatepass"))


def write_bytes(path: PathLike, content: bytes) -> Path:
    """Write a file atomically: at any moment it has the complete old content or the complete new one.

    Raises
    ------
    FileError
        If the file cannot be written; its previous content is unchanged.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with as_file_error(f"{path} could not be written", "; what was there before is untouched"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _put(partial, path, content)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
    return path


def append_text(path: PathLike, text: str) -> None:
    """Append to a text file in UTF-8. If the process is killed, the last line may be incomplete.

    Raises
    ------
    FileError
        If it cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # no link is followed
    with (
        as_file_error(f"{path} could not be written"),
        open(os.open(path, flags, 0o666), "a", encoding="utf-8") as file,
    ):
        file.write(text)


def read_json(path: PathLike) -> Any:
    """Read a JSON file without a checksum. It may have been edited, so callers check its content.

    Raises
    ------
    FileError
        If it is missing, too large or not JSON.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"there is no file {path}; check the path")
    with as_file_error(f"{path} cannot be read"):
        return _parse(path)


def remove_file(path: PathLike) -> None:
    """Remove a file, if it is there."""
    with as_file_error(f"{path} could not be removed"):
        Path(path).unlink(missing_ok=True)


def remove(folder: PathLike, *, inside: bool = False) -> None:
    """Remove the files of :func:`save` from a folder, the manifest first, and the folder if it is then empty.

    Parameters
    ----------
    folder : path
        A link is not followed.
    inside : bool
        True to remove saved files in its subfolders too, and the subfolders that are then empty.
    """
    folder = real(folder)
    with as_file_error(f"{folder} could not be removed"):
        for path in [folder / _MANIFEST, *(sorted(folder.iterdir()) if folder.is_dir() else ())]:
            if path.name in (_MANIFEST, *_PARTIALS) or _TENSORS.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif inside and path.is_dir() and not path.is_symlink():
                remove(path, inside=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def holds(folder: PathLike, *, inside: bool = False) -> bool:
    """Return True if :func:`save` wrote to a folder, or inside it; the content may still be damaged."""
    found = Path(folder).rglob(_MANIFEST) if inside else [Path(folder) / _MANIFEST]
    return any(path.is_file() for path in found)


def digest(folder: PathLike) -> str:
    """Return the SHA-256 of the manifest that :func:`save` put into a folder, which names the tensors, or ""."""
    path = Path(folder) / _MANIFEST
    with as_file_error(f"{path} cannot be read"):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def real(folder: PathLike) -> Path:
    """Return a folder that must not be a link, since writing and removing would affect another place.

    Raises
    ------
    FileError
        If it is a link.
    """
    folder = Path(folder)
    if folder.is_symlink():
        raise FileError(f"{folder} is a link, and links inside a run are not followed: remove it")
    return folder


def _commit(folder: Path, name: str, blob: bytes, manifest: bytes) -> None:
    """Write the tensors, replace the manifest in one step, and remove files that are no longer needed."""
    fresh = not (folder / name).exists()
    try:
        _put(folder / "tensors.partial", folder / name, blob)
        _sync(folder)  # the tensors file must be on disk before the manifest that refers to it
        _put(folder / "manifest.json.partial", folder / _MANIFEST, manifest)
        _sync(folder)
    except BaseException:
        # after an interruption, the manifest on disk shows whether the new tensors are in use
        with contextlib.suppress(OSError):
            for partial in _PARTIALS:
                (folder / partial).unlink(missing_ok=True)
            if fresh and not _equals(folder / _MANIFEST, manifest):
                (folder / name).unlink(missing_ok=True)
        raise
    with contextlib.suppress(
        OSError
    ):  # the new object is saved; a remaining old file is harmless and is removed next time
        for path in sorted(folder.iterdir()):
            if path.name in _PARTIALS or (_TENSORS.fullmatch(path.name) and path.name != name):
                path.unlink(missing_ok=True)


def _put(partial: Path, target: Path, data: bytes) -> None:
    """Write a file under a temporary name, force it to disk, and rename it."""
    partial.unlink(missing_ok=True)
    with open(partial, "xb") as file:  # exclusive mode, which never follows a link
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
            raise FileError(f"{target} is being written by another process; stop one of them")
    os.replace(partial, target)


def _sync(folder: Path) -> None:
    """Force the names in a folder to disk, where the system can do that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems do not support this
            raise
    finally:
        os.close(handle)


def _equals(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _refuse_file(place: Path, folder: Path) -> None:
    if place.exists() and not place.is_dir():
        raise FileError(f"{folder} cannot be written: {place} is a file; choose another folder")


def _refuse_strangers(folder: Path) -> None:
    """Refuse to replace a ``manifest.json`` that another program wrote."""
    path = folder / _MANIFEST
    if not path.is_file():
        return
    with open(path, "rb") as file:
        start = file.read(64)
    if start and not start.lstrip(b"{ \n").startswith(b'"checksum"'):
        raise FileError(f"{path} was not written by fathomless; choose another folder or move it away")


@contextlib.contextmanager
def as_file_error(what: str, note: str = "") -> Iterator[None]:
    """Turn an error of the operating system into one that says what to do."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space or choose another disk",
            errno.EDQUOT: "your quota is used up: remove some files or choose another disk",
            errno.EFBIG: "files may not grow that large here (ulimit -f): raise the limit or choose another disk",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "permission is missing: change it or choose another folder",
            errno.EPERM: "permission is missing: change it or choose another folder",
        }.get(error.errno or 0, "choose another folder or repair this one")
        raise FileError(f"{what}: {error.strerror or error} (errno {error.errno}){note}; {advice}") from error


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    plain = {}
    for name, tensor in sorted(tensors.items()):
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            what = f"{tensor.layout} on {tensor.device}" if isinstance(tensor, Tensor) else f"{type(tensor)}"
            raise DataError(f"tensor {name!r} is {what}; only dense tensors that hold data can be saved")
        if name == "__metadata__":
            raise DataError("a tensor is named '__metadata__', which safetensors keeps for itself; rename it")
        # a copy, because safetensors refuses tensors that share memory (tied weights, views)
        plain[name] = tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
    try:
        return bytes(safetensors.torch.save(plain))
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        types = sorted({str(t.dtype) for t in plain.values()})
        raise DataError(f"safetensors cannot store these tensors (data types {types}): {error}") from error


def _manifest_bytes(rest: dict[str, Any]) -> bytes:
    try:
        # keep the order, so that loading and saving again gives the same bytes
        text = json.dumps({"checksum": _checksum(rest), **rest}, indent=1, allow_nan=False)
    except ValueError as error:  # for instance an integer with thousands of digits
        raise DataError(f"meta cannot be written as JSON: {error}") from error
    if len(text) > _LIMIT:
        raise DataError(f"meta takes {len(text)} bytes, at most {_LIMIT} are allowed; make long series tensors")
    return text.encode("ascii") + b"\n"


def _checksum(rest: Mapping[str, Any]) -> str:
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Turn metadata into what JSON can hold without loss, or say what cannot be held."""
    if depth > _DEPTH:
        raise DataError(f"meta is nested deeper than {_DEPTH} levels (or contains itself); flatten it")
    match value:
        case None | bool() | np.bool_():
            return None if value is None else bool(value)
        case str():
            return str.__str__(value)
        case int() | np.integer():
            return int(value)
        case float() | np.floating():
            if not math.isfinite(value):
                raise DataError(f"{where} is {float(value)}; JSON holds finite numbers only: use None or a tensor")
            return float(value)
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise DataError(f"{where} has the key {key!r} ({type(key).__name__}); keys must be text")
            return {str.__str__(k): _plain(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise DataError(
        f"{where} is a {type(value).__name__}; allowed are None, booleans, numbers, text, lists and mappings "
        "(save arrays as tensors)"
    )


def versions() -> dict[str, str]:
    """Return the versions of fathomless, torch, NumPy and Python."""
    return {
        "fathomless": __version__,
        "torch": str(torch.__version__),  # a string subclass that compares as a version
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# --------------------------------------------------------------------------------------------- loading


def header(folder: PathLike) -> tuple[str, dict[str, Any]]:
    """Return the kind of a saved object, and the versions that wrote it, without reading its tensors.

    Raises
    ------
    FileError
        As :func:`load` does.
    """
    with as_file_error(f"{folder} cannot be read"):
        manifest = _read_manifest(Path(folder))
    return manifest["kind"], manifest["written_by"]


def load(folder: PathLike, *, kinds: Collection[str]) -> Saved:
    """Load an object that :func:`save` wrote, after checking all checksums.

    Parameters
    ----------
    folder : path
        The folder given to :func:`save`.
    kinds : collection of str
        The kinds that the caller knows how to use.

    Raises
    ------
    FileError
        If there is nothing to load, if it was altered, cut off or written by a newer version, or if it is of
        another kind. The message says which, and what to do.
    """
    folder = Path(folder)
    with as_file_error(f"{folder} cannot be read"):
        manifest = _read_manifest(folder)
        for _ in range(_RETRIES):
            _check_kind(folder, manifest["kind"], kinds)
            try:
                tensors = _read_tensors(folder, manifest["tensors"])
            except OSError:  # also FileError
                newer = _read_manifest(folder)
                if newer["checksum"] == manifest["checksum"]:
                    raise
                manifest = newer  # a writer replaced the object during reading
            else:
                return Saved(manifest["kind"], tensors, manifest["meta"], manifest["written_by"])
    raise FileError(f"{folder} is being replaced faster than it can be read; stop the writer and load again")


def _check_kind(folder: Path, kind: str, kinds: Collection[str]) -> None:
    if kind not in kinds:
        allowed = ", ".join(sorted(map(repr, kinds)))
        raise FileError(f"{folder} holds a {kind!r}; allowed here: {allowed}. Load it with what saved it")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not folder.exists():
        raise FileError(f"there is no folder {folder}; check the path")
    if not folder.is_dir():
        raise FileError(f"{folder} is a file; give the folder that holds {_MANIFEST}")
    if not path.is_file():
        raise FileError(f"{folder} holds no {_MANIFEST}, so nothing was saved there; check the path")
    manifest = _parse(path)
    if not isinstance(manifest, dict):
        raise FileError(f"{path} holds a {type(manifest).__name__}, not an object; {_RESTORE}")
    _check_keys(path, manifest)
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    try:
        found = _checksum(rest)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} was altered: {error}; {_RESTORE}") from error
    if found != manifest["checksum"]:
        raise FileError(f"{path} was altered: its checksum does not match; restore it from a backup or save again")
    return manifest


def _parse(path: Path) -> Any:
    with open(path, "rb") as file:
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise FileError(f"{path} is larger than {_LIMIT} bytes, so fathomless did not write it")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON ({error}); {_RESTORE}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_keys(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check names and types of the keys. A newer format is reported first, since its keys may differ."""
    version = manifest.get("format")
    if type(version) is int and version > FORMAT:
        writer = manifest.get("written_by")
        own = writer.get("fathomless", "unknown") if isinstance(writer, dict) else "unknown"
        raise FileError(
            f"{path} has format {version} and was written by a newer version of fathomless ({own}); "
            f"this version reads up to format {FORMAT}: upgrade fathomless"
        )
    for keys, part, prefix in ((_KEYS, manifest, ""), (_TENSOR_KEYS, manifest.get("tensors"), "tensors.")):
        for key, kind in keys.items():
            if not isinstance(part, dict) or key not in part:
                raise FileError(f"{path} lacks {prefix + key!r}; {_RESTORE}")
            if type(part[key]) is not kind:
                found = type(part[key]).__name__
                raise FileError(f"{path}: {prefix + key!r} is {found}, expected {kind.__name__}; {_RESTORE}")
    if version != FORMAT:
        raise FileError(f"{path} has format {version}; formats start at 1, so it was altered")


def _read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    name, size = entry["file"], entry["bytes"]
    if not _TENSORS.fullmatch(name):
        raise FileError(f"{folder / _MANIFEST} names the tensors file {name!r}, never written by us: {_RESTORE}")
    path = folder / name
    if not path.is_file():
        raise FileError(f"{path} is missing; copy the whole folder again or restore it from a backup")
    if path.resolve().parent != folder.resolve():
        raise FileError(f"{path} is a link that leaves the folder; put the file itself there")
    found = path.stat().st_size
    if found != size:
        raise FileError(f"{path} has {found} bytes, the manifest says {size}; it was cut off: copy it again")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise FileError(f"{path} was altered: its checksum does not match; restore it from a backup or save again")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise FileError(f"{path} is not a safetensors file ({error}); {_RESTORE}") from error
