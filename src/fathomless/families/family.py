"""What a family of networks registers: where its parts are, readable without torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from fathomless.estimators.options import TableOptions
from fathomless.system.citations import Reference
from fathomless.system.errors import DataError

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """A family of networks, as the rest of the library finds it.

    What needs torch is named, as ``"package.module:name"``, and imported by :meth:`find` when it is asked for.

    Attributes
    ----------
    name : str
        What follows ``--structure`` on the command line.
    title : str
        What it is, in a few words, for ``--help``.
    options : type
        The dataclass of its options, without those of a task.
    classifier, regressor, density : str, optional
        Its estimators.
    networks : str, optional
        Class of the options of a classifier or regressor that builds its networks, a
        :class:`~fathomless.estimators.networks.Networks`: predictions from a folder need no more. Without it they load
        the estimator.
    papers : tuple of Reference
        What to cite.
    report : str, optional
        Function (estimator) -> :class:`~fathomless.plots.page.StructureSection`: what the page shows of the structure.
    findings : str, optional
        Function (:class:`~fathomless.estimators.findings.FitSummary`) -> findings about the structure.
    noise : bool
        Whether its regressions have a noise whose law is an option; else the posterior has it.
    progress : mapping of str to str
        Columns of the history that a progress bar shows, with the words for them.
    alias : str, optional
        Short name, which the command line accepts too.
    fitted : None
        Not used since version 0.1.0, and refused with the change to make.
    """

    name: str
    title: str
    options: type[TableOptions]
    classifier: str | None = None
    regressor: str | None = None
    density: str | None = None
    networks: str | None = None
    papers: tuple[Reference, ...] = ()
    report: str | None = None
    findings: str | None = None
    noise: bool = True
    progress: Mapping[str, str] = field(default_factory=dict)
    alias: str | None = None
    fitted: str | None = None

    def __post_init__(self) -> None:
        """Refuse what families of version 0.1.0 named."""
        if self.fitted is not None:
            raise DataError(
                f"the family {self.name!r} has fitted={self.fitted!r}, which version 0.1.0 used; name a class of "
                "fathomless.estimators.networks.Networks as networks, and give its estimator _strategy "
                "(and _split_plan, if it is cross-fitted) in place of the hooks that inference used"
            )
        names = {f.name for f in fields(self.options)}
        flat = sorted(name for name in names if name.startswith("structure_") and name != "structure_from")
        if flat and "structure_from" in names:
            raise DataError(
                f"the options of the family {self.name!r} have {', '.join(flat)} beside structure_from, as in version "
                "0.1.0; leave LawOptions and NaturalLawOptions out: their options are those of "
                "fathomless.estimators.values.ELBO now"
            )

    @property
    def tasks(self) -> dict[str, str]:
        """Task -> where its estimator is."""
        every = {"classification": self.classifier, "regression": self.regressor, "density": self.density}
        return {task: place for task, place in every.items() if place is not None}

    @property
    def estimators(self) -> dict[str, str]:
        """Name of each estimator -> where it is."""
        return {place.partition(":")[2]: place for place in self.tasks.values()}

    @staticmethod
    def find(place: str) -> Callable[..., Any]:
        """Import what a place names."""
        module, _, name = place.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found
