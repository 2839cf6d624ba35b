"""Options of the estimators as flags of the command line, and messages of the library in these words."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, cast

from fathomless.estimators.declaring import classes_with_option, describe, nested_options, value_of
from fathomless.estimators.options import COMMON, options_of
from fathomless.estimators.renamed import moved, rename, renamed, renaming
from fathomless.families.family import Family
from fathomless.families.registry import families, options
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["add_option", "flag_of", "group_of", "nested_arguments", "old_arguments", "options_asked", "spoken"]


def spoken(message: str) -> str:
    """Say a message of the library in the words of the command line: an option's name="value" is --name value.

    The command line has no estimators, so that their names are left out where messages begin with one.

    Examples
    --------
    >>> spoken("UnboundedDepthRegressor: y has gaps")
    'y has gaps'
    >>> spoken('Fill them, or fit with missing="impute" and n_restarts=3')
    'Fill them, or fit with --missing impute and --n-restarts 3'
    >>> spoken("learning_rate=nan was given; lower width (now 8)")
    '--learning-rate nan was given; lower --width (now 8)'
    >>> spoken("weights__chains=1 was given; raise weights__sweeps (now 400)")
    '--hmc.chains 1 was given; raise --hmc.sweeps (now 400)'
    >>> spoken("cv=0 was given; a whole number, or 'auto', or Folds(...) is allowed")
    "--cv 0 was given; a whole number, or 'auto' is allowed"
    >>> spoken("weights='hmc' was given; 0 <= validation_fraction < 1 is allowed")
    '--weights hmc was given; 0 <= --validation-fraction < 1 is allowed'
    """
    try:
        found = families()
    except DataError:  # of a package that brings a broken one, which is then what there is to say
        return message
    every = ((family, task) for family in found.values() for task in family.tasks)
    known = {name for family, task in every for name in options(family, task)} | {"methods"}
    known |= {name for family in found.values() for name, *_ in nested_options(options_of(family.options))}
    known |= {old for family in found.values() for old in (*moved(family.options), *renamed(family.options))}
    speakers = {f"{name}: " for family in found.values() for name in family.estimators}
    message = next((message.removeprefix(one) for one in speakers if message.startswith(one)), message)

    def say(found: re.Match[str]) -> str:
        name, text, bare = found.groups()
        if name not in known:
            return found[0]
        if bare in ("True", "False"):
            return flag_of(name) if bare == "True" else flag_of(f"no_{name}")
        return f"{flag_of(name)} {'none' if bare == 'None' else text or bare}"

    def name_alone(found: re.Match[str]) -> str:
        return flag_of(found[0]) if found[0] in known else found[0]

    message = message.replace("or fit with unseen=", "or give unseen=")  # to the command that meets them
    message = re.sub(r",? (?:and|or) (?:\w+=)?[A-Z]\w*\(\.\.\.\)", "", message)  # values that Python alone can give
    value = r"\b([a-z_]+)=(?:[\"']([^\"' ]+)[\"']|(True|False|None|-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf))\b)"
    told = re.sub(value, say, message)
    return re.sub(r"(?<![\w'\"./-])(?:[a-z]+(?:_+[a-z]+)+(?![\w'\"./=(-])|[a-z]+(?= \(now ))", name_alone, told)


def flag_of(name: str) -> str:
    """Return the flag of an option by its name, nested or not.

    Examples
    --------
    >>> flag_of("batch_size"), flag_of("weights__structure_weights")
    ('--batch-size', '--hmc.structure-weights')
    >>> flag_of("cv__n_splits"), flag_of("cv__n_repeats")
    ('--cv', '--folds.n-repeats')
    """
    outer, _, inner = name.partition("__")
    for family in families().values() if inner else ():
        for option in options_of(family.options):
            if option.name == outer and classes_with_option(option, inner):
                return _nested_flag(option, inner)
    return f"--{name.replace('_', '-')}"


def _nested_flag(option: "Field[Any]", inner: str) -> str:
    """Return the flag of an option of a value; that of the outer option gives the one that may be given alone."""
    if inner in {class_.plain for class_ in classes_with_option(option, inner).values()}:
        return f"--{option.name.replace('_', '-')}"
    return f"--{_prefix(option, inner)}.{inner.replace('_', '-')}"


def _prefix(option: "Field[Any]", inner: str) -> str:
    """Return the choice that has an option alone, or the option itself if it is one value, or several choices share."""
    choices = classes_with_option(option, inner)
    (key, class_), *others = choices.items()
    alone = not others and (bool(class_.plain) or option.metadata["kind"] == "choice")
    return str(key) if alone else option.name


def nested_arguments(group: Any) -> None:
    """Offer the options of values, such as ``--hmc.chains``.

    Parameters
    ----------
    group : argument group
        Group of the command's parser.
    """
    declared: dict[str, dict[str, Field[Any]]] = {}  # prefix.nested name -> structure -> its declaration there
    said: dict[str, tuple[str, str]] = {}  # prefix.nested name -> flag, text
    for structure, family in families().items():
        for name, option, key, inner in nested_options(options_of(family.options)):
            class_ = option.metadata["values"][key]
            if inner.name == class_.plain or inner.metadata["kind"] == "object":  # the latter are for Python alone
                continue
            dest = f"{_prefix(option, inner.name)}.{name}"
            declared.setdefault(dest, {})[structure] = inner
            text = describe(class_)[inner.name][1].rstrip(".")
            choices = " or ".join(filter(None, classes_with_option(option, inner.name)))
            needed = f"; with {flag_of(option.name)} {choices}" if choices and not class_.plain else ""
            said[dest] = _nested_flag(option, inner.name), f"{text}{needed}"
    for name, found in declared.items():
        flag, text = said[name]
        add_option(group, flag, name, found, text)


def old_arguments(parser: argparse.ArgumentParser, known: set[str]) -> list[str]:
    """Take options by the names of the version before, which the help does not show; return their flags.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    known : set of str
        Names that are taken.
    """
    flags = []
    for family in families().values():
        inner = {name: option for name, _, _, option in nested_options(options_of(family.options))}
        plain = {option.name: option for option in options_of(family.options)}
        for old, new in renamed(family.options).items():
            if old not in known and plain[new.name].metadata["kind"] != "object":
                known.add(old)
                add_option(parser, flag_of(old), old, {family.name: plain[new.name]}, "").help = argparse.SUPPRESS
                _accept_also(parser._option_string_actions[flag_of(old)], new.values)
                flags.append(flag_of(old))
        for old, place in moved(family.options).items():
            declared = inner[place.nested]
            if old in known:
                _also(parser._option_string_actions.get(flag_of(old)), declared)
            elif declared.metadata["kind"] != "object":
                known.add(old)
                add_option(parser, flag_of(old), old, {family.name: declared}, "").help = argparse.SUPPRESS
                flags.append(flag_of(old))
    return flags


def _accept_also(action: argparse.Action, names: Iterable[str]) -> None:
    """Let the flag of a renamed option take the old names of its values too."""
    if action.choices is not None:
        action.choices = (*action.choices, *names)


def _also(action: argparse.Action | None, declared: "Field[Any]") -> None:
    """Let the flag of an option take the choices of an old option of its name too, which the help does not show."""
    more = [] if action is None or action.choices is None else sorted({*declared.metadata["names"]} - {*action.choices})
    if action is not None and action.choices is not None and more:
        action.metavar = action.metavar or "{" + ",".join(action.choices) + "}"
        action.choices = (*action.choices, *more)


def group_of(name: str, declared: Mapping[str, Any]) -> str:
    """Say under which heading an option stands."""
    if name in COMMON:
        return "training"
    if "depth" in declared:
        return "the network"
    return f"only of --structure {next(iter(declared))}" if len(declared) == 1 else "of several other structures"


def _defaults(declared: Mapping[str, "Field[Any]"]) -> str:
    """Say what an option is by default: "(default: 64)", and what it is with other structures than "depth"."""
    said: dict[str, list[str]] = {}
    for structure, option in declared.items():
        said.setdefault(_worded(option.default), []).append(structure)
    return " ".join(f"({'default' if 'depth' in of else ', '.join(of)}: {value})" for value, of in said.items())


def add_option(group: Any, flag: str, name: str, declared: Mapping[str, "Field[Any]"], text: str) -> argparse.Action:
    """Offer an option of the estimators, as far as text can say it."""
    option = next(iter(declared.values()))
    kind = option.metadata["kind"]
    names, special = (  # structures may differ in what they allow
        tuple(dict.fromkeys(value for each in declared.values() for value in each.metadata[key]))
        for key in ("names", "special")
    )
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("`", "").rstrip(".")
    text = f"{text} {_defaults(declared)}".replace("%", "%%")
    common: dict[str, Any] = {"dest": f"option_{name}", "default": argparse.SUPPRESS, "help": text}
    if kind == "flag":
        made = group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif kind == "choice" and int not in special and None not in special:
        made = group.add_argument(flag, choices=names, **common)
    else:
        metavar = {"whole": "N", "real": "X", "choice": "NAME|N"}.get(kind, "NAME")
        plain = [_worded(other) for other in special if not isinstance(other, type)]
        metavar = "|".join([*plain, metavar])
        made = group.add_argument(flag, type=_reader(kind, names, special), metavar=metavar, **common)
    return cast(argparse.Action, made)


def _worded(value: object) -> str:
    return (
        {None: "none", True: "yes", False: "no"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


def _none(text: str) -> Any:
    raise ValueError(text)


def _reader(kind: str, names: Sequence[str], allowed: Sequence[Any]) -> Callable[[str], Any]:
    """Return what turns the text of an option into its value."""
    special = {_worded(other): other for other in allowed if not isinstance(other, type)}
    plain: Callable[[str], Any] = {"whole": int, "real": float, "choice": int if int in allowed else _none}.get(
        kind, str
    )

    def read(text: str) -> Any:
        if text in special or text in names:
            return special.get(text, text)
        try:
            return plain(text)
        except ValueError:
            word = {"real": "a number", "choice": "a whole number" if int in allowed else ""}.get(
                kind, "a whole number"
            )
            raise argparse.ArgumentTypeError(
                f"{text!r} was given; allowed: {', '.join(filter(None, [word, *names, *special]))}"
            ) from None

    return read


def options_asked(asked: Mapping[str, Any], family: Family, task: str) -> tuple[dict[str, Any], list[str]]:
    """Return the options of an estimator that a command asks for, checked; and sentences about old names.

    Parameters
    ----------
    asked : mapping
        Options as the parser has them; one of a value is ``hmc.weights__chains``.
    family : Family
        Family of the estimator.
    task : str
        Task of the estimator.

    Returns
    -------
    options : dict
        Options by name; of values by nested name, such as ``weights__chains``.
    deprecated : list of str
        A sentence for every option that was given by its name in the version before.

    Raises
    ------
    DataError
        For an option of another structure, task or choice, one that is given by both its names, and a value that is not
        allowed.
    """
    declared = _declared(family, task)
    options_given, old_names = rename(family.options, {name.rpartition(".")[2]: v for name, v in asked.items()})
    found = renaming(family.options, options_given)
    old_places = {*moved(family.options), *renamed(family.options)}
    if foreign := sorted(set(asked) - set(declared) - old_places):
        raise DataError(_foreign(foreign[0], family.name))
    for name in asked:
        prefix, _, nested = name.rpartition(".")
        outer, _, inner = nested.partition("__")
        given = found.options.get(outer, declared[outer].default) if prefix else None
        choices = classes_with_option(declared[outer], inner) if prefix else {}
        if prefix and type(value_of(declared[outer], given)) not in choices.values():
            needed = f"{flag_of(outer)} {' or '.join(map(str, choices))}"
            raise DataError(
                f"{flag_of(nested)} was given with {flag_of(outer)} {_worded(given)}; it is an option of {needed}: add "
                f"{needed}, or leave {flag_of(nested)} out"
            )
    wanted = {**found.options, **found.nested}
    metadata = {name.rpartition(".")[2]: option.metadata for name, option in declared.items()}
    for name, value in wanted.items():  # now, before a run begins
        checks.option(name, value, **metadata[name])
    said = [f"{flag_of(old)} is deprecated; use {flag_of(place.nested)}" for old, place in found.effective.items()]
    said += [f"{flag_of(old)} is deprecated; use {flag_of(renamed(family.options)[old].name)}" for old in old_names]
    for old, place in found.idle.items():
        needed = f"{flag_of(place.option)} {place.choice}"
        said.append(f"{flag_of(old)} is deprecated, and has no effect without {needed}; use {flag_of(place.nested)}")
    return wanted, said


def _declared(family: Family, task: str) -> "dict[str, Field[Any]]":
    """Return the options of a family for a task as the parser names them, those of values among them."""
    declared = options(family, task)
    nested = nested_options(tuple(declared.values()))
    return {**declared, **{f"{_prefix(option, inner.name)}.{name}": inner for name, option, _, inner in nested}}


def _foreign(name: str, structure: str) -> str:
    """Say where an option belongs that this task or this structure has not."""
    having = [other for other, family in families().items() if name in _declared(family, "regression")]
    flag = flag_of(name.rpartition(".")[2])
    if structure in having:
        return f"{flag} was given, which is for numbers; the target is a class"
    return f"{flag} was given, which --structure {structure} has not; it is for --structure {' or '.join(having)}"
