"""Diagnostics of fits: values that are saved with a fit and read by pages and findings.

Every kind of inference has its own dataclass. Fields are plain values. :meth:`Diagnostics.to_json` returns them as one
flat mapping, without those that have their default value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

from fathomless.system.errors import DataError

__all__ = [
    "Candidate",
    "ChainDiagnostics",
    "CrossFitDiagnostics",
    "Diagnostics",
    "EqualRows",
    "HurdleFit",
    "NeighborFit",
    "RecalibrationFit",
    "Record",
    "StructureWeights",
    "TreesFit",
    "Trial",
    "choose_options",
]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base class of dataclasses that convert to JSON and back.

    The metadata of a field may name another record class. "of" is the class of its value or entries. "flat" is the
    class of its value, whose fields are then merged into those of the outer record in JSON.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        values: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if not _is_required(spec) and value == _get_default(spec):
                continue
            if "flat" in spec.metadata:
                values |= value.to_json()
            else:
                values[spec.name] = _to_plain(value)
        return values

    @classmethod
    def from_json(cls, meta: Mapping[str, Any]) -> Self:
        """Build a record from the result of :meth:`to_json`.

        Raises
        ------
        DataError
            For missing or unknown names, and for inconsistent values.
        """
        values = dict[str, Any]()
        rest = dict(meta)  # names that no field has read yet
        for spec in fields(cls):
            inner: type[Record] | None = spec.metadata.get("flat")
            if inner is not None:
                if inner.names() & set(rest):
                    flat = {name: rest.pop(name) for name in inner.names() if name in rest}
                    values[spec.name] = inner.from_json(flat)
            elif spec.name in rest:
                of: type[Record] | None = spec.metadata.get("of")
                values[spec.name] = _from_plain(rest.pop(spec.name), of)
        missing = {spec.name for spec in fields(cls) if _is_required(spec)} - set(values)
        if missing:
            raise DataError(f"its diagnostics lack {', '.join(sorted(missing))}")
        if rest:
            raise DataError(f"its diagnostics have unknown names: {', '.join(sorted(rest))}")
        return cls(**values)

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of all fields in JSON."""
        names = set[str]()
        for spec in fields(cls):
            inner: type[Record] | None = spec.metadata.get("flat")
            names |= {spec.name} if inner is None else inner.names()
        return names


@dataclass(frozen=True, kw_only=True)
class EqualRows(Record):
    """Duplicate rows of the table of a fit; see :mod:`fathomless.data.duplicates`.

    Attributes
    ----------
    rows : int
        Number of rows that are equal to another row.
    kind : {"observations", "copies"}
        Treatment of these rows.
    """

    rows: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class NeighborFit(Record):
    """Neighbours in the recalibration of a target; see :mod:`fathomless.posterior.neighbors`.

    Attributes
    ----------
    rows : int
        Number of training rows that are searched.
    stored : bool
        True if a law of neighbours has weight for this or another target, so that the fit contains these rows.
    repeated : float
        Share of the out-of-fold rows that have the same target as one of their four nearest rows.
    chance : float
        Expected share if the four rows were random.
    """

    rows: int
    stored: bool
    repeated: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class TreesFit(Record):
    """Boosted trees beside the networks; see :mod:`fathomless.posterior.trees`.

    Attributes
    ----------
    weight : float
        Weight of the trees: the sum of the weights of their laws in the prediction of a number, or the share
        b / (a + b) of their exponent in the logarithmic pool of classes. 0 if they are not used.
    gain, error : float
        Cross-validated gain in log-likelihood over the prediction without trees, in nats per row, and its standard
        error. Without trees, networks of classes have a fitted exponent, too.
    iterations : int
        Number of trees of each score.
    rows : int
        Number of out-of-fold, held-out or left-out rows.
    """

    weight: float
    gain: float
    error: float
    iterations: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class RecalibrationFit(Record):
    """Recalibration of a target; see :mod:`fathomless.inference.out_of_fold.recalibration`.

    Attributes
    ----------
    weights : mapping of str to float
        Weight of the law of the networks ("networks") and of each law of the standardised residual.
    gain, error : float
        Cross-validated gain in log-likelihood over the law of the networks, in nats per row, and its standard error.
    rows : int
        Number of out-of-fold, held-out or left-out rows.
    steps : mapping of str to int
        Number of training steps of each law; empty if the leave-one-out laws are too unreliable to learn from.
    unreliable : float
        Share of the training rows whose leave-one-out law is unreliable, for sampled posteriors; 0 for others.
    neighbors : NeighborFit, optional
        Neighbours, if they were searched for (option `neighbors`).
    trees : TreesFit, optional
        Boosted trees, if they were fitted (option `trees`).
    """

    weights: Mapping[str, float]
    gain: float
    error: float
    rows: int
    steps: Mapping[str, int]
    unreliable: float = 0.0
    neighbors: NeighborFit | None = field(default=None, metadata={"of": NeighborFit})
    trees: TreesFit | None = field(default=None, metadata={"of": TreesFit})

    def __post_init__(self) -> None:
        """Check that weights and steps are mappings."""
        if not isinstance(self.weights, dict) or not isinstance(self.steps, dict) or "networks" not in self.weights:
            raise DataError("its recalibration lacks the weights of the laws")

    @property
    def used(self) -> bool:
        """True if a law of the residual has weight."""
        return self.weights["networks"] < 1.0


@dataclass(frozen=True, kw_only=True)
class HurdleFit(Record):
    """Probabilities of the atoms of a target; see :mod:`fathomless.inference.out_of_fold.hurdle`.

    Attributes
    ----------
    atoms, shares : tuples of A float
        The atoms and their shares of the rows.
    log_probability : float
        Mean log probability, out of fold, of the atom of a row or of other values, in nats.
    gain : float
        Its difference from that of constant probabilities, in nats per row.
    rows, steps : int
        Numbers of rows and of training steps.
    """

    atoms: tuple[float, ...]
    shares: tuple[float, ...]
    log_probability: float
    gain: float
    rows: int
    steps: int

    def __post_init__(self) -> None:
        """Check that there is one share for each atom."""
        if not isinstance(self.atoms, tuple) or not isinstance(self.shares, tuple):
            raise DataError("its atoms and their shares are not lists")
        if len(self.atoms) != len(self.shares):
            raise DataError("its atoms and their shares are not lists of equal length")


@dataclass(frozen=True, kw_only=True)
class TransformFit(Record):
    """Comparison of a target with its logarithm; see :class:`~fathomless.system.transforms.LogTransform`.

    Attributes
    ----------
    threshold, unit, sign : float
        Parameters of the transform.
    expected, error : float
        Gain in log-likelihood by Gaussian processes, in nats per row, and its standard error; see
        :mod:`fathomless.inference.out_of_fold.transforms`.
    gain : float
        Gain of the fit to the transformed target on out-of-fold or held-out rows, in nats per row.
    used : bool
        True if the prediction is that of the transformed target.
    """

    threshold: float
    unit: float
    sign: float
    expected: float
    error: float
    gain: float
    used: bool


@dataclass(frozen=True, kw_only=True)
class Diagnostics(Record):
    """Diagnostics of a fit.

    Attributes
    ----------
    hurdle : HurdleFit, optional
        Atoms of the target that are predicted apart from other values.
    recalibration : tuple of T RecalibrationFit
        Recalibration of each target; empty if it was not fitted.
    repeats : EqualRows, optional
        Duplicate rows of the table, if there are any.
    resumed : tuple of mapping
        Versions of the packages in earlier parts of a resumed fit, if they differ from those at its end.
    transform : TransformFit, optional
        Comparison of the target with its logarithm, if a logarithm was tried.
    trees : TreesFit, optional
        Boosted trees beside the networks of a classifier, if they were fitted (option `trees`); those of a regression
        are in `recalibration`.
    """

    hurdle: HurdleFit | None = field(default=None, metadata={"of": HurdleFit})
    recalibration: tuple[RecalibrationFit, ...] = field(default=(), metadata={"of": RecalibrationFit})
    repeats: EqualRows | None = field(default=None, metadata={"of": EqualRows})
    resumed: tuple[Mapping[str, str], ...] = ()
    transform: TransformFit | None = field(default=None, metadata={"of": TransformFit})
    trees: TreesFit | None = field(default=None, metadata={"of": TreesFit})

    @property
    def trees_of_targets(self) -> tuple[TreesFit, ...]:
        """Boosted trees of the classes, or of each numeric target; empty if none were fitted."""
        of_numbers = tuple(fit.trees for fit in self.recalibration if fit.trees is not None)
        return of_numbers if self.trees is None else (self.trees, *of_numbers)


@dataclass(frozen=True, kw_only=True)
class StructureWeights(Record):
    """Posterior over L structures, estimated from out-of-fold predictions.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.stacking`.

    Attributes
    ----------
    numbers : tuple of L int
        Structures, such as depths.
    weights, errors : tuples of L float
        Posterior probabilities and their standard errors.
    mean, mean_error : float
        Mean structure and its standard error.
    single : tuple of L float
        Weights of single structures (pseudo-BMA+).
    poisson : tuple of L float
        Best-fitting Poisson law.
    poisson_rate, poisson_loss : float
        Rate of this law, and the resulting loss in the objective F, in nats.
    log_density : tuple of L float
        Mean log density of out-of-fold rows under each structure, in nats per row.
    rows, members : int
        Numbers of rows and of networks.
    """

    numbers: tuple[int, ...]
    weights: tuple[float, ...]
    errors: tuple[float, ...]
    mean: float
    mean_error: float
    single: tuple[float, ...]
    poisson: tuple[float, ...]
    poisson_rate: float
    poisson_loss: float
    log_density: tuple[float, ...]
    rows: int
    members: int

    def __post_init__(self) -> None:
        """Check that all lists have the same length."""
        listed = (self.numbers, self.weights, self.errors, self.single, self.poisson, self.log_density)
        if not all(isinstance(values, tuple) for values in listed) or len({len(values) for values in listed}) != 1:
            raise DataError("its weights of structures are not lists of equal length")


@dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """Candidate architecture of a fit.

    Attributes
    ----------
    options : mapping
        Options that differ from those of other candidates.
    weight : float
        Weight of the candidate.
    networks : int
        Number of its networks.
    """

    options: Mapping[str, Any]
    weight: float
    networks: int

    def __post_init__(self) -> None:
        """Check that there is at least one network, and that options are a mapping."""
        if type(self.networks) is not int or self.networks < 1 or not isinstance(self.options, dict):
            raise DataError("its candidate architectures need options and at least one network each")


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """Options that were compared with others by a short training; see :mod:`fathomless.estimators.trials`.

    Attributes
    ----------
    options : mapping
        Options of the networks.
    gain, error : float
        Gain in out-of-fold log-likelihood over the first trial, in nats per row, and its standard error. They are 0 for
        the first trial.
    chosen : bool
        True if the networks of the fit have these options.
    columns : int
        Number of columns that each network uses, by the selection of :mod:`fathomless.estimators.selection`; 0 for all.
    """

    options: Mapping[str, Any]
    gain: float
    error: float
    chosen: bool
    columns: int = 0

    def __post_init__(self) -> None:
        """Check that the options are a mapping."""
        if not isinstance(self.options, dict):
            raise DataError("its trials lack their options")


def choose_options(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the options of the chosen trial; empty without trials."""
    return next((dict(trial.options) for trial in trials if trial.chosen), {})


@dataclass(frozen=True, kw_only=True)
class CrossFitDiagnostics(Diagnostics):
    """Diagnostics of a fit by gradient-based training.

    Attributes
    ----------
    structure : StructureWeights, optional
        Posterior over structure, if it was estimated from out-of-fold predictions.
    kinds : tuple of Candidate
        Candidate architectures, if there are several.
    narrowing : tuple of T float
        Noise scale of the average of networks, relative to that of a single network, for each target; or their
        temperature of classes, T = 1. Empty if they are equal.
    prior : tuple of float
        Prior probabilities of the sampled structures.
    sampling : mapping of str to mapping
        Records of the chains of each sampled structure.
    trials : tuple of Trial
        Options that were compared by a short training, if any were.
    """

    structure: StructureWeights | None = field(default=None, metadata={"flat": StructureWeights})
    kinds: tuple[Candidate, ...] = field(default=(), metadata={"of": Candidate})
    narrowing: tuple[float, ...] = ()
    prior: tuple[float, ...] = ()
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: tuple[Trial, ...] = field(default=(), metadata={"of": Trial})


@dataclass(frozen=True, kw_only=True)
class ChainDiagnostics(Diagnostics):
    """Diagnostics of a fit by Markov chain Monte Carlo.

    Attributes
    ----------
    apart : float
        Difference of log-likelihoods beyond which chains are in different modes, in nats per row.
    outside : int
        Number of held-out rows outside the support of every chain.
    chains : tuple of mapping
        A record of each chain.
    diagnostics, diagnostics_of_all : mapping of str to mapping
        R-hat, effective sample sizes and Monte Carlo errors of the chains in use, and of all chains.
    traces : mapping
        Thinned traces for figures.
    low, span : tuples of T float
        Support of the columns of a density.
    """

    apart: float
    outside: int = field(default=-1)  # the default is for runs of version 0.1.0, which did not count them
    chains: tuple[Mapping[str, Any], ...]
    diagnostics: Mapping[str, Mapping[str, Any]]
    diagnostics_of_all: Mapping[str, Mapping[str, Any]]
    traces: Mapping[str, Any]
    low: tuple[float, ...] = ()
    span: tuple[float, ...] = ()


def _is_required(spec: Field[Any]) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING


def _get_default(spec: Field[Any]) -> Any:
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def _to_plain(value: Any) -> Any:
    """Return a value as plain JSON."""
    match value:
        case Record():
            return value.to_json()
        case tuple():
            return [_to_plain(entry) for entry in value]
    return value


def _from_plain(value: Any, of: type[Record] | None) -> Any:
    """Invert :func:`_to_plain`; lists become tuples."""
    if isinstance(value, list):
        return tuple(value if of is None else (of.from_json(entry) for entry in value))
    return value if of is None or value is None else of.from_json(value)
