"""Registry entry of a family of networks: import paths of its parts, readable without torch."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from fathomless.estimators.options import TableOptions
from fathomless.system import checks
from fathomless.system.citations import Reference
from fathomless.system.errors import DataError

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """A family of networks and the import paths of its parts.

    Parts that need torch are given by name, as ``"package.module:name"``, and imported on demand by :meth:`find`.

    Attributes
    ----------
    name : str
        Value of ``--structure`` on the command line.
    title : str
        Short description for ``--help``.
    options : type
        Dataclass of its options, without those of a task.
    classifier, regressor, density : str, optional
        Estimators of the family.
    networks : str, optional
        Subclass of :class:`~fathomless.estimators.networks.Networks` that builds the networks of a classifier or
        regressor from its options. With it, saved models predict without loading the estimator.
    papers : tuple of Reference
        References to cite.
    report : str, optional
        Function (estimator) -> :class:`~fathomless.plots.page.StructureSection`: section of the page on the structure.
    findings : str, optional
        Function (:class:`~fathomless.estimators.findings.FitSummary`) -> findings about the structure.
    noise : bool
        True if the noise distribution of its regressions is an option; False if it is part of the posterior.
    progress : mapping of str to str
        Columns of the history shown in the progress bar, with their labels.
    presets : mapping of str to mapping
        Names of presets, with their options. Options that a task does not have are left out.
    fitted : None
        Not used since version 0.1.0; giving it raises an error that names the replacement.
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
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fitted: str | None = None

    def __post_init__(self) -> None:
        """Refuse arguments of version 0.1.0 that no longer exist."""
        if self.fitted is not None:
            raise DataError(
                f"the family {self.name!r} has fitted={self.fitted!r}, which version 0.1.0 used; name a class of "
                "fathomless.estimators.networks.Networks as networks, and give its estimator _strategy "
                "(and _split_plan, if it is cross-fitted) in place of the hooks that inference used"
            )
        names = {f.name for f in fields(self.options)}
        # structure_from, beside the flat options of version 0.1.0, would leave these without effect
        flat = sorted(name for name in names if name.startswith("structure_") and name != "structure_from")
        if flat and "structure_from" in names:
            raise DataError(
                f"the options of the family {self.name!r} have {', '.join(flat)} beside structure_from, as in version "
                "0.1.0; leave LawOptions and NaturalLawOptions out: their options are those of "
                "fathomless.estimators.values.ELBO now"
            )

    @property
    def tasks(self) -> dict[str, str]:
        """Import path of the estimator of each task."""
        places = {"classification": self.classifier, "regression": self.regressor, "density": self.density}
        return {task: place for task, place in places.items() if place is not None}

    @property
    def estimators(self) -> dict[str, str]:
        """Import path of each estimator, by its class name."""
        return {place.partition(":")[2]: place for place in self.tasks.values()}

    def preset(self, name: str, known: Collection[str], given: Collection[str] = ()) -> dict[str, Any]:
        """Return those options of a preset that belong to some known options, without those that are given.

        Nested options belong to their outer one. A nested option that is given replaces itself alone, and an outer one
        all nested options.

        Raises
        ------
        DataError
            If there is no such preset.
        """
        checks.choice("preset", name, tuple(self.presets))
        return {
            option: value
            for option, value in self.presets[name].items()
            if (outer := option.partition("__")[0]) in known and not {option, outer} & set(given)
        }

    @staticmethod
    def find(place: str) -> Callable[..., Any]:
        """Import the class or function at an import path ``"package.module:name"``."""
        module, _, name = place.partition(":")
        part: Callable[..., Any] = getattr(import_module(module), name)
        return part
