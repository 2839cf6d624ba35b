"""Options of the version before that have another place now, accepted for one version with a warning.

The tables are read by constructors, ``set_params``, the command line, saved models and the manifests of runs.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from fathomless.estimators.declaring import OptionValue, chosen, replaced
from fathomless.system.errors import DataError

__all__ = ["MOVED", "Moved", "Renaming", "accepted", "from_saved", "moved", "renaming", "warn"]


def _never(options: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class Moved:
    """New place of an option.

    Attributes
    ----------
    option : str
        Option that takes a value with options.
    choice : str
        Choice of it that the value belongs to.
    name : str
        Name of the option there.
    implied : callable
        Returns True if ``"auto"`` means this choice with the other options, by name, whatever the data.
    """

    option: str
    choice: str
    name: str
    implied: Callable[[Mapping[str, Any]], bool] = _never

    @property
    def nested(self) -> str:
        """Name for ``set_params``."""
        return f"{self.option}__{self.name}"


def _by_bound(options: Mapping[str, Any]) -> bool:
    """Return True if "auto" fits the posterior over structure by the evidence bound, whatever the data."""
    none_held_out = options.get("validation_fraction", "auto") == 0 and options.get("members", "auto") in ("auto", 1)
    return none_held_out or options.get("weights", "map") in ("meanfield", "sparse")


_ELBO = {"structure_rate": "rate", "structure_delay": "delay"}
_OF_DEPTH = {"structure_optimizer": "optimizer", "structure_radius": "radius", "initial_depth": "initial_depth"}
_HMC = ("chains", "sweeps", "leapfrogs", "states", "structure_weights")

#: Class of the options of a family -> name in the version before -> new place.
MOVED: Mapping[str, Mapping[str, Moved]] = {
    "DepthOptions": {
        **{name: Moved("weights", "hmc", name) for name in _HMC},
        **{old: Moved("structure_from", "elbo", new, _by_bound) for old, new in (_ELBO | _OF_DEPTH).items()},
    },
    "ContinuousOptions": {old: Moved("structure_from", "elbo", new, _by_bound) for old, new in _ELBO.items()},
}


def moved(kind: type) -> Mapping[str, Moved]:
    """Return name in the version before -> new place, for a class of options or an estimator.

    Examples
    --------
    >>> from fathomless.families.continuous.options import ContinuousOptions
    >>> sorted(moved(ContinuousOptions))
    ['structure_delay', 'structure_rate']
    """
    return next((MOVED[base.__name__] for base in kind.__mro__ if base.__name__ in MOVED), {})


@dataclass(frozen=True)
class Renaming:
    """Options by their new names.

    Attributes
    ----------
    options : dict
        Options that kept their names.
    nested : dict
        Nested name, such as ``weights__chains`` -> value.
    effective, idle : dict
        Old name -> new place, of options with an effect and without.
    """

    options: dict[str, Any]
    nested: dict[str, Any]
    effective: dict[str, Moved]
    idle: dict[str, Moved]


def renaming(kind: type, given: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Renaming:
    """Sort options of the version before by their new places.

    Parameters
    ----------
    kind : type
        A class of options or an estimator.
    given : mapping
        Options, by their old or new names.
    before : mapping, optional
        Options that they change; the defaults by default.

    Raises
    ------
    DataError
        If an option is given by its old and its new name.
    """
    places = {name: place for name, place in moved(kind).items() if name in given}
    options = {name: value for name, value in given.items() if name not in places}
    found = Renaming(options, {}, {}, {})
    for old, place in places.items():
        if place.nested in options or isinstance(options.get(place.option), OptionValue):
            new = place.nested if place.nested in options else place.option
            raise DataError(
                f"{old}={given[old]!r} was given with {new}={options[new]!r}; {old} is the old name of {place.nested}: "
                "leave it out"
            )
        declared = _declared(kind)[place.option]
        now = options.get(place.option, (before or {}).get(place.option, declared.default))
        if chosen(declared, now) != place.choice:
            if now != "auto" or not place.implied({**(before or {}), **options}):
                found.idle[old] = place
                continue
            options[place.option] = place.choice
        found.nested[place.nested] = given[old]
        found.effective[old] = place
    return found


def _declared(kind: type) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(kind)}


def _values(kind: type, found: Renaming) -> dict[str, Any]:
    """Return options with their values, of which one that has all defaults is its name."""
    declared, options = _declared(kind), dict(found.options)
    for name in dict.fromkeys(place.option for place in found.effective.values()):
        own = {place.name: found.nested[place.nested] for place in found.effective.values() if place.option == name}
        one = declared[name]
        made = replaced(one, options.get(name, one.default), own)
        options[name] = chosen(one, made) if made == type(made)() else made
    return options


def warn(kind: type, found: Renaming, given: Mapping[str, Any], stacklevel: int = 2) -> None:
    """Warn of old names: once for the options that have an effect of each value, and once for those that have none.

    Parameters
    ----------
    kind : type
        A class of options or an estimator.
    found : Renaming
        New places of the options.
    given : mapping
        Options as they were given.
    stacklevel : int
        As of :func:`warnings.warn`, where 1 is the caller.
    """
    for names, idle in ((found.effective, False), (found.idle, True)):
        for option in dict.fromkeys(place.option for place in names.values()):
            own = {old: place for old, place in names.items() if place.option == option}
            choice = next(iter(own.values())).choice
            class_ = _declared(kind)[option].metadata["values"][choice].__name__
            old = " and ".join(own)
            new = f"{option}={class_}({', '.join(f'{place.name}={given[name]!r}' for name, place in own.items())})"
            without = f", and has no effect unless {option} is {choice!r}" if idle else ""
            text = f"{old} will be removed in the next version{without}; use {new}"
            warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def accepted(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a constructor by the names that they have now; warn of old ones.

    Parameters
    ----------
    kind : type
        The estimator.
    given : mapping
        Options, by their old or new names.

    Raises
    ------
    DataError
        If an option is given by its old and its new name.
    """
    if not moved(kind).keys() & given.keys():
        return dict(given)
    found = renaming(kind, given)
    warn(kind, found, given, stacklevel=3)
    return _values(kind, found)


def from_saved(kind: type, given: dict[str, Any], changed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a saved model by the names that they have now, and those that were changed after the fit.

    Options that have their defaults, or had no effect, are left out without a word; a warning names the others.

    Parameters
    ----------
    kind : type
        A class of options.
    given, changed : dict
        Options as plain JSON: of the fit, and of the estimator as far as they differ.
    """
    if not moved(kind).keys() & given.keys():
        return dict(given), dict(changed)
    declared = _declared(kind)

    def of_default(name: str, value: Any) -> bool:
        place = moved(kind).get(name)
        if place is None:
            return False
        class_ = declared[place.option].metadata["values"][place.choice]
        return bool(value == _declared(class_)[place.name].default)

    every = (
        {name: value for name, value in one.items() if not of_default(name, value)} for one in (given, given | changed)
    )
    before, now = (renaming(kind, one) for one in every)
    if new := {**before.nested, **now.nested}:
        old = ", ".join({**before.effective, **now.effective})
        listed = ", ".join(f"{name}={value!r}" for name, value in new.items())
        text = f"a saved model has options with old names ({old}), now {listed}; save it again for the next version"
        warnings.warn(text, FutureWarning, stacklevel=4)
    options, later = _values(kind, before), _values(kind, now)
    return options, {name: value for name, value in later.items() if name not in options or value != options[name]}
