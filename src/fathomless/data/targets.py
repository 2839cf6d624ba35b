"""Encoding and decoding of class labels and numeric targets.

Fitted encodings are frozen values with lossless conversion to and from JSON.
"""

import math
import re
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless.data.cells import get_column_names
from fathomless.data.frames import check_weight, ordered_categories, read_labels, read_target, read_vector
from fathomless.data.lattices import NO_LATTICE, AtomTally, Lattice, LatticeTally, find_atoms, find_hurdle, find_lattice
from fathomless.data.outliers import Outliers, Subsample, find_outliers
from fathomless.data.schema import (
    Floats,
    Level,
    check_encoded,
    check_fields,
    compute_moments,
    family,
    rows_of,
    some,
)
from fathomless.data.tallies import Moments
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.transforms import LogTransform

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
    "rank_labels",
]

_ROUNDING = 1e-13  # relative rounding error of a transform
_LARGEST = 1e150  # its square is still far below the largest float64
_MANY = 20  # number of classes above which two rows per class are required on average
_WITH_COMMA = re.compile(r"[-+]?\d*,\d+")
_WITH_UNIT = re.compile(r"\D{0,4}[-+]?\d[\d.,' ]*\D{0,4}")


@dataclass(frozen=True)
class ClassLabels:
    """Class labels and their numbers 0, ..., K - 1.

    Attributes
    ----------
    labels : tuple of str, bool, int or float
        Labels, sorted.
    dtype : str
        NumPy data type of the original labels ("object" for text in data frames).
    counts : tuple of float
        Weighted number of training rows of each label, if known.
    ranks : tuple of int
        Rank of each label among ordered labels, from 0; empty if the labels have no order.
    """

    labels: tuple[Level, ...]
    dtype: str
    counts: tuple[float, ...] = field(default=(), compare=False)
    ranks: tuple[int, ...] = ()

    @property
    def log_unit(self) -> float:
        """Log of the unit of the target: 0, since probabilities have no unit."""
        return 0.0

    def encode(self, y: Any) -> npt.NDArray[np.int64]:
        """Convert labels to numbers, shape (N,); an unseen label raises :class:`DataError`."""
        values = read_vector(y).tolist()
        index: dict[Any, int] = {label: i for i, label in enumerate(self.labels)}
        codes = np.fromiter((index.get(value, -1) for value in values), np.int64, len(values))
        new = codes < 0
        if new.any():
            raise DataError(
                f"y has the class {values[int(np.argmax(new))]!r} in {rows_of(new)}, which is not in the training "
                f"data; known classes are {some(self.labels)}"
            )
        return codes

    def decode(self, indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert numbers to labels of the original data type; the shape is kept."""
        return cast(npt.NDArray[Any], np.array(self.labels, dtype=self.dtype)[np.asarray(indices)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives equal labels."""
        counts = {"counts": list(self.counts)} if self.counts else {}
        ranks = {"ranks": list(self.ranks)} if self.ranks else {}
        return {"labels": list(self.labels), "dtype": self.dtype, **counts, **ranks}

    @staticmethod
    def from_json(obj: Any) -> "ClassLabels":
        """Rebuild labels; raise :class:`DataError` for anything that :meth:`to_json` does not write."""
        counted = {"counts": list} if isinstance(obj, dict) and "counts" in obj else {}
        ranked = {"ranks": list} if isinstance(obj, dict) and "ranks" in obj else {}
        check_fields(obj, {"labels": list, "dtype": str, **counted, **ranked}, "class labels")
        labels = obj["labels"]
        families = {family(label) for label in labels}
        if len(families) != 1 or "unknown" in families or not 2 <= len(set(labels)) == len(labels):
            raise DataError(f"the saved class labels were altered: {some(labels)} are not two or more distinct labels")
        try:
            same = np.array(labels, dtype=obj["dtype"]).tolist() == labels
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"the saved class labels were altered: {obj['dtype']!r} cannot hold them ({error})"
            ) from error
        if not same:
            raise DataError(f"the saved class labels were altered: {obj['dtype']!r} cannot represent {some(labels)}")
        counts = tuple(map(float, obj.get("counts", ())))
        if len(counts) not in (0, len(labels)):
            raise DataError(f"the saved class labels were altered: {len(labels)} labels and {len(counts)} counts")
        ranks = tuple(obj.get("ranks", ()))
        if ranked and (any(type(k) is not int for k in ranks) or sorted(ranks) != list(range(len(labels)))):
            raise DataError(f"the saved class labels were altered: {ranks} are not the ranks of {len(labels)} labels")
        return ClassLabels(tuple(labels), obj["dtype"], counts, ranks)


def fit_labels(y: Any, weight: npt.NDArray[Any] | None = None) -> ClassLabels:
    """Fit the encoding of class labels.

    Parameters
    ----------
    y : ndarray, list or series, shape (N,)
        Text, booleans, integers, or floats with integer values; categoricals of these.
    weight : ndarray, shape (N,), optional
        Sample weights.

    Raises
    ------
    DataError
        For missing, continuous or mixed labels, fewer than two classes, and more than 20 classes with fewer than two
        rows each on average.

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
    return tally.finish()


def rank_labels(labels: ClassLabels, ordinal: Any, y: Any = None) -> ClassLabels:
    """Return class labels with their ranks.

    Parameters
    ----------
    labels : ClassLabels
        Fitted labels.
    ordinal : bool or sequence of labels
        False for labels without order. True orders numbers and booleans by value, and an ordered categorical by its
        categories. A sequence has the labels in ascending order; it may contain labels without training rows.
    y : array or series, optional
        Target, for the order of its categories.

    Raises
    ------
    DataError
        If the order of text is unknown, or a given order is not one of the labels.

    Examples
    --------
    >>> rank_labels(fit_labels(["low", "high", "mid"] * 2), ["low", "mid", "high"]).ranks
    (2, 0, 1)
    """
    if ordinal is False:
        return labels
    if ordinal is True:
        given = ordered_categories(y)
        if given is None and isinstance(labels.labels[0], str):
            shown = ", ".join(map(repr, labels.labels[:3]))
            raise DataError(
                f"ordinal=True was given, but the order of text labels is unknown ({shown}): give the labels in "
                f"ascending order, as ordinal=[{shown}] (or, in Python, an ordered categorical as y)"
            )
        order = list(labels.labels) if given is None else given
    else:
        order = [label.item() if isinstance(label, np.generic) else label for label in ordinal]
    lacking = [label for label in labels.labels if label not in order]
    if lacking or len(set(order)) < len(order):
        fault = f"{lacking[0]!r} is not" if lacking else "a label is repeated"
        raise DataError(
            f"ordinal=[{some(order)}] was given; each class of y must be in it once, and {fault}: give all classes in "
            f"ascending order, as ordinal=[{some(labels.labels)}]"
        )
    present = [label for label in order if label in labels.labels]
    return replace(labels, ranks=tuple(present.index(label) for label in labels.labels))


def _explain_labels(values: list[Any]) -> str:
    """Return a possible reason for having almost as many labels as rows, with advice."""
    if not isinstance(values[0], str):
        return "use a regressor for numbers (--task regression)"
    if all(map(_WITH_COMMA.fullmatch, values)):
        return "they look like numbers with a decimal comma; read the file with --decimal , (decimal=',')"
    if all(map(_WITH_UNIT.fullmatch, values)):
        return "they look like numbers with a unit or thousands separators; remove these from the column"
    return "if the column is an identifier, a name or a date, choose another target"


@dataclass
class LabelTally:
    """Running counts of the classes of a target that is read part by part."""

    rows: int = 0
    seen: dict[Any, float] = field(default_factory=dict)
    dtypes: set[np.dtype[Any]] = field(default_factory=set)

    def add(self, y: Any, weight: npt.NDArray[Any] | None = None) -> None:
        """Add the labels of more rows. Raise errors as :func:`fit_labels` does."""
        values = read_labels(y)
        names, place = np.unique(values, return_inverse=True)
        counts = np.bincount(place.ravel(), weights=weight, minlength=len(names))
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            self.seen[name] = self.seen.get(name, 0.0) + float(count)
        self.dtypes.add(values.dtype)
        self.rows += len(values)

    def finish(self) -> ClassLabels:
        """Return the fitted encoding; raise errors as :func:`fit_labels` does."""
        labels = sorted(self.seen)
        if len(labels) > max(_MANY, self.rows / 2):
            shown = f"{labels[0]!r}, {labels[1]!r}, ..."
            raise DataError(
                f"y has {len(labels):,} distinct values in {self.rows:,} rows ({shown}), too many for classes: "
                f"{_explain_labels(labels)}"
            )
        if len(labels) < 2:
            raise DataError(f"y has only one class ({some(labels)}); a classifier needs at least two classes")
        dtype = np.result_type(*self.dtypes)
        counts = tuple(self.seen[label] for label in labels)
        return ClassLabels(tuple(labels), dtype.str if dtype.kind == "U" else dtype.name, counts)


@dataclass(frozen=True)
class TargetScale:
    """Mean and scale of a numeric target: z = (y - mean) / scale, or (T(y) - mean) / scale with a transform T.

    Attributes
    ----------
    mean, scale : tuple of float, length K
        Weighted mean and population standard deviation of each output, or of its transform; the scale of a constant
        is 1.
    ndim : int
        1 if the target was a vector (then K = 1), 2 if it was a matrix.
    lattice : tuple of Lattice, length K
        Lattice on which all values of each output lie, in units of y; sample weights are ignored. Empty if it is
        unknown, as in encodings of earlier versions.
    atoms : tuple of tuple of float, length K
        Values of each output that at least 5 % and at least 10 of the rows share; sample weights are ignored. Empty
        if they are unknown.
    hurdle : tuple of float
        Atoms of a single output that are predicted apart from its other values. Mean and scale are then those of the
        other values.
    transform : LogTransform, optional
        Transform T of a single output.
    log_slope : float
        Weighted mean of log T'(y) over the rows of the validation score; 0 without a transform.
    cells : bool
        True if z is a cell of the lattice, given by its two bounds; only with a transform.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    ndim: int
    lattice: tuple[Lattice, ...] = field(default=(), compare=False)
    atoms: tuple[tuple[float, ...], ...] = field(default=(), compare=False)
    hurdle: tuple[float, ...] = ()
    transform: LogTransform | None = None
    log_slope: float = 0.0
    cells: bool = False

    @property
    def steps(self) -> tuple[float, ...]:
        """Step of the lattice of each output in units of z, length K; 0 without a lattice.

        With a transform, it is the step times the geometric mean of the slope of z; and 0 if z is a cell.
        """
        if self.cells:
            return (0.0,) * len(self.scale)
        lattices = self.lattice or (NO_LATTICE,) * len(self.scale)
        return tuple(lattice.step / spread for lattice, spread in zip(lattices, self.spread, strict=True))

    @property
    def spread(self) -> tuple[float, ...]:
        """Unit of z in units of each output, length K: the scale, divided by the geometric mean of the slope of T."""
        return tuple(scale * math.exp(-self.log_slope) for scale in self.scale)

    @property
    def log_unit(self) -> float:
        """Log of the unit of z: the log density of y is that of z minus this, on average over the scored rows.

        It is 0 for cells, which have probabilities.
        """
        if self.cells:
            return 0.0
        return float(np.log(self.scale).sum()) - self.log_slope

    def log_jacobian(self, y: Any) -> Floats:
        """Return the log density of targets less that of encoded ones, (N,); 0 for cells, which have probabilities."""
        matrix = read_target(y).reshape(-1, len(self.mean))
        if self.cells:
            return np.zeros(len(matrix))
        slope = np.full(len(matrix), -float(np.log(self.scale).sum()))
        if self.transform is not None:
            slope += self.transform.log_slope(torch.tensor(matrix[:, 0], dtype=torch.float64, device="cpu")).numpy()
        return slope

    def encode(self, y: Any) -> Floats:
        """Center and scale a target; (N,) or (N, K) becomes (N, K), or (N, 2) with cells."""
        values = read_target(y)
        matrix = values.reshape(len(values), -1)  # (N, K)
        if matrix.shape[1] != len(self.mean):
            raise DataError(f"y has {matrix.shape[1]} outputs; the training data had {len(self.mean)}")
        z = self._bound_cells(matrix) if self.cells else self.standardise(matrix)
        for k in range(z.shape[1]):
            check_encoded(f"y, output {k}", z[:, k])
        return z

    def _bound_cells(self, y: npt.NDArray[Any]) -> Floats:
        """Standardise the bounds of the cells around the values of a single output, (N, 2)."""
        half = 0.5 * self.lattice[0].step
        return np.column_stack([self.standardise(y - half), self.standardise(y + half)])

    def standardise(self, y: npt.NDArray[Any]) -> Floats:
        """Transform, center and scale values, (..., K), without checks."""
        if self.transform is not None:
            y = self.transform.transform(torch.tensor(y, dtype=torch.float64, device="cpu")).numpy()
        with np.errstate(over="ignore"):
            return cast(Floats, (y - np.array(self.mean)) / np.array(self.scale))

    def with_transform(
        self, transform: LogTransform, y: Floats, weight: Floats | None = None, *, cells: bool = False
    ) -> "TargetScale":
        """Return the scale of the transform of a single output, given its values without atoms, (N,).

        With `cells`, encoded values are the bounds of their cells of the lattice.
        """
        values = torch.tensor(y, dtype=torch.float64, device="cpu")
        mean, scale = compute_moments(transform.transform(values).numpy(), weight)
        known = replace(self, mean=(mean,), scale=(scale,), transform=transform, cells=cells)
        return known.with_slope(y, weight)

    def without_transform(self, y: Any) -> "TargetScale":
        """Return the scale of a single output without its transform, given values of the output, (N,)."""
        if self.transform is None:
            return self
        values = read_target(y).reshape(-1)
        others = values[~np.isin(values, self.hurdle)]
        mean, scale = compute_moments(others if len(others) else values, None)
        return replace(self, mean=(mean,), scale=(scale,), transform=None, log_slope=0.0, cells=False)

    def with_slope(self, y: Floats, weight: Floats | None = None) -> "TargetScale":
        """Return the scale with the mean log slope of the transform at these values, (N,)."""
        assert self.transform is not None
        slopes = self.transform.log_slope(torch.tensor(y, dtype=torch.float64, device="cpu")).numpy()
        return replace(self, log_slope=float(np.average(slopes, weights=weight)))

    def number_atoms(self, z: Floats) -> npt.NDArray[np.int64]:
        """Return the number 1, 2, ... of the atom of each encoded target (N, K), and 0 for other values, (N,)."""
        number = np.zeros(len(z), dtype=np.int64)
        for j, atom in enumerate(self.hurdle, start=1):
            of_atom = (self._bound_cells if self.cells else self.standardise)(np.array([[atom]]))[0, 0]
            # the last bits of a transform may depend on the number of values
            rounding = 0.0 if self.transform is None else _ROUNDING * (1.0 + abs(of_atom))
            number[np.abs(z[:, 0] - of_atom) <= rounding] = j
        return number

    def decode(self, z: npt.NDArray[Any]) -> Floats:
        """Invert :meth:`encode`; (..., K) becomes (..., K), or (...) if the target was a vector."""
        z = np.asarray(z, dtype=np.float64)
        if z.ndim == 0 or z.shape[-1] != len(self.mean):
            raise DataError(f"z has shape {z.shape}; its last axis must have length {len(self.mean)}")
        y = self._restore(z)
        return y[..., 0] if self.ndim == 1 else y

    def _restore(self, z: npt.NDArray[Any]) -> Floats:
        """Invert :meth:`standardise`."""
        y = z * np.array(self.scale) + np.array(self.mean)
        return y if self.transform is None else self.transform.invert(torch.tensor(y, device="cpu")).numpy()

    def locate_points(self, z: Floats) -> Floats:
        """Return the standardised points of the lattice in the middle of cells, (N, 2) to (N, 1)."""
        return self.standardise(self._restore(z).mean(1, keepdims=True))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives an equal scale."""
        plain = {"mean": list(self.mean), "scale": list(self.scale), "ndim": self.ndim}
        if any(lattice.step for lattice in self.lattice):
            plain["lattice"] = [[lattice.step, lattice.offset] for lattice in self.lattice]
        if any(self.atoms):
            plain["atoms"] = [list(values) for values in self.atoms]
        if self.hurdle:
            plain["hurdle"] = list(self.hurdle)
        if self.transform is not None:
            plain["transform"] = [*vars(self.transform).values(), self.log_slope, float(self.cells)]
        return plain

    @staticmethod
    def from_json(obj: Any) -> "TargetScale":
        """Rebuild a scale; raise :class:`DataError` for anything that :meth:`to_json` does not write."""
        names = ("lattice", "atoms", "hurdle", "transform")
        optional = {key: list for key in names if isinstance(obj, dict) and key in obj}
        check_fields(obj, {"mean": list, "scale": list, "ndim": int, **optional}, "a target scale")
        mean, scale, ndim = obj["mean"], obj["scale"], obj["ndim"]
        numbers = all(type(v) is float and math.isfinite(v) for v in mean + scale)
        if not numbers or not mean or len(mean) != len(scale) or min(scale) <= 0 or ndim not in (1, 2):
            raise DataError(f"the saved target scale was altered: {obj} is not valid")
        if ndim == 1 and len(mean) != 1:
            raise DataError(f"the saved target scale was altered: a vector has one output, not {len(mean)}")
        lattice, atoms = (obj.get(key, [[]] * len(mean)) for key in ("lattice", "atoms"))
        if not (_are_lists(lattice, len(mean)) and _are_lists(atoms, len(mean))):
            raise DataError(f"the saved target scale was altered: its lattice is {lattice} and its atoms are {atoms}")
        lattice = [pair or [0.0, 0.0] for pair in lattice]
        if any(len(pair) != 2 or not (0.0 <= pair[1] <= pair[0]) for pair in lattice):
            raise DataError(f"the saved target scale was altered: {lattice} are not lattices")
        hurdle = obj.get("hurdle", [])
        if not _are_lists([hurdle], 1) or (hurdle and len(mean) != 1) or sorted(set(hurdle)) != hurdle:
            raise DataError(f"the saved target scale was altered: the atoms {hurdle} are not ascending numbers")
        lattices = tuple(Lattice(*pair) for pair in lattice)
        scale_of_y = TargetScale(tuple(mean), tuple(scale), ndim, lattices, tuple(map(tuple, atoms)), tuple(hurdle))
        return _read_transform(scale_of_y, obj["transform"]) if "transform" in obj else scale_of_y


def _read_transform(scale: TargetScale, values: list[Any]) -> TargetScale:
    """Return a scale with its transform from JSON: the parameters, the mean log slope, and 1 for cells."""
    valid = _are_lists([values], 1) and len(values) == 6 and len(scale.mean) == 1
    if valid:
        _, unit, sign, limit, _, cells = values
        on_lattice = bool(scale.lattice) and scale.lattice[0].step > 0.0
        valid = unit > 0.0 and limit > 0.0 and abs(sign) == 1.0 and (cells == 0.0 or (cells == 1.0 and on_lattice))
    if not valid:
        raise DataError(f"the saved target scale was altered: {values} is not a transform of its target")
    return replace(scale, transform=LogTransform(*values[:4]), log_slope=values[4], cells=bool(values[5]))


def _are_lists(values: list[Any], count: int) -> bool:
    """Return whether a value from JSON has one list of finite floats for each output."""
    lists = len(values) == count and all(type(part) is list for part in values)
    return lists and all(type(v) is float and math.isfinite(v) for part in values for v in part)


def fit_target(
    y: Any, weight: npt.NDArray[Any] | None = None, *, hurdle: bool = False, warn_of_constants: bool = False
) -> TargetScale:
    """Fit the mean and scale of a numeric target, and find its lattice and its atoms.

    Parameters
    ----------
    y : array, list, series or data frame of numbers, shape (N,) or (N, K)
        Target.
    weight : ndarray, shape (N,), optional
        Sample weights.
    hurdle : bool
        True to find the atoms of a single output that are predicted apart (:attr:`TargetScale.hurdle`).
    warn_of_constants : bool
        True to warn of outputs with a single value.

    Warns
    -----
    DataWarning
        If the target has outliers; see :func:`~fathomless.data.outliers.find_outliers`. On request, if it is constant.

    Raises
    ------
    DataError
        For text, missing or infinite values, and targets without rows.

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
    for name, column in zip(_name_outputs(y, len(columns)), columns, strict=True):
        if (far := find_outliers(column, weight)) is not None:
            _warn_of_outliers(name, far, len(column))
        if warn_of_constants and len(column) > 1 and (column == column[0]).all():
            warnings.warn(
                f"{name} has the value {column[0]:g} in all {len(column):,} rows, so that the columns have no "
                "information on it; check that it is the target",
                DataWarning,
                stacklevel=3,
            )
    lattices = tuple(map(find_lattice, columns))
    apart = find_hurdle(columns[0], lattices[0]) if hurdle and len(columns) == 1 else ()
    if apart:
        others = ~np.isin(columns[0], apart)
        scales = [compute_moments(columns[0][others], None if weight is None else weight[others])]
    else:
        scales = [compute_moments(column, weight) for column in columns]
    return TargetScale(
        tuple(mean for mean, _ in scales),
        tuple(scale for _, scale in scales),
        values.ndim,
        lattices,
        tuple(map(find_atoms, columns)),
        apart,
    )


def _warn_of_outliers(name: str, far: Outliers, rows: int) -> None:
    """Warn of outliers of a target."""
    warnings.warn(
        f"{name} is {far.describe(rows)}: these outliers dominate the scale of the target, so that all other values "
        "look equal. If they stand for missing values, drop these rows; if they are errors, correct them; if they are "
        "correct, transform the target",
        DataWarning,
        stacklevel=2,
    )


def _name_outputs(y: Any, outputs: int) -> list[str]:
    """Return the names of the outputs of a target for messages."""
    if (names := get_column_names(y, "y")) is not None:
        return [f"column {name!r}" for name in names]
    return ["y"] if outputs == 1 else [f"y, output {k}," for k in range(outputs)]


@dataclass
class TargetTally:
    """Running mean, scale, lattice and atoms of a numeric target that is read part by part."""

    outputs: tuple[Moments, ...] = ()
    samples: tuple[Subsample, ...] = ()
    lattices: tuple[LatticeTally, ...] = ()
    atoms: tuple[AtomTally, ...] = ()
    ndim: int = 0

    def add(self, y: Any) -> None:
        """Add the targets of more rows. Raise errors as :func:`fit_target` does."""
        values = _read_moderate(y)
        columns = np.ascontiguousarray(values.reshape(len(values), -1).T)
        if self.outputs and len(columns) != len(self.outputs):
            raise DataError(f"y changes from {len(self.outputs)} to {len(columns)} outputs; give it one shape")
        before = self.outputs or (Moments(),) * len(columns)
        self.samples = self.samples or tuple(Subsample() for _ in columns)
        self.lattices = self.lattices or tuple(LatticeTally() for _ in columns)
        self.atoms = self.atoms or tuple(AtomTally() for _ in columns)
        for sample, lattice, atoms, column in zip(self.samples, self.lattices, self.atoms, columns, strict=True):
            sample.add(column)
            lattice.add(column)
            atoms.add(column)
        self.outputs = tuple(known.plus(column) for known, column in zip(before, columns, strict=True))
        self.ndim = values.ndim

    def finish(self) -> TargetScale:
        """Return the scale that :func:`fit_target` fits to all rows at once, up to rounding; warn as it does."""
        for k, (output, sample) in enumerate(zip(self.outputs, self.samples, strict=True)):
            if (far := sample.find_outliers(output.low, output.high)) is not None:
                _warn_of_outliers("y" if len(self.outputs) == 1 else f"y, output {k},", far, len(sample.values))
        scales = [output.standard for output in self.outputs]
        return TargetScale(
            tuple(mean for mean, _ in scales),
            tuple(scale for _, scale in scales),
            self.ndim,
            tuple(
                tally.finish(output.low, output.std) for tally, output in zip(self.lattices, self.outputs, strict=True)
            ),
            tuple(tally.finish() for tally in self.atoms),
        )


def _read_moderate(y: Any) -> Floats:
    """Read a numeric target whose variance does not overflow."""
    values = read_target(y)
    largest = float(np.abs(values).max())
    if largest > _LARGEST:
        raise DataError(
            f"y has values up to {largest:.3g}, whose variance would overflow; at most {_LARGEST:g} is allowed: divide "
            "y by a power of ten"
        )
    return values


@dataclass(frozen=True)
class Indicators:
    """Multi-label targets: columns of 0 and 1.

    Attributes
    ----------
    dtype : str
        NumPy data type of the original columns.
    counts : tuple of float, length T
        Weighted number of training rows with each label.
    """

    dtype: str
    counts: tuple[float, ...]

    @property
    def log_unit(self) -> float:
        """Log of the unit of the target: 0, since probabilities have no unit."""
        return 0.0

    def encode(self, y: Any) -> Floats:
        """Convert columns to floats, shape (N, T); numbers other than 0 and 1 raise :class:`DataError`."""
        values = _read_indicators(y)
        if values.shape[1:] != (len(self.counts),):
            raise DataError(f"y has shape {values.shape}; the training data had {len(self.counts)} columns")
        return values

    def decode(self, z: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert numbers to columns of the original data type."""
        return np.asarray(z).astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives equal columns."""
        return {"indicators": list(self.counts), "dtype": self.dtype}

    @staticmethod
    def from_json(obj: Any) -> "Indicators":
        """Rebuild columns; raise :class:`DataError` for anything that :meth:`to_json` does not write."""
        check_fields(obj, {"indicators": list, "dtype": str}, "columns of labels")
        counts = obj["indicators"]
        numbers = all(type(v) is float and 0.0 <= v < math.inf for v in counts)
        if len(counts) < 2 or not numbers or np.dtype(obj["dtype"]).kind not in "biuf":
            raise DataError(f"the saved columns of labels were altered: {obj} is not valid")
        return Indicators(obj["dtype"], tuple(counts))


#: Fitted encoding of a target.
Target: TypeAlias = ClassLabels | TargetScale | Indicators


def fit_indicators(y: Any, weight: npt.NDArray[Any] | None = None) -> Indicators:
    """Fit the encoding of multi-label targets.

    Parameters
    ----------
    y : array, list or data frame of 0 and 1, shape (N, T), T above 1
        Labels of each row.
    weight : ndarray, shape (N,), optional
        Sample weights; 1 by default.

    Raises
    ------
    DataError
        For values other than 0 and 1.

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
        what = f"y has several columns and the value {values[wrong][0]:g}" if wrong.any() else "y has one column"
        raise DataError(
            f"{what}; multi-label targets are several columns of 0 and 1: encode the labels so, or fit one estimator "
            "per column"
        )
    return values
