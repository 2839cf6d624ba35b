"""Options of the version before that have another name or place now, accepted for one version with a warning.

The tables are read by constructors, ``set_params``, the command line, saved models and the manifests of runs.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from fathomless.estimators.declaring import (
    OptionValue,
    nested_fields,
    plain_name,
    replaced,
    shortened,
    simplest,
    value_of,
)
from fathomless.estimators.values import Folds
from fathomless.system.errors import DataError

__all__ = [
    "MOVED",
    "RENAMED",
    "Moved",
    "Renamed",
    "Renaming",
    "accepted",
    "check_methods",
    "from_saved",
    "has_old_names",
    "moved",
    "rename",
    "renamed",
    "renaming",
    "warn",
    "warn_renamed",
]

_STRATEGY = "return a strategy from _strategy, a value with infer(problem, table, session)"
_PLAN = "return the split of rows, and refuse streams, in _split_plan"
_CHAINS = "return MarkovChains of a SampledPosterior from _strategy"
_REMOVED = {  # methods of families of earlier versions, and what is to be done in their place
    "_infer": _STRATEGY,
    "_warn": "put warnings into the Fitted of the strategy, or of a step after it",
    "_share_held_out": _PLAN,
    "_against_streams": _PLAN,
    "_fold_plan": _PLAN,
    "_set_predictions": "apply options of predictions in _build_model",
    "_sampler": _CHAINS,
    "_log_density": _CHAINS,
    "_model_of": _CHAINS,
    "_noise_of": _CHAINS,
}


def _never(options: Any) -> bool:
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
    whole : callable
        Returns True if a value of the old option is one of the new option itself, and not of `name`.
    default : object
        Default in the version before, if it was another one.
    """

    option: str
    choice: str | None
    name: str
    implied: Callable[[Mapping[str, Any]], bool] = _never
    whole: Callable[[Any], bool] = _never
    default: Any = _SAME

    @property
    def nested(self) -> str:
        """Name for ``set_params``."""
        return f"{self.option}__{self.name}"


def _by_bound(options: Mapping[str, Any]) -> bool:
    """Return True if "auto" fits the posterior over structure by the evidence bound, whatever the data."""
    cv = options.get("cv", "auto")
    splits = options.get("cv__n_splits", cv.n_splits if isinstance(cv, Folds) else cv)
    one_network = isinstance(splits, str | int) and splits in ("auto", 1)
    none_held_out = options.get("validation_fraction", "auto") == 0 and one_network
    return none_held_out or options.get("weights", "map") in ("meanfield", "sparse")


_ELBO = {"structure_rate": "rate", "structure_delay": "delay"}
_OF_DEPTH = {"structure_optimizer": "optimizer", "structure_radius": "radius", "initial_depth": "initial_depth"}
_PATH = ("prior", "rate", "initial", "drift", "rank", "knots", "transition", "estimator")
_SOLVER = ("steps", "predict_steps", "jitter", "gradient")
_HMC = ("chains", "sweeps", "leapfrogs", "states", "structure_weights")


def _is_array(folds: Any) -> bool:
    return not isinstance(folds, str)


#: Class of the options of a family -> name in the version before -> new place.
MOVED: Mapping[str, Mapping[str, Moved]] = {
    "TableOptions": {"checkpoint_seconds": Moved("checkpoint", "checkpoint", "seconds")},
    "VariationalOptions": {
        "restarts": Moved("n_restarts", "restarts", "keep"),
        "schedule": Moved("optimizer", "adam", "schedule"),
        "clip_norm": Moved("optimizer", "adam", "clip_norm", default=None),
        "warm_up": Moved("optimizer", "adam", "warm_up", default=0.0),
    },
    "CrossFitOptions": {
        "members": Moved("cv", "folds", "n_splits"),
        "repeats": Moved("cv", "folds", "n_repeats"),
        "folds": Moved("cv", "folds", "order", whole=_is_array),
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


@dataclass(frozen=True)
class Renamed:
    """New name of an option, and of some of its values.

    Attributes
    ----------
    name : str
        New name of the option.
    values : mapping
        Old value -> new value, where a value has another name too.
    """

    name: str
    values: Mapping[str, str] = field(default_factory=dict)

    def value(self, old: Any) -> Any:
        """Return the value under the name that it has now."""
        return self.values.get(old, old) if isinstance(old, str) else old


#: Class of the options of a family -> name in the version before -> new name.
RENAMED: Mapping[str, Mapping[str, Renamed]] = {
    "CrossFitOptions": {"vary": Renamed("candidates")},
    "DepthOptions": {"head": Renamed("last_layer", {"bayes": "conjugate"})},
}


def renamed(kind: type) -> Mapping[str, Renamed]:
    """Return old name -> new name of the options of a class, or of an estimator, that were renamed.

    Examples
    --------
    >>> from fathomless.families.depth.options import DepthOptions
    >>> renamed(DepthOptions)["head"].name
    'last_layer'
    """
    return {old: new for base in reversed(kind.__mro__) for old, new in RENAMED.get(base.__name__, {}).items()}


def has_old_names(kind: type) -> bool:
    """Return True if options of a class, or of an estimator, were renamed or moved."""
    return bool(renamed(kind) or moved(kind))


def rename(kind: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return options by their new names, and the old names that were used. Options that moved keep their names.

    Raises
    ------
    DataError
        If an option is given by its old and its new name.
    """
    names = renamed(kind)
    used = [old for old in names if old in given]
    for old in used:
        new = names[old].name
        if new in given:
            raise DataError(
                f"{old}={shortened(given[old])} was given with {new}={shortened(given[new])}; {old} is the old name of "
                f"{new}: leave it out"
            )
    options = {
        names[name].name if name in names else name: names[name].value(value) if name in names else value
        for name, value in given.items()
    }
    return options, used


def warn_renamed(kind: type, given: Mapping[str, Any], used: Iterable[str], stacklevel: int = 2) -> None:
    """Warn of each old name in `used`; `given` are the options as they were given."""
    for old in used:
        new = renamed(kind)[old]
        text = f"{old} will be removed in the next version; use {new.name}={shortened(new.value(given[old]))}"
        warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def moved(kind: type) -> Mapping[str, Moved]:
    """Return name in the version before -> new place, for a class of options or an estimator, with those of its bases.

    Examples
    --------
    >>> from fathomless.families.depth.options import DepthOptions
    >>> moved(DepthOptions)["chains"].nested
    'weights__chains'
    """
    return {old: place for base in reversed(kind.__mro__) for old, place in MOVED.get(base.__name__, {}).items()}


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
    before : mapping
        Options that they change, by name.
    """

    options: dict[str, Any]
    nested: dict[str, Any]
    effective: dict[str, Moved]
    idle: dict[str, Moved]
    before: Mapping[str, Any]


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
    found = Renaming(options, {}, {}, {}, before or {})
    for old, place in places.items():
        declared = _declared(kind)[place.option]
        _refuse_both(old, place, given, declared)
        now = options.get(place.option, (before or {}).get(place.option, declared.default))
        value = value_of(declared, now)
        if place.whole(given[old]):
            _take_whole(found, old, place, given[old], value)
            continue
        if value is None or place.name not in nested_fields(declared, type(value)):
            automatic = isinstance(now, str) and now == "auto"
            if not automatic or not place.implied({**(before or {}), **options}):
                found.idle[old] = place
                continue
            options[place.option] = place.choice
        if place.name == plain_name(declared) and not isinstance(now, OptionValue):
            options[place.option] = given[old]
        else:
            found.nested[place.nested] = given[old]
        found.effective[old] = place
    return found


def _refuse_both(old: str, place: Moved, given: Mapping[str, Any], declared: Field[Any]) -> None:
    """Refuse an option that is given by its old and its new name."""
    plain, whole = place.name == plain_name(declared) or place.whole(given[old]), given.get(place.option)
    if place.nested in given or isinstance(whole, OptionValue) or (plain and place.option in given):
        new = place.nested if place.nested in given else place.option
        raise DataError(
            f"{old}={shortened(given[old])} was given with {new}={shortened(given[new])}; {old} is the old name of "
            f"{place.nested}: leave it out"
        )


def _take_whole(found: Renaming, old: str, place: Moved, given: Any, before: OptionValue | None) -> None:
    """Let the value of an old option be the new option, as an array of folds is; what the array has not is idle.

    One network has no folds, and an array is idle then.
    """
    if isinstance(before, Folds) and found.nested.get(f"{place.option}__n_splits", before.n_splits) == 1:
        found.idle[old] = place
        return
    for name in [name for name, other in found.effective.items() if other.option == place.option]:
        found.idle[name] = found.effective.pop(name)
        found.nested.pop(found.idle[name].nested, None)
    found.options[place.option] = given
    found.effective[old] = place


def _declared(kind: type) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(kind)}


def _values(kind: type, found: Renaming) -> dict[str, Any]:
    """Return options with their values, of which one that has all defaults is its name."""
    declared, options = _declared(kind), dict(found.options)
    for name in dict.fromkeys(place.option for place in found.effective.values()):
        places = [place for place in found.effective.values() if place.option == name]
        own = {place.name: found.nested[place.nested] for place in places if place.nested in found.nested}
        if own:
            one = declared[name]
            now = options.get(name, found.before.get(name, one.default))
            options[name] = simplest(one, replaced(one, now, own))
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
            declared, choice = _declared(kind)[option], next(iter(own.values())).choice
            value = value_of(declared, found.options.get(option, found.before.get(option, declared.default)))
            class_ = (declared.metadata["values"][choice] if idle or value is None else type(value)).__name__
            remedy = f"use {option}={class_}({', '.join(f'{p.name}={given[old]!r}' for old, p in own.items())})"
            without = f", and has no effect unless {option} is {choice!r}" if idle else ""
            if plain_name(declared):
                remedy = "leave it out" if idle else f"use {option}={shortened(_values(kind, found)[option])}"
                without = ", and has no effect here" if idle else ""
            text = f"{' and '.join(own)} will be removed in the next version{without}; {remedy}"
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
    original = given
    given, used = rename(kind, given)
    warn_renamed(kind, original, used, stacklevel=3)
    if not moved(kind).keys() & given.keys():
        return given
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
    given, _ = rename(kind, given)
    changed, _ = rename(kind, changed)
    if not moved(kind).keys() & given.keys():
        return given, changed
    declared = _declared(kind)

    def of_default(name: str, value: Any) -> bool:
        place = moved(kind).get(name)
        if place is None or place.whole(value):
            return False
        class_ = declared[place.option].metadata["values"][place.choice]
        inner = nested_fields(declared[place.option], class_)[place.name]
        return bool(value == (inner.default if place.default is _SAME else place.default))

    every = (
        {name: value for name, value in one.items() if not of_default(name, value)} for one in (given, given | changed)
    )
    before, now = (renaming(kind, one) for one in every)
    if effective := {**before.effective, **now.effective}:
        old = ", ".join(effective)
        names = dict.fromkeys(name for place in effective.values() for name in (place.nested, place.option))
        new = {**before.options, **now.options, **before.nested, **now.nested}
        listed = ", ".join(f"{name}={shortened(new[name])}" for name in names if name in new)
        text = f"a saved model has options with old names ({old}), now {listed}; save it again for the next version"
        warnings.warn(text, FutureWarning, stacklevel=4)
    options, later = _values(kind, before), _values(kind, now)
    return options, {name: value for name, value in later.items() if name not in options or value != options[name]}


def check_methods(kind: type) -> None:
    """Refuse an estimator that defines methods of earlier versions, which nothing calls any more.

    Raises
    ------
    DataError
        With what to define in their place.
    """
    for name, instead in _REMOVED.items():
        if name in vars(kind):
            raise DataError(
                f"{kind.__name__} defines {name}, which only earlier versions of fathomless call; {instead}: see "
                "'Your own family' in the documentation"
            )
