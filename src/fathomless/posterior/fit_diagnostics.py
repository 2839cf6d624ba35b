"""Diagnostics of fits: values that are kept with a fit, saved with it, and read by pages and findings.

Every kind of inference has a dataclass of its own. Fields are plain values. :meth:`Diagnostics.to_json` writes them as
one flat mapping, without those that have their default.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

from fathomless.system.errors import DataError

__all__ = [
    "Candidate",
    "ChainDiagnostics",
    "CrossFitDiagnostics",
    "Diagnostics",
    "EqualRows",
    "Record",
    "StructureWeights",
]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Plain values with names, which become JSON and back.

    The metadata of a field may name a record: "of" that of its entries, "flat" that of its value, whose own fields then
    stand beside those of its owner in JSON.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if not _required(one) and value == _default(one):
                continue
            if "flat" in one.metadata:
                found |= value.to_json()
            else:
                found[one.name] = _plain(value)
        return found

    @classmethod
    def from_json(cls, meta: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_json`.

        Raises
        ------
        DataError
            For missing or unknown names, and for numbers that do not belong together.
        """
        given, rest = dict[str, Any](), dict(meta)
        for one in fields(cls):
            inner: type[Record] | None = one.metadata.get("flat")
            if inner is not None:
                if inner.names() & set(rest):
                    given[one.name] = inner.from_json({name: rest.pop(name) for name in inner.names() if name in rest})
            elif one.name in rest:
                of: type[Record] | None = one.metadata.get("of")
                given[one.name] = _restored(rest.pop(one.name), of)
        missing = {one.name for one in fields(cls) if _required(one)} - set(given)
        if missing:
            raise DataError(f"its diagnostics lack {', '.join(sorted(missing))}")
        if rest:
            raise DataError(f"its diagnostics have {', '.join(sorted(rest))}, which are unknown")
        return cls(**given)

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of all fields in JSON."""
        found = set[str]()
        for one in fields(cls):
            inner: type[Record] | None = one.metadata.get("flat")
            found |= {one.name} if inner is None else inner.names()
        return found


@dataclass(frozen=True, kw_only=True)
class EqualRows(Record):
    """Equal rows of the table of a fit; see :mod:`fathomless.data.duplicates`.

    Attributes
    ----------
    rows : int
        Rows that are equal to another row.
    kind : {"observations", "copies"}
        Treatment of these rows.
    """

    rows: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class Diagnostics(Record):
    """Diagnostics of a fit.

    Attributes
    ----------
    repeats : EqualRows, optional
        Equal rows of the table, if there were any.
    resumed : tuple of mapping
        Versions under which parts of the fit were done, if a checkpoint named others than those of its end.
    """

    repeats: EqualRows | None = field(default=None, metadata={"of": EqualRows})
    resumed: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class StructureWeights(Record):
    """Posterior over L structures, as out-of-fold rows determine it.

    The mathematics is in :mod:`fathomless.inference.out_of_fold.stacking`.

    Attributes
    ----------
    numbers : tuple of L int
        Structures, such as depths.
    weights, errors : tuples of L float
        Posterior and its standard errors.
    mean, mean_error : float
        Mean structure and its standard error.
    single : tuple of L float
        Weights of single structures (pseudo-BMA+).
    poisson : tuple of L float
        Best-fitting Poisson law.
    poisson_rate, poisson_loss : float
        Its rate, and the loss of the objective F by it, in nats.
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
        """Refuse lists of different lengths."""
        listed = (self.numbers, self.weights, self.errors, self.single, self.poisson, self.log_density)
        if not all(isinstance(one, tuple) for one in listed) or len({len(one) for one in listed}) != 1:
            raise DataError("its weights of structures are not lists of equal length")


@dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """One of several candidate architectures.

    Attributes
    ----------
    options : mapping
        Options in which it differs.
    weight : float
        Its weight.
    networks : int
        Number of its networks.
    """

    options: Mapping[str, Any]
    weight: float
    networks: int

    def __post_init__(self) -> None:
        """Refuse a number of networks that is none, and options without names."""
        if type(self.networks) is not int or self.networks < 1 or not isinstance(self.options, dict):
            raise DataError("its kinds of network need options and at least one network each")


@dataclass(frozen=True, kw_only=True)
class CrossFitDiagnostics(Diagnostics):
    """Diagnostics of networks that were trained by gradients.

    Attributes
    ----------
    structure : StructureWeights, optional
        Posterior over structure, if out-of-fold rows determined it.
    kinds : tuple of KindOfNetwork
        Candidate architectures, if there are several.
    narrowing : tuple of T float
        Scale of the noise of the average of networks relative to that of single ones, for each target; empty if it is
        the same.
    prior : tuple of float
        Prior probabilities of the sampled structures.
    sampling : mapping of str to mapping
        Records of the chains of each sampled structure.
    """

    structure: StructureWeights | None = field(default=None, metadata={"flat": StructureWeights})
    kinds: tuple[Candidate, ...] = field(default=(), metadata={"of": Candidate})
    narrowing: tuple[float, ...] = ()
    prior: tuple[float, ...] = ()
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChainDiagnostics(Diagnostics):
    """Diagnostics of a posterior that was sampled by chains.

    Attributes
    ----------
    apart : float
        Difference of log-likelihoods beyond which chains are in different modes, in nats per row.
    outside : int
        Held-out rows outside the support of every chain.
    chains : tuple of mapping
        A record of each chain.
    diagnostics, diagnostics_of_all : mapping of str to mapping
        R-hat, effective sample sizes and Monte Carlo errors of the chains that are used, and of all.
    traces : mapping
        Thinned traces for pictures.
    low, span : tuples of T float
        Support of the columns of a density.
    """

    apart: float
    outside: int = field(default=-1)  # of runs of version 0.1.0, which did not count them
    chains: tuple[Mapping[str, Any], ...]
    diagnostics: Mapping[str, Mapping[str, Any]]
    diagnostics_of_all: Mapping[str, Mapping[str, Any]]
    traces: Mapping[str, Any]
    low: tuple[float, ...] = ()
    span: tuple[float, ...] = ()


def _required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _plain(value: Any) -> Any:
    """Return a value as plain JSON."""
    match value:
        case Record():
            return value.to_json()
        case tuple():
            return [_plain(one) for one in value]
    return value


def _restored(value: Any, of: type[Record] | None) -> Any:
    """Return what :func:`_plain` made plain; lists become tuples."""
    if isinstance(value, list):
        return tuple(value if of is None else (of.from_json(one) for one in value))
    return value if of is None or value is None else of.from_json(value)
