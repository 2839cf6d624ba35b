"""Class labels and numeric targets: what training learned about them, and the way there and back.

Both are plain frozen values that go to JSON and back without loss.
"""

import math
import re
import warnings
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.cells import column_names
from fathomless.data.frames import check_weight, read_labels, read_target, read_vector
from fathomless.data.outliers import Outlying, Thinned, outlying
from fathomless.data.schema import Floats, Level, Moments, check_encoded, check_fields, family, moments, rows_of, some
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "ClassLabels",
    "Indicators",
    "LabelTally",
    "Target",
    "TargetScale",
    "TargetTally",
    "fit_indicators",
    "fit_labels",
    "fit_target",
]

_LARGEST = 1e150  # its square is still far from the end of double precision
_MANY = 20  # classes, above which two rows of each are needed on average
_WITH_COMMA = re.compile(r"[-+]?\d*,\d+")
_WITH_UNIT = re.compile(r"\D{0,4}[-+]?\d[\d.,' ]*\D{0,4}")


@dataclass(frozen=True)
class ClassLabels:
    """Class labels and their numbers 0, ..., K - 1.

    Attributes
    ----------
    labels : tuple of str, bool, int or float
        Sorted.
    dtype : str
        NumPy data type of the labels that were given ("object" for text in data frames).
    counts : tuple of float
        How often each was seen, if that is known.
    """

    labels: tuple[Level, ...]
    dtype: str
    counts: tuple[float, ...] = field(default=(), compare=False)

    @property
    def log_unit(self) -> float:
        """Log of the size of a unit: 0, since probabilities have none."""
        return 0.0

    def encode(self, y: Any) -> npt.NDArray[np.int64]:
        """Turn labels into numbers, shape (N,); a label that was not seen raises :class:`DataError`."""
        values = read_vector(y).tolist()
        index: dict[Any, int] = {label: i for i, label in enumerate(self.labels)}
        codes = np.fromiter((index.get(value, -1) for value in values), np.int64, len(values))
        new = codes < 0
        if new.any():
            raise DataError(
                f"y has the class {values[int(np.argmax(new))]!r} in {rows_of(new)}, which training did not "
                f"see; known classes are {some(self.labels)}"
            )
        return codes

    def decode(self, indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn numbers into labels of the original data type; the shape is kept."""
        return cast(npt.NDArray[Any], np.array(self.labels, dtype=self.dtype)[np.asarray(indices)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives equal labels."""
        counts = {"counts": list(self.counts)} if self.counts else {}
        return {"labels": list(self.labels), "dtype": self.dtype, **counts}

    @staticmethod
    def from_json(obj: Any) -> "ClassLabels":
        """Rebuild labels; anything that :meth:`to_json` would not write raises :class:`DataError`."""
        counted = {"counts": list} if isinstance(obj, dict) and "counts" in obj else {}
        check_fields(obj, {"labels": list, "dtype": str, **counted}, "class labels")
        labels, families = obj["labels"], {family(label) for label in obj["labels"]}
        if len(families) != 1 or "unknown" in families or not 2 <= len(set(labels)) == len(labels):
            raise DataError(f"class labels were altered: {some(labels)} are not two or more distinct labels")
        try:
            same = np.array(labels, dtype=obj["dtype"]).tolist() == labels
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"class labels were altered: {obj['dtype']!r} cannot hold them ({error})") from error
        if not same:
            raise DataError(f"class labels were altered: {obj['dtype']!r} does not keep {some(labels)}")
        counts = tuple(map(float, obj.get("counts", ())))
        if len(counts) not in (0, len(labels)):
            raise DataError(f"class labels were altered: {len(labels)} labels and {len(counts)} counts")
        return ClassLabels(tuple(labels), obj["dtype"], counts)


def fit_labels(y: Any, weight: npt.NDArray[Any] | None = None) -> ClassLabels:
    """Learn the classes of a target.

    Parameters
    ----------
    y : ndarray, list or series, shape (N,)
        Text, booleans, integers, or floats that are whole numbers; categoricals of these.
    weight : ndarray, shape (N,), optional
        How often each row counts.

    Raises
    ------
    DataError
        For missing labels, continuous or mixed ones, fewer than two classes, and more than 20 that have fewer than two
        rows on average.

    Examples
    --------
    >>> labels = fit_labels(["no", "yes", "no"])
    >>> labels.encode(["yes", "no"])
    array([1, 0])
    >>> labels.decode([1, 1]).tolist()
    ['yes', 'yes']
    """
    tally = LabelTally()
    tally.add(y, weight)
    return tally.learned()


def _reason(values: list[Any]) -> str:
    """Say why nearly every row might have a label of its own, and what to do."""
    if not isinstance(values[0], str):
        return "numbers are predicted by a regressor (--task regression)"
    if all(map(_WITH_COMMA.fullmatch, values)):
        return "they look like numbers with a decimal comma: read the file with --decimal , (decimal=',')"
    if all(map(_WITH_UNIT.fullmatch, values)):
        return "they look like numbers with a unit or separators of thousands: remove these from the column"
    return "is the column an identifier, a name or a date? Choose another target"


@dataclass
class LabelTally:
    """The classes seen so far in a target that comes part by part."""

    rows: int = 0
    seen: dict[Any, float] = field(default_factory=dict)
    dtypes: set[np.dtype[Any]] = field(default_factory=set)

    def add(self, y: Any, weight: npt.NDArray[Any] | None = None) -> None:
        """Take in the labels of more rows; raises as :func:`fit_labels` does."""
        values = read_labels(y)
        names, place = np.unique(values, return_inverse=True)
        counts = np.bincount(place.ravel(), weights=weight, minlength=len(names))
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            self.seen[name] = self.seen.get(name, 0.0) + float(count)
        self.dtypes.add(values.dtype)
        self.rows += len(values)

    def learned(self) -> ClassLabels:
        """Return the classes: two at least, and for many of them two rows each."""
        found = sorted(self.seen)
        if len(found) > max(_MANY, self.rows / 2):
            shown = f"{found[0]!r}, {found[1]!r}, ..."
            raise DataError(
                f"y has {len(found):,} different values in {self.rows:,} rows ({shown}), too many to be classes: "
                f"{_reason(found)}"
            )
        if len(found) < 2:
            raise DataError(f"y holds one class only ({some(found)}); a classifier needs at least two classes")
        dtype = np.result_type(*self.dtypes)
        counts = tuple(self.seen[label] for label in found)
        return ClassLabels(tuple(found), dtype.str if dtype.kind == "U" else dtype.name, counts)


@dataclass(frozen=True)
class TargetScale:
    """Mean and scale of a numeric target: z = (y - mean) / scale.

    Attributes
    ----------
    mean, scale : tuple of float, length K
        Weighted mean and population standard deviation of each output; the scale of a constant is 1.
    ndim : int
        1 if the target was a vector (then K = 1), 2 if it was a matrix.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    ndim: int

    @property
    def log_unit(self) -> float:
        """Log of the size of a unit of z: the log density of y is that of z less this."""
        return float(np.log(self.scale).sum())

    def encode(self, y: Any) -> Floats:
        """Center and scale a target; (N,) or (N, K) becomes (N, K)."""
        values = read_target(y)
        matrix = values.reshape(len(values), -1)  # (N, K)
        if matrix.shape[1] != len(self.mean):
            raise DataError(f"y has {matrix.shape[1]} outputs; training had {len(self.mean)}")
        with np.errstate(over="ignore"):
            z = (matrix - np.array(self.mean)) / np.array(self.scale)
        for k in range(z.shape[1]):
            check_encoded(f"y, output {k}", z[:, k])
        return cast(Floats, z)

    def decode(self, z: npt.NDArray[Any]) -> Floats:
        """Undo :meth:`encode`; (..., K) becomes (..., K), or (...) if the target was a vector."""
        z = np.asarray(z, dtype=np.float64)
        if z.ndim == 0 or z.shape[-1] != len(self.mean):
            raise DataError(f"z has shape {z.shape}; its last axis must have length {len(self.mean)}")
        y = z * np.array(self.scale) + np.array(self.mean)
        return cast(Floats, y[..., 0] if self.ndim == 1 else y)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives an equal scale."""
        return {"mean": list(self.mean), "scale": list(self.scale), "ndim": self.ndim}

    @staticmethod
    def from_json(obj: Any) -> "TargetScale":
        """Rebuild a scale; anything that :meth:`to_json` would not write raises :class:`DataError`."""
        check_fields(obj, {"mean": list, "scale": list, "ndim": int}, "a target scale")
        mean, scale, ndim = obj["mean"], obj["scale"], obj["ndim"]
        numbers = all(type(v) is float and math.isfinite(v) for v in mean + scale)
        if not numbers or not mean or len(mean) != len(scale) or min(scale) <= 0 or ndim not in (1, 2):
            raise DataError(f"a target scale was altered: no training gives {obj}")
        if ndim == 1 and len(mean) != 1:
            raise DataError(f"a target scale was altered: a vector has one output, not {len(mean)}")
        return TargetScale(tuple(mean), tuple(scale), ndim)


def fit_target(y: Any, weight: npt.NDArray[Any] | None = None) -> TargetScale:
    """Learn mean and scale of a numeric target.

    Parameters
    ----------
    y : array, list, series or data frame of numbers, shape (N,) or (N, K)
        The target.
    weight : ndarray, shape (N,), optional
        How often each row counts.

    Warns
    -----
    DataWarning
        If a few values lie far from all others; see :func:`~fathomless.data.outliers.outlying`.

    Raises
    ------
    DataError
        For text, missing and infinite values, and a target without rows.

    Examples
    --------
    >>> scale = fit_target([1.0, 3.0])
    >>> scale.encode([5.0])
    array([[3.]])
    >>> scale.decode(np.array([[3.0]]))
    array([5.])
    """
    values = _read_moderate(y)
    weight, keep = check_weight(weight, len(values))
    matrix = values.reshape(len(values), -1) if keep is None else values[keep].reshape(int(keep.sum()), -1)
    columns = [np.ascontiguousarray(column) for column in matrix.T]
    for name, column in zip(_names(y, len(columns)), columns, strict=True):
        if (far := outlying(column, weight)) is not None:
            _tell_outlying(name, far, len(column))
    learned = [moments(column, weight) for column in columns]
    return TargetScale(tuple(m for m, _ in learned), tuple(s for _, s in learned), values.ndim)


def _tell_outlying(name: str, far: Outlying, rows: int) -> None:
    """Warn of values of a target that lie far from all others."""
    warnings.warn(
        f"{name} is {far.told(rows)}: these rows alone give the target its scale, beside which all others look equal. "
        "If such a value means missing, drop these rows; if it is a mistake, correct it; if it is right, transform the "
        "target",
        DataWarning,
        stacklevel=2,
    )


def _names(y: Any, outputs: int) -> list[str]:
    """Return what the outputs of a target are called in messages."""
    if (found := column_names(y, "y")) is not None:
        return [f"column {name!r}" for name in found]
    return ["y"] if outputs == 1 else [f"y, output {k}," for k in range(outputs)]


@dataclass
class TargetTally:
    """Mean and scale so far of a numeric target that comes part by part."""

    outputs: tuple[Moments, ...] = ()
    samples: tuple[Thinned, ...] = ()
    ndim: int = 0

    def add(self, y: Any) -> None:
        """Take in the targets of more rows; raises as :func:`fit_target` does."""
        values = _read_moderate(y)
        columns = np.ascontiguousarray(values.reshape(len(values), -1).T)
        if self.outputs and len(columns) != len(self.outputs):
            raise DataError(f"y had {len(self.outputs)} outputs and has {len(columns)} now; give it one shape")
        before = self.outputs or (Moments(),) * len(columns)
        self.samples = self.samples or tuple(Thinned() for _ in columns)
        for sample, column in zip(self.samples, columns, strict=True):
            sample.add(column)
        self.outputs = tuple(known.plus(column) for known, column in zip(before, columns, strict=True))
        self.ndim = values.ndim

    def learned(self) -> TargetScale:
        """Return what :func:`fit_target` would have learned from all rows at once, up to rounding; warn as it does."""
        for k, (output, sample) in enumerate(zip(self.outputs, self.samples, strict=True)):
            if (far := sample.outlying(output.low, output.high)) is not None:
                _tell_outlying("y" if len(self.outputs) == 1 else f"y, output {k},", far, len(sample.values))
        learned = [output.standard for output in self.outputs]
        return TargetScale(tuple(m for m, _ in learned), tuple(s for _, s in learned), self.ndim)


def _read_moderate(y: Any) -> Floats:
    """Read a numeric target whose variance does not overflow."""
    values = read_target(y)
    largest = float(np.abs(values).max())
    if largest > _LARGEST:
        raise DataError(
            f"y holds values up to {largest:.3g}, too large: variances in its units would overflow; at most "
            f"{_LARGEST:g} is allowed, so divide y by a power of ten"
        )
    return values


@dataclass(frozen=True)
class Indicators:
    """Labels that a row may have or not, any number of them: columns of 0 and 1.

    Attributes
    ----------
    dtype : str
        NumPy data type of the columns that were given.
    counts : tuple of float, length T
        How often each label was seen.
    """

    dtype: str
    counts: tuple[float, ...]

    @property
    def log_unit(self) -> float:
        """Log of the size of a unit: 0, since probabilities have none."""
        return 0.0

    def encode(self, y: Any) -> Floats:
        """Turn columns into numbers, shape (N, T); other numbers than 0 and 1 raise :class:`DataError`."""
        values = _read_indicators(y)
        if values.shape[1:] != (len(self.counts),):
            raise DataError(f"y has shape {values.shape}; training had {len(self.counts)} columns")
        return values

    def decode(self, z: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn numbers into columns of the original data type."""
        return np.asarray(z).astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives equal columns."""
        return {"indicators": list(self.counts), "dtype": self.dtype}

    @staticmethod
    def from_json(obj: Any) -> "Indicators":
        """Rebuild columns; anything that :meth:`to_json` would not write raises :class:`DataError`."""
        check_fields(obj, {"indicators": list, "dtype": str}, "columns of labels")
        counts = obj["indicators"]
        numbers = all(type(v) is float and 0.0 <= v < math.inf for v in counts)
        if len(counts) < 2 or not numbers or np.dtype(obj["dtype"]).kind not in "biuf":
            raise DataError(f"columns of labels were altered: no training gives {obj}")
        return Indicators(obj["dtype"], tuple(counts))


#: What was learned about a target.
Target: TypeAlias = ClassLabels | TargetScale | Indicators


def fit_indicators(y: Any, weight: npt.NDArray[Any] | None = None) -> Indicators:
    """Learn the columns of several labels.

    Parameters
    ----------
    y : array, list or data frame of 0 and 1, shape (N, T), T above 1
        The labels of each row.
    weight : ndarray, shape (N,), optional
        How often rows count; once by default.

    Raises
    ------
    DataError
        For other values.

    Examples
    --------
    >>> fit_indicators(np.array([[0, 1], [1, 1]])).counts
    (1.0, 2.0)
    """
    values = _read_indicators(y)
    counts = values.sum(0) if weight is None else weight @ values
    dtype = y.dtype.name if isinstance(y, np.ndarray) and y.dtype.kind in "biuf" else "int64"
    return Indicators(dtype, tuple(map(float, counts)))


def _read_indicators(y: Any) -> Floats:
    values = read_target(y)
    wrong = (values != 0.0) & (values != 1.0)
    if values.ndim != 2 or wrong.any():
        what = f"y has {values[wrong][0]:g}" if wrong.any() else "y has one column"
        raise DataError(
            f"{what}; several columns of classes hold 0 and 1, for labels that a row may have or not: encode them, or "
            "fit an estimator for each column"
        )
    return values
