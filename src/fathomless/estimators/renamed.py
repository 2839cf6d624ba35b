"""Renamed and moved options of the previous version, accepted for one version with a warning.

The tables are used by constructors, ``set_params``, the command line, saved models and the manifests of runs.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, NoReturn

from fathomless.estimators.declaring import (
    OptionValue,
    nested_fields,
    plain_name,
    replace_options,
    shorten,
    simplify,
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
    "check_methods",
    "moved_options",
    "old_names",
    "rename_options",
    "rename_saved",
    "renamed_options",
    "translate_options",
    "warn_renamed",
]

_USE_STRATEGY = "return a strategy from _strategy, a value with infer(problem, table, session)"
_USE_PLAN = "return the split of rows from _split_plan, and raise an error for streams there"
_USE_CHAINS = "return MarkovChains of a SampledPosterior from _strategy"
_REMOVED = {  # removed methods of families, and their replacements
    "_infer": _USE_STRATEGY,
    "_warn": "add warnings to the Fitted of the strategy, or of a step after it",
    "_share_held_out": _USE_PLAN,
    "_against_streams": _USE_PLAN,
    "_fold_plan": _USE_PLAN,
    "_set_predictions": "apply options of predictions in _build_model",
    "_sampler": _USE_CHAINS,
    "_log_density": _USE_CHAINS,
    "_model_of": _USE_CHAINS,
    "_noise_of": _USE_CHAINS,
}


def _never(options: Any) -> bool:
    return False


_SAME = object()  # default that has not changed


@dataclass(frozen=True)
class Moved:
    """New place of a renamed option.

    Attributes
    ----------
    option : str
        Option with option values.
    choice : str or None
        Choice of this option that has the nested option; the default one of several. None for an option whose only
        values are option values.
    name : str
        Name of the nested option.
    implied : callable
        Function of the other options, by name, that returns True if ``"auto"`` always means this choice.
    whole : callable
        Function that returns True if a value of the old option is a value of the new option itself, not of `name`.
    default : object
        Default in the previous version, if it was different.
    """

    option: str
    choice: str | None
    name: str
    implied: Callable[[Mapping[str, Any]], bool] = _never
    whole: Callable[[Any], bool] = _never
    default: Any = _SAME

    @property
    def nested(self) -> str:
        """Nested name for ``set_params``."""
        return f"{self.option}__{self.name}"


def _by_bound(options: Mapping[str, Any]) -> bool:
    """Return True if "auto" fits the posterior over structure by the evidence bound for any data."""
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


#: Class of options -> name in the previous version -> new place.
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
        Old value -> new value, for renamed values.
    """

    name: str
    values: Mapping[str, str] = field(default_factory=dict)

    def value(self, old: Any) -> Any:
        """Return a value under its current name."""
        return self.values.get(old, old) if isinstance(old, str) else old


#: Class of options -> name in the previous version -> new name.
RENAMED: Mapping[str, Mapping[str, Renamed]] = {
    "CrossFitOptions": {"vary": Renamed("candidates")},
    "DepthOptions": {"head": Renamed("last_layer", {"bayes": "conjugate"})},
}


def renamed_options(kind: type) -> Mapping[str, Renamed]:
    """Return old name -> new name of renamed options, for a class of options or an estimator and its bases.

    Examples
    --------
    >>> from fathomless.families.depth.options import DepthOptions
    >>> renamed_options(DepthOptions)["head"].name
    'last_layer'
    """
    return {old: new for base in reversed(kind.__mro__) for old, new in RENAMED.get(base.__name__, {}).items()}


def moved_options(kind: type) -> Mapping[str, Moved]:
    """Return name in the previous version -> new place, for a class of options or an estimator and its bases.

    Examples
    --------
    >>> from fathomless.families.depth.options import DepthOptions
    >>> moved_options(DepthOptions)["chains"].nested
    'weights__chains'
    """
    return {old: place for base in reversed(kind.__mro__) for old, place in MOVED.get(base.__name__, {}).items()}


def old_names(kind: type) -> set[str]:
    """Return the option names of the previous version, for a class of options or an estimator and its bases."""
    return {*renamed_options(kind), *moved_options(kind)}


@dataclass(frozen=True)
class Renaming:
    """Options under their new names.

    Attributes
    ----------
    options : dict
        Top-level options: name -> value.
    nested : dict
        Nested options: name, such as ``weights__chains`` -> value.
    renamed : dict
        Old name -> new name, of options that have another name now.
    effective, idle : dict
        Old name -> new place, of options that moved into an option value, with and without an effect.
    before : mapping
        Previous options, by name.
    """

    options: dict[str, Any]
    nested: dict[str, Any]
    renamed: dict[str, Renamed]
    effective: dict[str, Moved]
    idle: dict[str, Moved]
    before: Mapping[str, Any]


def rename_options(kind: type, given: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Renaming:
    """Rename options of the previous version.

    Parameters
    ----------
    kind : type
        Class of options or estimator.
    given : mapping
        Options, by their old or new names.
    before : mapping, optional
        Previous options, which these change; the defaults by default.

    Raises
    ------
    DataError
        If an option is given by its old and its new name.
    """
    names = {old: new for old, new in renamed_options(kind).items() if old in given}
    places = {old: place for old, place in moved_options(kind).items() if old in given}
    options = {name: value for name, value in given.items() if name not in names and name not in places}
    for old, new in names.items():
        if new.name in given:
            _refuse(old, given[old], new.name, given[new.name], new.name)
        options[new.name] = new.value(given[old])
    renaming = Renaming(options, {}, names, {}, {}, before or {})
    for old, place in places.items():
        declared = _declarations(kind)[place.option]
        _refuse_both(old, place, given, declared)
        current = options.get(place.option, (before or {}).get(place.option, declared.default))
        value = value_of(declared, current)
        if place.whole(given[old]):
            _take_whole(renaming, old, place, given[old], value)
            continue
        if value is None or place.name not in nested_fields(declared, type(value)):
            automatic = isinstance(current, str) and current == "auto"
            if not automatic or not place.implied({**(before or {}), **options}):
                renaming.idle[old] = place
                continue
            options[place.option] = place.choice
        if place.name == plain_name(declared) and not isinstance(current, OptionValue):
            options[place.option] = given[old]
        else:
            renaming.nested[place.nested] = given[old]
        renaming.effective[old] = place
    return renaming


def _refuse_both(old: str, place: Moved, given: Mapping[str, Any], declared: Field[Any]) -> None:
    """Check that an option is not given by both its old and its new name."""
    plain = place.name == plain_name(declared) or place.whole(given[old])
    if place.nested in given or isinstance(given.get(place.option), OptionValue) or (plain and place.option in given):
        new = place.nested if place.nested in given else place.option
        _refuse(old, given[old], new, given[new], place.nested)


def _refuse(old: str, value: Any, new: str, new_value: Any, current: str) -> NoReturn:
    """Raise the error for an option that is given by two names; `current` is its name now."""
    raise DataError(
        f"{old}={shorten(value)} was given with {new}={shorten(new_value)}, but {old} is the old name of {current}; "
        "leave it out"
    )


def _take_whole(renaming: Renaming, old: str, place: Moved, given: Any, before: OptionValue | None) -> None:
    """Use the value of an old option as the new option, such as an array of folds; related options have no effect.

    An array has no effect for a single network, which has no folds.
    """
    if isinstance(before, Folds) and renaming.nested.get(f"{place.option}__n_splits", before.n_splits) == 1:
        renaming.idle[old] = place
        return
    for name in [name for name, other in renaming.effective.items() if other.option == place.option]:
        renaming.idle[name] = renaming.effective.pop(name)
        renaming.nested.pop(renaming.idle[name].nested, None)
    renaming.options[place.option] = given
    renaming.effective[old] = place


def _declarations(kind: type) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(kind)}


def _values(kind: type, renaming: Renaming) -> dict[str, Any]:
    """Return the options with nested ones merged into option values, or into names if all have their defaults."""
    options = dict(renaming.options)
    for name in dict.fromkeys(place.option for place in renaming.effective.values()):
        places = [place for place in renaming.effective.values() if place.option == name]
        entries = {place.name: renaming.nested[place.nested] for place in places if place.nested in renaming.nested}
        if entries:
            declared = _declarations(kind)[name]
            current = options.get(name, renaming.before.get(name, declared.default))
            options[name] = simplify(declared, replace_options(declared, current, entries))
    return options


def warn_renamed(kind: type, renaming: Renaming, given: Mapping[str, Any], stacklevel: int = 2) -> None:
    """Warn of old names: once for each renamed option, and once for each option value, separately without an effect.

    Parameters
    ----------
    kind : type
        Class of options or estimator.
    renaming : Renaming
        New places of the options.
    given : mapping
        Options by their old or new names.
    stacklevel : int
        As in :func:`warnings.warn`, where 1 is the caller.
    """
    for old, new in renaming.renamed.items():
        text = f"{old} will be removed in the next version; use {new.name}={shorten(new.value(given[old]))}"
        warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)
    for names, idle in ((renaming.effective, False), (renaming.idle, True)):
        for option in dict.fromkeys(place.option for place in names.values()):
            places = {old: place for old, place in names.items() if place.option == option}
            declared = _declarations(kind)[option]
            choice = next(iter(places.values())).choice
            value = value_of(declared, renaming.options.get(option, renaming.before.get(option, declared.default)))
            class_ = (declared.metadata["values"][choice] if idle or value is None else type(value)).__name__
            entries = ", ".join(f"{place.name}={given[old]!r}" for old, place in places.items())
            remedy = f"use {option}={class_}({entries})"
            effect = f", and has no effect unless {option} is {choice!r}" if idle else ""
            if plain_name(declared):
                remedy = "leave it out" if idle else f"use {option}={shorten(_values(kind, renaming)[option])}"
                effect = ", and has no effect here" if idle else ""
            text = f"{' and '.join(places)} will be removed in the next version{effect}; {remedy}"
            warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def translate_options(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a constructor under their current names; warn of old names.

    Parameters
    ----------
    kind : type
        Estimator.
    given : mapping
        Options, by their old or new names.

    Raises
    ------
    DataError
        If an option is given by its old and its new name.
    """
    if not old_names(kind) & given.keys():
        return dict(given)
    renaming = rename_options(kind, given)
    warn_renamed(kind, renaming, given, stacklevel=3)
    return _values(kind, renaming)


def rename_saved(kind: type, given: dict[str, Any], changed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a saved model under their current names, and those that were changed after the fit.

    Old names whose options had their defaults or no effect are dropped silently; a warning lists the others.

    Parameters
    ----------
    kind : type
        Class of options.
    given, changed : dict
        Options as plain JSON: those of the fit, and those that were changed afterwards.
    """
    if not old_names(kind) & given.keys():
        return dict(given), dict(changed)
    declared = _declarations(kind)

    def of_default(name: str, value: Any) -> bool:
        place = moved_options(kind).get(name)
        if place is None or place.whole(value):
            return False
        class_ = declared[place.option].metadata["values"][place.choice]
        inner = nested_fields(declared[place.option], class_)[place.name]
        return bool(value == (inner.default if place.default is _SAME else place.default))

    def without_defaults(options: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if not of_default(name, value)}

    before = rename_options(kind, without_defaults(given))
    now = rename_options(kind, without_defaults(given | changed))
    if effective := {**before.effective, **now.effective}:
        old = ", ".join(effective)
        names = dict.fromkeys(name for place in effective.values() for name in (place.nested, place.option))
        new = {**before.options, **now.options, **before.nested, **now.nested}
        listed = ", ".join(f"{name}={shorten(new[name])}" for name in names if name in new)
        text = f"a saved model has options with old names ({old}), now {listed}; save it again before the next version"
        warnings.warn(text, FutureWarning, stacklevel=4)
    options, later = _values(kind, before), _values(kind, now)
    return options, {name: value for name, value in later.items() if name not in options or value != options[name]}


def check_methods(kind: type) -> None:
    """Check that an estimator does not define methods that only earlier versions called.

    Raises
    ------
    DataError
        If it does; the message names the replacement.
    """
    for name, replacement in _REMOVED.items():
        if name in vars(kind):
            raise DataError(
                f"{kind.__name__} defines {name}, which only earlier versions of fathomless call; {replacement}: see "
                "'Your own family' in the documentation"
            )
