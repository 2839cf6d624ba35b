"""The families there are: those that come with the library, and those that other packages bring.

A family of the library is one line of :data:`BUILT_IN`. Another package brings one by an entry point::

    [project.entry-points."fathomless.families"]
    toy = "toy_package:FAMILY"

The command line, the page, the doctor, :func:`load` and the citations read all of them here, without importing torch.
"""

import sys
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
    "references",
]

#: The families of the library, a line each.
BUILT_IN: tuple[Family, ...] = (
    depth.FAMILY,
    sparse.FAMILY,
    continuous.FAMILY,
    graph.FAMILY,
    manifold.FAMILY,
    *baselines.FAMILIES,
)
GROUP = "fathomless.families"  #: entry points by which other packages bring families


def families() -> dict[str, Family]:
    """Return every family by its name, those of other packages last.

    Raises
    ------
    DataError
        If a package brings something that is no family, cannot be imported, or has a name that is taken.

    Examples
    --------
    >>> list(families())[:2]
    ['depth', 'sparse']
    """
    return _families(tuple(sys.path))


@cache
def _families(_: tuple[str, ...]) -> dict[str, Family]:
    found = {family.name: family for family in BUILT_IN}
    for entry in sorted(entry_points(group=GROUP)):
        whose = f"the entry point {entry.name!r} = {entry.value!r} of {GROUP}"
        try:
            family = entry.load()
        except Exception as error:  # whatever a module of others may do when it is imported
            raise DataError(f"{whose} cannot be loaded ({type(error).__name__}: {error}); mend or remove it") from error
        if not isinstance(family, Family) or family.name in found:
            known = ", ".join(found)
            raise DataError(f"{whose} is {family!r:.80}; a Family is allowed, under another name than {known}")
        found[family.name] = family
    return found


def full_name(name: str) -> str:
    """Return the name of the family with this name or alias; the argument itself if there is none.

    Examples
    --------
    >>> full_name("dun"), full_name("depth")
    ('depth-uncertainty', 'depth')
    """
    return next((family.name for family in families().values() if family.alias == name), name)


def estimator_class(place: str) -> "type[Estimator]":
    """Import the estimator that a family names."""
    return cast("type[Estimator]", Family.find(place))


def options(family: Family, task: str) -> "dict[str, Field[Any]]":
    """Return the options of a family for a task, by name; nothing is imported for it.

    Examples
    --------
    >>> "noise" in options(families()["depth"], "regression"), "noise" in options(families()["depth"], "classification")
    (True, False)
    """
    groups = [family.options, *([ClassOptions] if task == "classification" else [NoiseOptions] if family.noise else [])]
    return {option.name: option for group in groups for option in options_of(group)}


def family_of(estimator: "Estimator | str") -> Family:
    """Return the family of an estimator, or of the class of this name.

    Raises
    ------
    DataError
        If no family has it.

    Examples
    --------
    >>> family_of("DropoutNetworkRegressor").name
    'dropout'
    """
    names = [estimator] if isinstance(estimator, str) else [kind.__name__ for kind in type(estimator).__mro__]
    for family in families().values():
        if set(names) & set(family.estimators):
            return family
    raise DataError(f"{names[0]} is of no family that is registered; allowed are {', '.join(families())}")


def load(path: str | PathLike[str]) -> "Estimator":
    """Load any estimator that was saved, whatever its class.

    Raises
    ------
    FileError
        As :meth:`~fathomless.estimators.base.Estimator.load` does.
    """
    from fathomless.system import io  # torch comes here

    saved, _ = io.header(path)
    places = {name: place for family in families().values() for name, place in family.estimators.items()}
    if saved not in places:
        raise FileError(f"{path} holds a {saved!r}; allowed here: {', '.join(places)}. Load it with what saved it")
    return estimator_class(places[saved]).load(path)


def predictor(path: str | PathLike[str]) -> "Predictor | Estimator":
    """Load the predictor of any estimator that was saved, without scikit-learn; densities as estimators.

    Predictions are those of the estimator, to the byte.

    Raises
    ------
    FileError
        As :func:`load` does.
    """
    from fathomless.system import io  # torch comes here

    saved, _ = io.header(path)
    for family in families().values():
        for task, place in family.tasks.items():
            if place.endswith(f":{saved}") and family.networks is not None and task != "density":
                from fathomless.estimators.predictor import load_predictor

                return load_predictor(
                    path, saved, cast("type[Networks]", Family.find(family.networks)), task, family.noise
                )
    from fathomless.estimators.tasks import Supervised

    found = load(path)
    return found.predictor_ if isinstance(found, Supervised) else found


def references(*names: str) -> tuple[Reference, ...]:
    """Return what to cite for some families, or for all of them: the software first.

    Examples
    --------
    >>> [reference.year for reference in references("depth")]
    [None, 2022]
    """
    chosen = [families()[name] for name in names] if names else families().values()
    return (SOFTWARE, *(paper for family in chosen for paper in family.papers))
