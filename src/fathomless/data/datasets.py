"""Named data sets, and toy problems with known truth.

Named data sets are read from a folder (an argument, or the environment variable ``FATHOMLESS_DATA``); nothing is
downloaded. A few small ones come with scikit-learn and need no folder. The file ``catalogue.json`` lists the data sets
and their paths in the folder.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import load_bundled, make_frame
from fathomless.system.errors import DataError
from fathomless.system.io import read_json
from fathomless.system.rng import Seed, as_seed
from fathomless.tables.readers import read_arrays, read_image, read_table

__all__ = [
    "Dataset",
    "cosine_gap",
    "cubic",
    "gap_cubic",
    "gap_sine",
    "heteroscedastic",
    "load",
    "moons",
    "names",
    "pinwheel",
    "rings",
    "spiral",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_VARIABLE = "FATHOMLESS_DATA"


@dataclass(frozen=True)
class Dataset:
    """Data set as published: not scaled, shuffled or imputed.

    Attributes
    ----------
    name : str
        Name for :func:`load`.
    X : ndarray of float64, shape (N, D), ndarray of uint8, shape (N, H, W[, 3]), or data frame
        Inputs: a matrix, images, or a table with columns of several types (None or NaN for missing).
    y : ndarray, shape (N,), or None
        Target: numbers, class labels, or codes 0, ..., K - 1 if there are ``class_names``; None for density
        sets.
    task : {"regression", "classification", "density", "images"}
        Intended use.
    feature_names : tuple of str
        Names of the columns of X; empty for images.
    target_name : str or None
        Name of y.
    class_names : tuple of str
        Names of the codes in y; empty if y holds labels or numbers.
    splits : tuple of (ndarray of int64, ndarray of int64)
        Published splits: row numbers of the training and test sets.
    source : str
        Origin, and notes on use.
    extra : mapping of str to ndarray
        Other arrays of the file, under their names in the file.
    """

    name: str
    X: Any
    y: npt.NDArray[Any] | None
    task: str
    feature_names: tuple[str, ...]
    target_name: str | None
    class_names: tuple[str, ...] = ()
    splits: tuple[tuple[Ints, Ints], ...] = ()
    source: str = ""
    extra: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


def names() -> tuple[str, ...]:
    """Return the sorted names of the data sets of :func:`load`.

    Examples
    --------
    >>> "boston" in names()
    True
    """
    return tuple(sorted(_catalogue()))


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    folder : path, optional
        Folder of the data sets; by default the environment variable ``FATHOMLESS_DATA``.

    Raises
    ------
    DataError
        If the name is unknown, or a folder is needed and none is given; the message then names the public source.
    FileError
        If the file is missing from the folder, or damaged.

    Examples
    --------
    >>> load("diabetes").X.shape
    (442, 10)
    """
    if name not in names():
        raise DataError(f"there is no data set {name!r}; available are {', '.join(names())}")
    place = folder or os.environ.get(_VARIABLE)
    parts = _catalogue()[name]
    if "bundled" in parts and ("file" not in parts or not place):
        return _load_bundled(name, **parts["bundled"])
    entry = _File(**parts["file"])
    if not place:
        free = sorted(known for known, parts in _catalogue().items() if "bundled" in parts)
        raise DataError(
            f"{name!r} does not come with fathomless. Its public source is {entry.source}. Give the folder "
            f"that holds {entry.path} as folder=..., or set the environment variable {_VARIABLE}. Available without "
            f"a folder are {', '.join(free)} (from scikit-learn)"
        )
    return _LAYOUTS[entry.layout](name, entry, Path(place) / entry.path)


@functools.cache
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return for each name an entry "file" (see :class:`_File`), an entry "bundled" (in scikit-learn), or both."""
    catalogue: Mapping[str, Mapping[str, Any]] = read_json(Path(__file__).with_name("catalogue.json"))
    return catalogue


# ------------------------------------------------------------------------------------ readers of one layout


@dataclass(frozen=True)
class _File:
    """Path of a data set below the folder, its layout and its source.

    A table may have a column with the values "train" and "test", or begin with the training rows.
    """

    path: str
    layout: str
    source: str
    target: str = ""
    split_column: str = ""
    train_rows: int = 0


def _regression(name: str, entry: _File, path: Path) -> Dataset:
    arrays = read_arrays(path)
    pairs = zip(arrays.pop("train_idx"), arrays.pop("test_idx"), strict=True)
    splits = tuple((train.astype(np.int64), test.astype(np.int64)) for train, test in pairs)
    features = _to_strings(arrays.pop("feature_names"))
    target = str(arrays.pop("target_name"))
    X = arrays.pop("X")
    y = arrays.pop("y")
    return Dataset(name, X, y, "regression", features, target, (), splits, entry.source, arrays)


def _density(name: str, entry: _File, path: Path) -> Dataset:
    arrays = read_arrays(path)
    X = arrays.pop("X")
    features = _to_strings(arrays.pop("column_names"))
    if "y" not in arrays:
        return Dataset(name, X, None, "density", features, None, source=entry.source, extra=arrays)
    y = arrays.pop("y")
    classes = _to_strings(arrays.pop("class_names"))
    return Dataset(name, X, y, "classification", features, entry.target, classes, (), entry.source, arrays)


def _images(name: str, entry: _File, path: Path) -> Dataset:
    arrays = read_arrays(path)
    return _pictures(name, entry, arrays.pop("x_train"), arrays.pop("x_test"), arrays)


def _mosaics(name: str, entry: _File, path: Path) -> Dataset:
    parts = [_split_mosaic(path / f"train_{i}.webp") for i in range(1, 6)]
    return _pictures(
        name, entry, np.concatenate(parts), _split_mosaic(path / "test.webp"), read_arrays(path / "labels.npz")
    )


def _split_mosaic(path: Path) -> npt.NDArray[np.uint8]:
    """Split one image of 100 x 100 tiles into 10000 images, row by row."""
    tiles = read_image(path).reshape(100, 32, 100, 32, 3).swapaxes(1, 2)
    return tiles.reshape(10_000, 32, 32, 3)


def _pictures(
    name: str,
    entry: _File,
    train: npt.NDArray[np.uint8],
    test: npt.NDArray[np.uint8],
    arrays: dict[str, npt.NDArray[Any]],
) -> Dataset:
    y = np.concatenate([arrays.pop("y_train"), arrays.pop("y_test")]).astype(np.int64)
    classes = _to_strings(arrays.pop("class_names"))
    splits = (_split_at(len(train), len(train) + len(test)),)
    X = np.concatenate([train, test])
    return Dataset(name, X, y, "images", (), "class", classes, splits, entry.source, arrays)


def _table(name: str, entry: _File, path: Path) -> Dataset:
    columns = read_table(path)
    y = columns.pop(entry.target)
    splits: tuple[tuple[Ints, Ints], ...] = ()
    if entry.split_column:
        part = columns.pop(entry.split_column)
        splits = ((np.flatnonzero(part == "train"), np.flatnonzero(part == "test")),)
    elif entry.train_rows:
        splits = (_split_at(entry.train_rows, len(y)),)
    features = tuple(columns)
    return Dataset(name, make_frame(columns), y, "classification", features, entry.target, (), splits, entry.source)


def _two_tables(name: str, entry: _File, path: Path) -> Dataset:
    columns = read_table(path / "x.csv")
    y = read_table(path / "y.csv")[entry.target]
    X = np.column_stack([column.astype(np.float64) for column in columns.values()])
    return Dataset(name, X, y, "classification", tuple(columns), entry.target, (), (), entry.source)


def _load_bundled(
    name: str, source: str, target: str, feature_names: Sequence[str] = (), class_names: Sequence[str] = ()
) -> Dataset:
    X, y, features, classes = load_bundled(name)
    # the names are the same with and without a folder
    features = tuple(feature_names) or features
    classes = tuple(class_names) or classes
    task = "classification" if classes else "regression"
    return Dataset(name, X, y, task, features, target, classes, (), source)


def _split_at(first: int, total: int) -> tuple[Ints, Ints]:
    return np.arange(first, dtype=np.int64), np.arange(first, total, dtype=np.int64)


def _to_strings(values: npt.NDArray[Any]) -> tuple[str, ...]:
    return tuple(map(str, values.tolist()))


#: Readers of the layouts in the catalogue.
_LAYOUTS: Mapping[str, Callable[[str, _File, Path], Dataset]] = {
    "regression": _regression,
    "density": _density,
    "images": _images,
    "mosaics": _mosaics,
    "table": _table,
    "two tables": _two_tables,
}


# ----------------------------------------------------------------------------------------- toy problems


def spiral(n: int, rotation: float, seed: Seed, noise: float = 0.02) -> tuple[Floats, Ints]:
    """Sample two interleaved spirals; the problem gets harder with the number of turns.

    With t ~ U(0, 1), u = sqrt(t), c = -1 or +1 and angle = rotation * u * pi / 2::

        x = c u (cos angle, sin angle) + N(0, noise^2)

    Parameters
    ----------
    n : int
        Number of points.
    rotation : float
        Number of quarter turns from the centre to the rim; 0 gives a line.
    seed : int, generator or None
        Seed of the random numbers.
    noise : float
        Standard deviation of the Gaussian noise on each coordinate.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of int64, shape (n,)
        0 where c = -1, 1 where c = +1.

    Examples
    --------
    >>> X, y = spiral(100, rotation=4.0, seed=0)
    >>> X.shape, sorted(set(y.tolist()))
    ((100, 2), [0, 1])
    """
    rng = _rng(n, seed, noise)
    u = np.sqrt(rng.uniform(size=n))
    y = rng.integers(2, size=n)
    angle = rotation * u * np.pi / 2
    radius = (2 * y - 1) * u
    X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])  # (n, 2)
    return X + noise * rng.standard_normal((n, 2)), y


def moons(n: int, seed: Seed, noise: float = 0.1) -> tuple[Floats, Ints]:
    """Sample two half circles (cos t, sin t) and (1 - cos t, 1/2 - sin t), t ~ U(0, pi), plus noise.

    Parameters and returns are those of :func:`spiral`.
    """
    rng = _rng(n, seed, noise)
    t = rng.uniform(0.0, np.pi, size=n)
    y = rng.integers(2, size=n)
    X = np.column_stack([np.where(y, 1 - np.cos(t), np.cos(t)), np.where(y, 0.5 - np.sin(t), np.sin(t))])
    return X + noise * rng.standard_normal((n, 2)), y


def rings(n: int, seed: Seed, classes: int = 2, noise: float = 0.1) -> tuple[Floats, Ints]:
    """Sample concentric circles: class k, uniform on 0, ..., classes - 1, has the radius k + 1, plus noise.

    Parameters and returns are those of :func:`spiral`.
    """
    rng = _rng(n, seed, noise)
    y = rng.integers(_check_at_least(1, "classes", classes), size=n)
    angle = rng.uniform(0.0, 2 * np.pi, size=n)
    X = (y + 1)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])  # (n, 2)
    return X + noise * rng.standard_normal((n, 2)), y


def pinwheel(
    n: int, seed: Seed, arms: int = 5, radial: float = 0.3, tangential: float = 0.05, rate: float = 0.25
) -> tuple[Floats, Ints]:
    """Sample the bent arms of a pinwheel.

    On arm k, uniform on 0, ..., arms - 1, with r ~ N(1, radial^2) and s ~ N(0, tangential^2), the point
    (r, s) is rotated about the origin by the angle 2 pi k / arms + rate exp(r).

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of int64, shape (n,)
        Number of the arm.
    """
    rng = _rng(n, seed, min(radial, tangential))
    y = rng.integers(_check_at_least(1, "arms", arms), size=n)
    r = 1 + radial * rng.standard_normal(n)
    s = tangential * rng.standard_normal(n)
    angle = 2 * np.pi * y / arms + rate * np.exp(r)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.column_stack([r * cos - s * sin, r * sin + s * cos]), y


def gap_sine(n: int, seed: Seed, noise: float = 0.1) -> tuple[Floats, Floats]:
    """Sample y = sin(2 x) + N(0, noise^2) with x uniform on [-3, -1] and [1, 3], a gap between them.

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng = _rng(n, seed, noise)
    x = _sample_two_sided(rng, n, 1.0, 3.0)
    return x[:, None], np.sin(2 * x) + noise * rng.standard_normal(n)


def gap_cubic(n: int, seed: Seed, noise: float = 3.0) -> tuple[Floats, Floats]:
    """Sample y = x^3 + N(0, noise^2) with x uniform on [-4, -2] and [2, 4], a gap between them.

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng = _rng(n, seed, noise)
    x = _sample_two_sided(rng, n, 2.0, 4.0)
    return x[:, None], x**3 + noise * rng.standard_normal(n)


def cosine_gap(n: int, seed: Seed, noise: float = 0.1) -> tuple[Floats, Floats]:
    """Sample y = cos(t) + N(0, noise^2), half of the rows with t uniform on [0, 2], the others on [6, 8].

    The input is (t - 4) / 4, so that the rows lie on [-1, -1/2] and [1/2, 1].

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng = _rng(n, seed, noise)
    t = rng.uniform(0.0, 2.0, size=n) + 6.0 * (np.arange(n) >= (n + 1) // 2)
    return (t[:, None] - 4.0) / 4.0, np.cos(t) + noise * rng.standard_normal(n)


def cubic(n: int, seed: Seed, noise: float = 3.0) -> tuple[Floats, Floats]:
    """Sample y = x^3 + N(0, noise^2) with x on four intervals, [-4, -3], [-2, -1], [1, 2] and [3, 4], in turn.

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng = _rng(n, seed, noise)
    x = rng.uniform(size=n) + np.array([-4.0, -2.0, 1.0, 3.0])[np.arange(n) % 4]
    return x[:, None], x**3 + noise * rng.standard_normal(n)


def heteroscedastic(n: int, seed: Seed) -> tuple[Floats, Floats]:
    """Sample y ~ N(sin(2 pi x), (0.05 + 0.4 x)^2) with x ~ U(0, 1): noise that grows with the input.

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng = _rng(n, seed, 0.0)
    x = rng.uniform(size=n)
    return x[:, None], np.sin(2 * np.pi * x) + (0.05 + 0.4 * x) * rng.standard_normal(n)


def _sample_two_sided(rng: np.random.Generator, n: int, low: float, high: float) -> Floats:
    return rng.uniform(low, high, size=n) * (2 * rng.integers(2, size=n) - 1)


def _rng(n: int, seed: Seed, noise: float) -> np.random.Generator:
    _check_at_least(1, "n", n)
    _check_at_least(0, "noise", noise)
    return np.random.default_rng(as_seed(seed))


def _check_at_least(low: int, name: str, value: float) -> int:
    if not value >= low:
        raise DataError(f"{name} is {value}; it must be at least {low}")
    return int(value)
