"""Registry of the families: built-in ones, and those that other packages register.

A built-in family is one line of :data:`BUILT_IN`. Another package registers one by an entry point::

    [project.entry-points."fathomless.families"]
    toy = "toy_package:FAMILY"

The command line, the page, the findings, :func:`load` and the citations read the families here without importing
torch.
"""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from fathomless.estimators.options import ClassOptions, NoiseOptions, options_of
from fathomless.families import baselines, continuous, depth, graph, manifold, sparse
from fathomless.families.family import Family
from fathomless.system.citations import SOFTWARE, Reference
from fathomless.system.errors import DataError, FileError

if TYPE_CHECKING:
    from dataclasses import Field

    from fathomless.estimators.base import Estimator
    from fathomless.estimators.networks import Networks
    from fathomless.estimators.predictor import Predictor

__all__ = [
    "BUILT_IN",
    "GROUP",
    "estimator_class",
    "families",
    "family_of",
    "full_name",
    "load",
    "options",
    "predictor",
    "preset",
    "references",
]

#: Built-in families, one a line.
BUILT_IN: tuple[Family, ...] = (
    depth.FAMILY,
    sparse.FAMILY,
    continuous.FAMILY,
    graph.FAMILY,
    manifold.FAMILY,
    *baselines.FAMILIES,
)
GROUP = "fathomless.families"  #: group of the entry points that register families of other packages


def families() -> dict[str, Family]:
    """Return all families by name; those of other packages come last.

    Raises
    ------
    DataError
        If an entry point cannot be imported, is not a :class:`~fathomless.families.family.Family`, or has a name that
        is taken.

    Examples
    --------
    >>> list(families())[:2]
    ['depth', 'sparse']
    """
    return _families(tuple(sys.path))


@cache
def _families(_: tuple[str, ...]) -> dict[str, Family]:
    by_name = {family.name: family for family in BUILT_IN}
    for entry in sorted(entry_points(group=GROUP)):
        entry_point = f"the entry point {entry.name!r} = {entry.value!r} of {GROUP}"
        try:
            family = entry.load()
        except Exception as error:  # importing a module of another package may raise anything
            problem = f"{type(error).__name__}: {error}"
            raise DataError(f"{entry_point} cannot be loaded ({problem}); repair or remove it") from error
        if not isinstance(family, Family) or family.name in by_name:
            known = ", ".join(by_name)
            raise DataError(f"{entry_point} is {family!r:.80}; a Family is allowed, under another name than {known}")
        by_name[family.name] = family
    return by_name


def full_name(name: str) -> str:
    """Return the name of the family with this name or alias; the argument itself if there is none.

    Examples
    --------
    >>> full_name("dun"), full_name("depth")
    ('depth-uncertainty', 'depth')
    """
    return next((family.name for family in families().values() if family.alias == name), name)


def estimator_class(place: str) -> "type[Estimator]":
    """Import the estimator class at an import path."""
    return cast("type[Estimator]", Family.find(place))


def options(family: Family, task: str) -> "dict[str, Field[Any]]":
    """Return the options of a family for a task, by name, without importing the estimator.

    Examples
    --------
    >>> "noise" in options(families()["depth"], "regression"), "noise" in options(families()["depth"], "classification")
    (True, False)
    """
    groups: list[type] = [family.options]
    if task == "classification":
        groups.append(ClassOptions)
    elif family.noise:
        groups.append(NoiseOptions)
    return {option.name: option for group in groups for option in options_of(group)}


def preset(family: Family, name: str, task: str, given: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of a preset of a family, without those that a task does not have or that are given.

    Parameters
    ----------
    family : Family
        Family of the estimator.
    name : str
        Name of the preset.
    task : str
        Task of the estimator.
    given : iterable of str
        Names of options that the preset does not replace.

    Raises
    ------
    DataError
        If the family has no such preset.

    Examples
    --------
    >>> preset(families()["depth"], "best", "classification")
    {'cv__n_repeats': 2, 'trees': True}
    """
    if not family.presets:
        having = ", ".join(other.name for other in families().values() if other.presets)
        raise DataError(f"preset={name!r} was given for {family.name}, which has no presets; only {having} has them")
    return family.preset(name, options(family, task).keys(), tuple(given))


def family_of(estimator: "Estimator | str") -> Family:
    """Return the family of an estimator, given the estimator or the name of its class.

    Raises
    ------
    DataError
        If no family has such an estimator.

    Examples
    --------
    >>> family_of("DropoutNetworkRegressor").name
    'dropout'
    """
    names = [estimator] if isinstance(estimator, str) else [base.__name__ for base in type(estimator).__mro__]
    for family in families().values():
        if set(names) & set(family.estimators):
            return family
    raise DataError(f"{names[0]} belongs to no registered family; allowed are {', '.join(families())}")


def load(path: str | PathLike[str]) -> "Estimator":
    """Load a saved estimator of any class.

    Raises
    ------
    FileError
        As :meth:`~fathomless.estimators.base.Estimator.load` does.
    """
    from fathomless.system import io  # imports torch

    saved, _ = io.header(path)
    places = {name: place for family in families().values() for name, place in family.estimators.items()}
    if saved not in places:
        allowed = ", ".join(places)
        raise FileError(f"{path} holds a {saved!r}; allowed here: {allowed}. Load it with the class that saved it")
    return estimator_class(places[saved]).load(path)


def predictor(path: str | PathLike[str]) -> "Predictor | Estimator":
    """Load the predictor of a saved estimator without importing scikit-learn; density models load as estimators.

    Predictions are bit-identical to those of the estimator.

    Raises
    ------
    FileError
        As :func:`load` does.
    """
    from fathomless.system import io  # imports torch

    saved, _ = io.header(path)
    for family in families().values():
        for task, place in family.tasks.items():
            if place.endswith(f":{saved}") and family.networks is not None and task != "density":
                from fathomless.estimators.predictor import load_predictor

                return load_predictor(
                    path, saved, cast("type[Networks]", Family.find(family.networks)), task, family.noise
                )
    from fathomless.estimators.tasks import Supervised

    estimator = load(path)
    return estimator.predictor_ if isinstance(estimator, Supervised) else estimator


def references(*names: str) -> tuple[Reference, ...]:
    """Return the references to cite for some families, or for all of them; the software comes first.

    Examples
    --------
    >>> [reference.year for reference in references("depth")]
    [None, 2022]
    """
    chosen = [families()[name] for name in names] if names else families().values()
    return (SOFTWARE, *(paper for family in chosen for paper in family.papers))
