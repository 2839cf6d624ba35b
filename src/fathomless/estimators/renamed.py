"""Options of the version before that have another place now, accepted for one version with a warning.

The tables are read by constructors, ``set_params``, the command line, saved models and the manifests of runs.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from fathomless.estimators.declaring import OptionValue, nested_fields, replaced, value_of
from fathomless.system.errors import DataError

__all__ = ["MOVED", "Moved", "Renaming", "accepted", "from_saved", "moved", "renaming", "warn"]


def _never(options: Mapping[str, Any]) -> bool:
    return False


_SAME = object()  # default that has not changed


@dataclass(frozen=True)
class Moved:
    """New place of an option.

    Attributes
    ----------
    option : str
        Option that takes a value with options.
    choice : str or None
        Choice of it that the value belongs to; of several the default one. None for an option that is one value.
    name : str
        Name of the option there.
    implied : callable
        Returns True if ``"auto"`` means this choice with the other options, by name, whatever the data.
    default : object
        Default in the version before, if it was another one.
    """

    option: str
    choice: str | None
    name: str
    implied: Callable[[Mapping[str, Any]], bool] = _never
    default: Any = _SAME

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
_PATH = ("prior", "rate", "initial", "drift", "rank", "knots", "transition", "estimator")
_SOLVER = ("steps", "predict_steps", "jitter", "gradient")
_HMC = ("chains", "sweeps", "leapfrogs", "states", "structure_weights")

#: Class of the options of a family -> name in the version before -> new place.
MOVED: Mapping[str, Mapping[str, Moved]] = {
    "TableOptions": {"checkpoint_seconds": Moved("checkpoint", None, "seconds")},
    "VariationalOptions": {
        "schedule": Moved("optimizer", "adam", "schedule"),
        "clip_norm": Moved("optimizer", "adam", "clip_norm", default=None),
        "warm_up": Moved("optimizer", "adam", "warm_up", default=0.0),
    },
    "DepthOptions": {
        **{name: Moved("weights", "hmc", name) for name in _HMC},
        **{old: Moved("structure_from", "elbo", new, _by_bound) for old, new in (_ELBO | _OF_DEPTH).items()},
    },
    "ContinuousOptions": {
        **{old: Moved("structure_from", "elbo", new, _by_bound) for old, new in _ELBO.items()},
        "clip_norm": Moved("optimizer", "adam", "clip_norm", default=10.0),
        "warm_up": Moved("optimizer", "adam", "warm_up", default=0.5),
        **{name: Moved("path", None, name) for name in _PATH},
        **{name: Moved("solver", "heun", name) for name in _SOLVER},
        **{old: Moved("horizon", "random", new) for old, new in (("horizons", "count"), ("horizon_prior", "prior"))},
    },
}


def moved(kind: type) -> Mapping[str, Moved]:
    """Return name in the version before -> new place, for a class of options or an estimator.

    Examples
    --------
    >>> from fathomless.families.depth.options import DepthOptions
    >>> moved(DepthOptions)["chains"].nested
    'weights__chains'
    """
    found: dict[str, Moved] = {}
    for base in reversed(kind.__mro__):
        found.update(MOVED.get(base.__name__, {}))
    return found


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
    classes : dict
        Option -> class of the value that it has or would need.
    objects : dict
        Option -> object, such as a path, that stands for its value.
    """

    options: dict[str, Any]
    nested: dict[str, Any]
    effective: dict[str, Moved]
    idle: dict[str, Moved]
    classes: dict[str, type]
    objects: dict[str, Any]


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
    found = Renaming(options, {}, {}, {}, {}, {})
    for old, place in places.items():
        if place.nested in options or isinstance(options.get(place.option), OptionValue):
            new = place.nested if place.nested in options else place.option
            raise DataError(
                f"{old}={given[old]!r} was given with {new}={options[new]!r}; {old} is the old name of {place.nested}: "
                "leave it out"
            )
        declared = _declared(kind)[place.option]
        now = options.get(place.option, (before or {}).get(place.option, declared.default))
        found.classes[place.option] = declared.metadata["values"][place.choice]
        value = value_of(declared, now)
        if value is not None and place.name in nested_fields(declared, type(value)):
            found.classes[place.option] = type(value)
            if isinstance(now, value.plain):
                found.objects[place.option] = now
        else:
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
        before = options.get(name, one.default)
        made = replaced(one, before, own)
        options[name] = before if made == value_of(one, before) else made
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
            choice, class_ = next(iter(own.values())).choice, found.classes[option].__name__
            old = " and ".join(own)
            inner = [repr(found.objects[option])] if option in found.objects else []
            inner += [f"{place.name}={given[name]!r}" for name, place in own.items()]
            new = f"{option}={class_}({', '.join(inner)})"
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
        before = _declared(class_)[place.name].default if place.default is _SAME else place.default
        return bool(value == before)

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
