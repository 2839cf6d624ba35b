"""Encoding of tables and targets: options of the table, and the tasks classification, regression and density.

These are plain values. An estimator builds them from its options and passes them to
:mod:`fathomless.estimators.preparation`.
"""

import functools
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch

from fathomless.data.censoring import encode_bounds, fit_bounds
from fathomless.data.frames import encode, fit_schema
from fathomless.data.schema import FEW_LEVELS, Schema, some
from fathomless.data.targets import (
    ClassLabels,
    Indicators,
    Target,
    TargetScale,
    fit_indicators,
    fit_labels,
    fit_target,
    rank_labels,
)
from fathomless.posterior.likelihoods import (
    Bernoulli,
    Categorical,
    CumulativeLogit,
    Gaussian,
    Laplace,
    Likelihood,
    LocationScale,
    StudentT,
)
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["BinsDefault", "ClassTask", "ColumnOptions", "NumberTask", "Task", "by_class", "labels_of"]

Array = npt.NDArray[Any]
_COARSE = 0.1  # step of a lattice in standard deviations above which it bounds a predicted scale
_ROWS_PER_COLUMN = 5  # below which columns of numbers have no bins by default
_COMPARED_ROWS = 50  # for each column, below which unseen rows choose between both in large tables, too
_FEWEST_ROWS = 100  # from which unseen rows choose between the encodings of numbers
_HIGHEST_FLOOR = 0.4  # largest such bound, below the initial scale


@dataclass(frozen=True)
class BinsDefault:
    """Rule by which ``numbers="auto"`` is "binned" for a family.

    Attributes
    ----------
    classes, numbers : int
        Numbers of rows from which columns of numbers have bins by default, for a target of classes and of numbers.
        Out-of-fold rows choose between "plain" and "binned" for smaller tables, of 100 rows or more, and for wide ones.
    options : mapping of str to tuple
        Values of options for which this was measured; with other values, columns have no bins.
    """

    classes: int
    numbers: int
    options: Mapping[str, tuple[Any, ...]]

    def suits(self, options: Mapping[str, Any]) -> bool:
        """Return True if the options of an estimator, and its candidates for them, are among these values."""
        candidates = options.get("candidates") or {}
        return all(options[name] in values and name not in candidates for name, values in self.options.items())


@dataclass(frozen=True)
class ColumnOptions:
    """Options of the columns of a table.

    Attributes
    ----------
    missing, unseen
        As in :func:`~fathomless.data.frames.fit_schema`.
    max_levels : int or "auto"
        The same. "auto" is 100 if there is no rule `bins`: more levels were not measured then.
    numbers : {"auto", "plain", "binned"}
        Encoding of columns of numbers.
    bins : BinsDefault, optional
        Rule by which "auto" is "binned"; None for "plain".
    candidates : bool
        True if both encodings are candidates, which out-of-fold rows weight. This overrides `numbers`.
    """

    missing: str = "auto"
    unseen: str = "warn"
    max_levels: int | str = "auto"
    numbers: str = "auto"
    bins: BinsDefault | None = None
    candidates: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], bins: BinsDefault | None) -> "ColumnOptions":
        """Return the column options of an estimator, given all its options and the rule of its family."""
        candidates = options.get("candidates")
        return cls(
            **{name: options[name] for name in ("missing", "unseen", "max_levels", "numbers")},
            bins=bins if bins is not None and bins.suits(options) else None,
            candidates=isinstance(candidates, Mapping) and "numbers" in candidates,
        )

    @property
    def fixed_levels(self) -> int:
        """Largest number of levels of a column if "auto" is 100."""
        return FEW_LEVELS if isinstance(self.max_levels, str) else self.max_levels

    def choose_numbers(self, rows: int, columns: int, *, classes: bool) -> str:
        """Return the encoding of columns of numbers for a table of N rows and C columns, "plain" or "binned".

        "auto" is "plain" for wide tables, with fewer than five rows for each column.
        """
        if self.candidates:
            return "binned"
        if self.numbers != "auto":
            return self.numbers
        if self.bins is None or rows < _ROWS_PER_COLUMN * columns:
            return "plain"
        return "binned" if rows >= (self.bins.classes if classes else self.bins.numbers) else "plain"

    def compares_numbers(self, rows: int, columns: int, *, classes: bool) -> bool:
        """Return True if unseen rows choose or weight the encodings of columns of numbers.

        These are tables of at least 100 rows, and five for each column, for which "auto" may be "binned". Larger tables
        are not compared if the rule is "binned" and there are 50 rows or more for each column.
        """
        if self.candidates:
            return True
        if self.numbers != "auto" or self.bins is None or rows < max(_FEWEST_ROWS, _ROWS_PER_COLUMN * columns):
            return False
        return rows < _COMPARED_ROWS * columns or self.choose_numbers(rows, columns, classes=classes) == "plain"


@dataclass(frozen=True)
class _Rows:
    """Encoding of the columns of a table.

    Attributes
    ----------
    density : bool
        True if the columns of the table are the target. The inputs of the networks then have no columns, (N, 0).
    """

    density: bool = False
    of_classes: ClassVar[bool] = False  # True if the target is a class

    def fit_schema(
        self, X: Any, weight: Array | None, options: ColumnOptions, sample_weight: Array | None = None
    ) -> Schema:
        """Fit the encoding of the columns to a table of N rows with weights (N,), which may include class weights.

        Categories are counted by the sample weights alone, so that the classes of rows do not choose the levels.
        """
        return fit_schema(
            X,
            weight=weight,
            counts=None if weight is None else np.ones(len(X)) if sample_weight is None else sample_weight,
            missing=options.missing,
            unseen=options.unseen,
            max_levels=options.fixed_levels if options.bins is None else options.max_levels,
            limit=not self.density,
            numbers="plain" if self.density else self.choose_numbers(X, options),
        )

    def compares_numbers(self, X: Any, options: ColumnOptions) -> bool:
        """Return True if unseen rows should choose the encoding of the columns of numbers of a table."""
        if self.density or len(X.shape) != 2:
            return False
        return options.compares_numbers(len(X), X.shape[1], classes=self.of_classes)

    def choose_numbers(self, X: Any, options: ColumnOptions) -> str:
        """Return the encoding of the columns of numbers of a table by the number of its rows, "plain" or "binned"."""
        columns = X.shape[1] if len(X.shape) == 2 else 0  # other shapes are refused elsewhere
        return options.choose_numbers(len(X), columns, classes=self.of_classes)

    def encode_rows(self, schema: Schema, X: Any) -> Array:
        """Encode the predictors of a table, shape (N, D)."""
        return np.zeros((len(X), 0)) if self.density else encode(schema, X)

    def width(self, schema: Schema) -> int:
        """Return the number of encoded predictors, D."""
        return 0 if self.density else schema.width


@dataclass(frozen=True)
class ClassTask(_Rows):
    """Task of classification.

    Attributes
    ----------
    class_weight : None, "balanced" or mapping
        Weight of the rows of each class.
    class_cost : None, "balanced" or mapping
        Cost of misclassifying a row of each class; not allowed for multilabel targets.
    several_labels : bool
        True if multilabel targets are allowed, with a column of 0 and 1 for each label.
    ordinal : bool or sequence of labels
        True for ordered classes, or their labels in ascending order; not allowed for multilabel targets.
    trees : bool
        True if boosted trees are fitted beside the networks: option `trees`.
    """

    of_classes: ClassVar[bool] = True
    class_weight: Any = None
    class_cost: Any = None
    several_labels: bool = True
    ordinal: Any = False
    trees: bool = False

    def shape_target(self, y: Any) -> Any:
        """Return the target as a vector if it has a single column."""
        if isinstance(y, list | tuple) and y and isinstance(y[0], list | tuple | np.ndarray) and len(y[0]) > 1:
            y = np.asarray(y)  # a list of rows
        native = nw.from_native(y, eager_only=True, pass_through=True)
        if isinstance(native, nw.DataFrame | np.ndarray) and len(native.shape) == 2 and native.shape[1] == 1:
            from sklearn.exceptions import DataConversionWarning  # here, since predictions do not need scikit-learn

            warnings.warn(
                "A column-vector y was passed when a 1d array was expected; pass y.ravel(), of shape (rows,)",
                DataConversionWarning,
                stacklevel=6,
            )
            return native[:, 0].to_native() if isinstance(native, nw.DataFrame) else native[:, 0]
        return y

    def apply_class_weight(self, y: Any, weight: Array | None) -> Array | None:
        """Multiply the sample weights, (N,), by the class weights."""
        if self.class_weight is None or _columns(y) > 1:
            return weight
        labels = fit_labels(y, weight)
        by_row = by_class("class_weight", self.class_weight, labels)[labels.encode(y)]
        return by_row if weight is None else weight * by_row

    def fit_target(self, y: Any, weight: Array | None) -> ClassLabels | Indicators:
        """Fit the encoding of the target to all rows."""
        if (columns := _columns(y)) < 2:
            labels = self.rank(fit_labels(y, weight), y)
            by_class("class_cost", self.class_cost, labels)  # refused before the fit, since only predictions need it
            return labels
        if not self.several_labels:
            raise DataError(
                f"y has {columns} columns, but this estimator predicts one class for each row; fit one estimator for "
                "each column, for example with sklearn.multioutput.MultiOutputClassifier"
            )
        ordinal = None if self.ordinal is False else self.ordinal
        for name, value in (
            ("class_weight", self.class_weight),
            ("class_cost", self.class_cost),
            ("ordinal", ordinal),
        ):
            if value is not None:
                raise DataError(
                    f"{name}={value!r} was given with {columns} columns of labels; it requires one class for each "
                    "row: leave it out"
                    f"{', and use sample_weight' if name == 'class_weight' else ''}"
                )
        return fit_indicators(y, weight)

    def rank(self, labels: ClassLabels, y: Any = None) -> ClassLabels:
        """Return class labels with their ranks, if the classes are ordered; `y` is the target."""
        return rank_labels(labels, self.ordinal, y)

    def encode_target(self, target: Target, y: Any) -> Array:
        """Encode the target of a table."""
        return target.encode(y)

    def first_target(self, y: Any, weight: Array | None, classes: Any) -> ClassLabels | Indicators:
        """Fit the encoding of the target to the first of several parts and the classes."""
        if _columns(y) > 1:
            return self.fit_target(y, weight)
        if classes is None:
            raise DataError("classes must be passed on the first call to partial_fit: all labels of all parts")
        labels = replace(fit_labels(np.repeat(np.asarray(unmask(classes)), 2)), counts=())
        return self.rank(labels, y)

    @property
    def target_class(self) -> type[ClassLabels]:
        """Class of the encoding of the target of a stream."""
        return ClassLabels

    def likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        """Build p(y | f); the tensor names of a saved model determine its variant."""
        if isinstance(target, Indicators):
            return Bernoulli(len(target.counts))
        tempered = "likelihood/log_temperature" in saved
        labels = cast(ClassLabels, target)
        if labels.ranks:
            counts = labels.counts or None
            return CumulativeLogit(len(labels.labels), labels.ranks, counts=counts, temperature=tempered)
        return Categorical(len(labels.labels), temperature=tempered)

    def units(self, target: Target) -> dict[str, Any]:
        """Return the arguments of :func:`~fathomless.posterior.predictive.predictive` for the labels."""
        return {} if isinstance(target, Indicators) else {"labels": labels_of(target)}


@dataclass(frozen=True)
class NumberTask(_Rows):
    """Task of regression or density estimation.

    Attributes
    ----------
    law : str, optional
        Distribution of the noise: option `likelihood`. None if the networks provide the scale of Gaussian noise.
    noise : {"learned", "input"} or float
        Scale of the noise: option `noise`.
    recalibrate : bool
        True if laws of the standardised residual are learned: option `recalibrate`.
    neighbors : bool
        True if these laws use the nearest training rows: option `neighbors`.
    trees : bool
        True if boosted trees are fitted beside the networks: option `trees`.
    censored : bool
        True if targets are bounds, (N, 2), from :func:`~fathomless.data.censoring.read_bounds`.
    """

    law: str | None = None
    noise: "float | str" = "learned"
    recalibrate: bool = False
    neighbors: bool = False
    trees: bool = False
    censored: bool = False

    @property
    def is_recalibrated(self) -> bool:
        """True if laws of the residual are learned: the law and the scale of the noise are not given by the user."""
        return self.recalibrate and self.law in ("auto", None) and isinstance(self.noise, str) and not self.density

    def shape_target(self, y: Any) -> Any:
        """Return the target unchanged."""
        return y

    def apply_class_weight(self, y: Any, weight: Array | None) -> Array | None:
        """Return the sample weights, (N,), unchanged."""
        return weight

    def fit_target(self, y: Any, weight: Array | None) -> TargetScale:
        """Fit the scale of the target to all rows, and find its atoms if they are predicted apart."""
        if self.censored:
            return fit_bounds(y, weight)
        scale = fit_target(y, weight, hurdle=self.is_recalibrated, warn_of_constants=not self.density)
        return replace(scale, ndim=2) if self.density else scale

    def encode_target(self, target: Target, y: Any) -> Array:
        """Encode the target of a table, shape (N, T); (N, 2) for bounds of a censored one."""
        return encode_bounds(cast(TargetScale, target), y) if self.censored else target.encode(y)

    def first_target(self, y: Any, weight: Array | None, classes: Any) -> TargetScale:
        """Fit the scale of the target to the first of several parts."""
        if classes is not None:
            raise DataError("classes were given, but this estimator predicts numbers; leave them out")
        return replace(fit_target(y, weight), ndim=2) if self.density else fit_target(y, weight)

    @property
    def target_class(self) -> type[TargetScale]:
        """Class of the encoding of the target of a stream."""
        return TargetScale

    def likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        """Build p(y | f); the tensor names of a saved model determine its variant."""
        likelihood = self._law_of(len(cast(TargetScale, target).mean), cast(TargetScale, target).steps, saved)
        if not self.density:
            likelihood.steps = cast(TargetScale, target).steps
        if "likelihood/cell" in saved:  # filled from the tensors of the model
            likelihood.cell = torch.zeros(likelihood.targets)
        return likelihood

    def _law_of(self, targets: int, steps: Sequence[float], saved: Collection[str]) -> LocationScale:
        """Build the law of a number of targets with lattices of these steps."""
        if self.law is None:
            return Gaussian(targets, noise="stated")
        if "model/noise_scale" in saved:  # the networks provide the scale
            heavy = "model/noise_df" in saved
            return StudentT(targets, df="stated", noise="stated") if heavy else Gaussian(targets, noise="stated")
        laws: dict[str, Callable[..., LocationScale]] = {
            "auto": Gaussian,
            "gaussian": Gaussian,
            "student_t": StudentT,
            "laplace": Laplace,
        }
        law = laws[checks.choice("likelihood", self.law, tuple(laws))]
        if "likelihood/raw_df" in saved:  # held-out rows chose Student's t
            law = functools.partial(StudentT, df="learned")
        options: dict[str, Any] = {"noise": self.noise}
        widest = max(steps, default=0.0)
        if self.noise == "input" and widest > _COARSE and not self.density:
            # a scale that the networks predict has no floor after training
            options["min_noise"] = min(widest / math.sqrt(12.0), _HIGHEST_FLOOR)
        likelihood = law(targets, **options)
        if "likelihood/noise.log_factor" in saved and isinstance(likelihood, LocationScale):
            likelihood.add_factor()
        return likelihood

    def units(self, target: Target) -> dict[str, Any]:
        """Return the arguments of :func:`~fathomless.posterior.predictive.predictive` for the scale of the target."""
        scale = cast(TargetScale, target)
        units: dict[str, Any] = {"shift": scale.mean, "scale": scale.scale, "squeeze": scale.ndim == 1}
        if scale.transform is not None:
            units["transform"] = scale.transform
        is_on_lattice = not self.density and len(scale.lattice) == 1 and scale.lattice[0].step > 0.0
        if is_on_lattice and (scale.transform is None or scale.cells):
            units["lattice"] = (scale.lattice[0].step, scale.lattice[0].offset)
        return units


#: Task of an estimator.
Task: TypeAlias = ClassTask | NumberTask


def labels_of(target: Target) -> Array:
    """Return the class labels, ascending, shape (K,); for multilabel targets the columns 0, ..., T − 1."""
    if isinstance(target, Indicators):
        return np.arange(len(target.counts))
    labels = cast(ClassLabels, target)
    return labels.decode(np.arange(len(labels.labels)))


def by_class(name: str, value: Any, labels: ClassLabels) -> Array:
    """Return the value of an option for every class, shape (K,).

    Parameters
    ----------
    name : str
        Name of the option, for messages.
    value : None, "balanced" or mapping of label to number
        None is 1 for every class; "balanced" is inversely proportional to the class counts.
    labels : ClassLabels
        Labels and counts of the classes.

    Raises
    ------
    DataError
        If the value has another type, a label is unknown, or a number is not positive and finite.
    """
    known = list(labels.labels)
    if value is None:
        return np.ones(len(known))
    if isinstance(value, str):
        if not labels.counts:
            raise DataError(f"{name}='balanced' was given, but the class counts are unknown; give a dict of numbers")
        return sum(labels.counts) / (len(known) * np.array(labels.counts))
    if not isinstance(value, Mapping):
        raise DataError(f"{name}={value!r} was given; allowed are None, 'balanced', and a dict of numbers")
    unknown = [label for label in value if label not in known]
    numbers = np.array([float(value.get(label, 1.0)) for label in known])
    if unknown or not ((numbers > 0.0) & (numbers < np.inf)).all():
        raise DataError(f"{name}={value} was given; positive, finite numbers for the classes {some(known)} are allowed")
    return numbers


def _columns(y: Any) -> int:
    """Return the number of columns of a target."""
    native = nw.from_native(y, eager_only=True, pass_through=True)
    several = isinstance(native, nw.DataFrame | np.ndarray) and len(native.shape) == 2
    return int(native.shape[1]) if several else 1
