"""Options of the estimators as flags of the command line, and translation of messages to flags."""

import argparse
import ast
import contextlib
import csv
import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, cast

from fathomless.estimators.declaring import classes_with_option, describe, nested_options, value_of
from fathomless.estimators.options import COMMON, options_of
from fathomless.estimators.renamed import moved_options, old_names, rename_options, renamed_options
from fathomless.families.family import Family
from fathomless.families.registry import families, options
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = [
    "add_nested_arguments",
    "add_old_arguments",
    "add_option",
    "check_options",
    "flag_of",
    "group_of",
    "translate_message",
]


def translate_message(message: str) -> str:
    r"""Translate a message of the library to the command line: name="value" of an option becomes --name value.

    The name of an estimator at the beginning of a message is removed, since the command line has no estimators.

    Examples
    --------
    >>> translate_message("UnboundedDepthRegressor: y has gaps")
    'y has gaps'
    >>> translate_message('Fill them, or fit with missing="impute" and n_restarts=3')
    'Fill them, or give --missing impute and --n-restarts 3'
    >>> translate_message("learning_rate=nan was given; lower width (now 8)")
    '--learning-rate nan was given; lower --width (now 8)'
    >>> translate_message("weights__chains=1 was given; raise weights__sweeps (now 400)")
    '--hmc.chains 1 was given; raise --hmc.sweeps (now 400)'
    >>> translate_message("cv=0 was given; a whole number, or 'auto', or Folds(...) is allowed")
    "--cv 0 was given; a whole number, or 'auto' is allowed"
    >>> translate_message("give them as ordinal=['low', 'high'] (or, in Python, an ordered categorical as y)")
    'give them as --ordinal low,high'
    >>> translate_message("ordinal=['so, so', 'good'] was given; the classes are ordinal=[False, True]")
    '--ordinal \'"so, so",good\' was given; the classes are --ordinal false,true'
    >>> translate_message("weights='hmc' was given; 0 <= validation_fraction < 1 is allowed")
    '--weights hmc was given; 0 <= --validation-fraction < 1 is allowed'
    """
    try:
        registered = families()
    except DataError:  # a broken family of another package; the message is about it
        return message
    pairs = ((family, task) for family in registered.values() for task in family.tasks)
    known = {name for family, task in pairs for name in options(family, task)} | {"methods"}
    known |= {name for family in registered.values() for name, *_ in nested_options(options_of(family.options))}
    known |= {old for family in registered.values() for old in old_names(family.options)}
    prefixes = {f"{name}: " for family in registered.values() for name in family.estimators}
    message = next((message.removeprefix(prefix) for prefix in prefixes if message.startswith(prefix)), message)

    def flag_with_value(match: re.Match[str]) -> str:
        name, text, bare = match.groups()
        if name not in known:
            return match[0]
        if bare in ("True", "False"):
            return flag_of(name) if bare == "True" else flag_of(f"no_{name}")
        return f"{flag_of(name)} {'none' if bare == 'None' else text or bare}"

    def flag_with_list(match: re.Match[str]) -> str:
        name, labels, rest = match.groups()
        return f"{flag_of(name)} {_write_list(labels)}{',...' if rest else ''}" if name in known else match[0]

    def flag_alone(match: re.Match[str]) -> str:
        return flag_of(match[0]) if match[0] in known else match[0]

    message = re.sub(r" \((?:or, )?in Python, [^)]*\)", "", message)
    for name in ("unseen", "missing"):  # predict and evaluate have these options too
        message = message.replace(f"or fit with {name}=", f"or give {name}=")
    message = re.sub(r",? (?:and|or) (?:\w+=)?[A-Z]\w*\(\.\.\.\)", "", message)  # values that only Python can give
    value = r"\b([a-z_]+)=(?:[\"']([^\"' ]+)[\"']|(True|False|None|-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf))\b)"
    message = re.sub(value, flag_with_value, message)
    label = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[-+.\w]+)"  # as Python writes text, numbers, True and False
    message = re.sub(rf"\b([a-z_]+)=\[({label}(?:, {label})*)(, \.\.\. \(\d+ in all\))?\]", flag_with_list, message)
    return re.sub(r"(?<![\w'\"./-])(?:[a-z]+(?:_+[a-z]+)+(?![\w'\"./=(-])|[a-z]+(?= \(now ))", flag_alone, message)


def _write_list(labels: str) -> str:
    """Write labels that Python's commas separate as one word of a shell, which :func:`_read_order` reads."""
    values = ast.literal_eval(f"[{labels}]")
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(texts)
    return (
        shlex.quote(line.getvalue()) if re.search(r"""[\s"'$`\\;&|<>()*?!#~]""", line.getvalue()) else line.getvalue()
    )


def flag_of(name: str) -> str:
    """Return the flag of an option, nested or not.

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
    """Return the flag of a nested option; an option that a plain value stands for has the flag of the outer option."""
    if inner in {class_.plain for class_ in classes_with_option(option, inner).values()}:
        return f"--{option.name.replace('_', '-')}"
    return f"--{_prefix(option, inner)}.{inner.replace('_', '-')}"


def _prefix(option: "Field[Any]", inner: str) -> str:
    """Return the prefix of a nested option: the only choice that has it, otherwise the name of the outer option."""
    choices = classes_with_option(option, inner)
    (key, class_), *others = choices.items()
    alone = not others and (bool(class_.plain) or option.metadata["kind"] == "choice")
    return str(key) if alone else option.name


def add_nested_arguments(group: Any) -> None:
    """Add nested options, such as ``--hmc.chains``.

    Parameters
    ----------
    group : argument group
        Group of the command's parser.
    """
    declared: dict[str, dict[str, Field[Any]]] = {}  # prefix.nested name -> structure -> its declaration there
    texts: dict[str, tuple[str, str]] = {}  # prefix.nested name -> flag, text
    for structure, family in families().items():
        for name, option, key, inner in nested_options(options_of(family.options)):
            class_ = option.metadata["values"][key]
            if inner.name == class_.plain or inner.metadata["kind"] == "object":  # objects are for Python only
                continue
            dest = f"{_prefix(option, inner.name)}.{name}"
            declared.setdefault(dest, {})[structure] = inner
            text = describe(class_)[inner.name][1].rstrip(".")
            choices = " or ".join(filter(None, classes_with_option(option, inner.name)))
            needed = f"; with {flag_of(option.name)} {choices}" if choices and not class_.plain else ""
            texts[dest] = _nested_flag(option, inner.name), f"{text}{needed}"
    for name, by_structure in declared.items():
        flag, text = texts[name]
        add_option(group, flag, name, by_structure, text)


def add_old_arguments(parser: argparse.ArgumentParser, known: set[str]) -> list[str]:
    """Add options under their names of the previous version, without help; return their flags.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    known : set of str
        Names in use; the old names are added.
    """
    flags = []
    for family in families().values():
        inner = {name: option for name, _, _, option in nested_options(options_of(family.options))}
        plain = {option.name: option for option in options_of(family.options)}
        for old, new in renamed_options(family.options).items():
            if old not in known and plain[new.name].metadata["kind"] != "object":
                known.add(old)
                add_option(parser, flag_of(old), old, {family.name: plain[new.name]}, "").help = argparse.SUPPRESS
                _accept_also(parser._option_string_actions[flag_of(old)], new.values)
                flags.append(flag_of(old))
        for old, place in moved_options(family.options).items():
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
    """Add the choices of an old option to the flag of the same name, without showing them in the help."""
    more = [] if action is None or action.choices is None else sorted({*declared.metadata["names"]} - {*action.choices})
    if action is not None and action.choices is not None and more:
        action.metavar = action.metavar or "{" + ",".join(action.choices) + "}"
        action.choices = (*action.choices, *more)


def group_of(name: str, declared: Mapping[str, Any]) -> str:
    """Return the heading of the group of an option."""
    if name in COMMON:
        return "training"
    if "depth" in declared:
        return "network"
    return f"only for --structure {next(iter(declared))}" if len(declared) == 1 else "for several other structures"


def _defaults(declared: Mapping[str, "Field[Any]"]) -> str:
    """Return the default as text: "(default: 64)", with the defaults of other structures than "depth"."""
    structures: dict[str, list[str]] = {}
    for structure, option in declared.items():
        structures.setdefault(_format_value(option.default), []).append(structure)
    return " ".join(
        f"({'default' if 'depth' in names else ', '.join(names)}: {value})" for value, names in structures.items()
    )


def add_option(group: Any, flag: str, name: str, declared: Mapping[str, "Field[Any]"], text: str) -> argparse.Action:
    """Add an option of the estimators to a group of arguments."""
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
        action = group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif kind == "order":
        action = group.add_argument(flag, nargs="?", const=True, type=_read_order, metavar="A,B,...", **common)
    elif kind == "lists":
        whole = any(each.metadata["kind"] == "whole" for each in declared.values())
        action = group.add_argument(flag, type=_reader_of_lists(whole), metavar="NAME=A,B,...", **common)
    elif kind == "choice" and int not in special and None not in special:
        action = group.add_argument(flag, choices=names, **common)
    else:
        metavar = {"whole": "N", "real": "X", "choice": "NAME|N"}.get(kind, "NAME")
        plain = [_format_value(other) for other in special if not isinstance(other, type)]
        metavar = "|".join([*plain, metavar])
        action = group.add_argument(flag, type=_reader(kind, names, special), metavar=metavar, **common)
    return cast(argparse.Action, action)


def _format_value(value: object) -> str:
    """Return the value of an option as on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _read_order(text: str) -> bool | list[str]:
    """Return labels that commas separate, in double quotes if they contain one; True for "yes" and False for "no".

    Examples
    --------
    >>> _read_order("yes"), _read_order('"so, so", good')
    (True, ['so, so', 'good'])
    """
    if text in ("yes", "no"):
        return text == "yes"
    try:
        rows = list(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error:
        rows = []
    labels = [label.strip() for row in rows for label in row]
    if len(labels) < 2 or not all(labels):
        raise argparse.ArgumentTypeError(
            f"{text!r} was given; allowed: yes, no, and at least two labels in ascending order, separated by commas, "
            "in double quotes if they contain a comma"
        )
    return labels


def _reader_of_lists(whole: bool) -> Callable[[str], Any]:
    """Return a function that reads lists of values, such as "width=64,256 activation=relu,tanh", by name.

    A whole number is read too if the option is a number in other structures.
    """

    def read(text: str) -> Any:
        if whole and text.isdecimal():
            return int(text)
        if text == "none":
            return None
        parts = [part.partition("=") for part in text.split()]
        lists = {name: values.split(",") for name, _, values in parts}
        if not parts or len(lists) < len(parts) or not all(lists) or not all(map(all, lists.values())):
            number = ", and for other structures a whole number" if whole else ""
            raise argparse.ArgumentTypeError(
                f"{text!r} was given; allowed: none, or options with values that commas separate, each once, and a "
                f"space between options, such as 'width=64,256 activation=relu,tanh'{number}"
            )
        return {name: [_read_value(value) for value in values] for name, values in lists.items()}

    return read


def _read_value(text: str) -> int | float | str:
    """Return a number if the text is one."""
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return convert(text)
    return text


def _reject(text: str) -> Any:
    raise ValueError(text)


def _reader(kind: str, names: Sequence[str], allowed: Sequence[Any]) -> Callable[[str], Any]:
    """Return a function that converts the text of an option to its value."""
    special = {_format_value(other): other for other in allowed if not isinstance(other, type)}
    converters: dict[str, Callable[[str], Any]] = {
        "whole": int,
        "real": float,
        "choice": int if int in allowed else _reject,
    }
    words = {"real": "a number", "choice": "a whole number" if int in allowed else ""}
    convert = converters.get(kind, str)

    def read(text: str) -> Any:
        if text in special or text in names:
            return special.get(text, text)
        try:
            return convert(text)
        except ValueError:
            word = words.get(kind, "a whole number")
            raise argparse.ArgumentTypeError(
                f"{text!r} was given; allowed: {', '.join(filter(None, [word, *names, *special]))}"
            ) from None

    return read


def check_options(asked: Mapping[str, Any], family: Family, task: str) -> tuple[dict[str, Any], list[str]]:
    """Return the checked options of an estimator that a command asks for, and notes on deprecated names.

    Parameters
    ----------
    asked : mapping
        Options by their names in the parser; a nested one is ``hmc.weights__chains``.
    family : Family
        Family of the estimator.
    task : str
        Task of the estimator.

    Returns
    -------
    options : dict
        Options by name; nested ones by nested name, such as ``weights__chains``.
    deprecated : list of str
        A note for every option that was given by its name of the previous version.

    Raises
    ------
    DataError
        For an option of another structure, task or choice, an option that is given under both names, and a value that
        is not allowed.
    """
    declared = _declare_options(family, task)
    renamed = rename_options(family.options, {name.rpartition(".")[2]: value for name, value in asked.items()})
    if foreign := sorted(set(asked) - set(declared) - old_names(family.options)):
        raise DataError(_foreign(foreign[0], family.name))
    for name in asked:
        prefix, _, nested = name.rpartition(".")
        outer, _, inner = nested.partition("__")
        given = renamed.options.get(outer, declared[outer].default) if prefix else None
        choices = classes_with_option(declared[outer], inner) if prefix else {}
        if prefix and type(value_of(declared[outer], given)) not in choices.values():
            needed = f"{flag_of(outer)} {' or '.join(map(str, choices))}"
            raise DataError(
                f"{flag_of(nested)} was given with {flag_of(outer)} {_format_value(given)}; it is an option of "
                f"{needed}: add {needed}, or omit {flag_of(nested)}"
            )
    wanted = {**renamed.options, **renamed.nested}
    metadata = {name.rpartition(".")[2]: option.metadata for name, option in declared.items()}
    for name, value in wanted.items():  # checked here, before the folder of a run is changed
        checks.option(name, value, **metadata[name])
    notes = [f"{flag_of(old)} is deprecated; use {flag_of(place.nested)}" for old, place in renamed.effective.items()]
    notes += [f"{flag_of(old)} is deprecated; use {flag_of(new.name)}" for old, new in renamed.renamed.items()]
    for old, place in renamed.idle.items():
        needed = f"{flag_of(place.option)} {place.choice}"
        notes.append(f"{flag_of(old)} is deprecated, and has no effect without {needed}; use {flag_of(place.nested)}")
    return wanted, notes


def _declare_options(family: Family, task: str) -> "dict[str, Field[Any]]":
    """Return the options of a family for a task, including nested ones, by their names in the parser."""
    declared = options(family, task)
    nested = nested_options(tuple(declared.values()))
    return {**declared, **{f"{_prefix(option, inner.name)}.{name}": inner for name, option, _, inner in nested}}


def _foreign(name: str, structure: str) -> str:
    """Return the message on an option that this task or this structure does not have."""
    flag = flag_of(name.rpartition(".")[2])
    having: list[str] = []
    for task, meant in (
        ("regression", "numeric targets; the target is a class"),
        ("classification", "classes; the target is numeric"),
    ):
        of_task = [other for other, family in families().items() if name in _declare_options(family, task)]
        if structure in of_task:
            return f"{flag} was given, which is for {meant}"
        having += [other for other in of_task if other not in having]
    return f"{flag} was given, which --structure {structure} does not have; it is for --structure {' or '.join(having)}"
