"""Declarations of options, and option values that group related options.

An option is declared once, by :func:`option`, for Python, the command line and the documentation. Options that have an
effect only for one choice of another option are fields of a frozen dataclass, an option value: ``weights="hmc"`` is
``weights=HMC()``, and ``weights=HMC(chains=4)`` changes one of them. In ``get_params``, ``set_params``, searches and
messages such a field is named ``weights__chains``, and on the command line ``--hmc.chains``. This module does not
import torch.
"""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, field, fields, replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, TypeVar, cast

from fathomless.system.errors import DataError

__all__ = [
    "OptionValue",
    "build_docstring",
    "choice_name",
    "classes_with_option",
    "describe",
    "nested_fields",
    "nested_options",
    "nested_values",
    "option",
    "option_value",
    "plain_name",
    "replace_options",
    "shorten",
    "simplify",
    "value_of",
]

Kind = TypeVar("Kind", bound=type)

_LONGEST = 60  # maximum number of characters of a value in a message


def option(
    default: Any,
    kind: str,
    *special: Any,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    names: Sequence[str] = (),
    values: Mapping[Any, type] | None = None,
    without: Sequence[str] = (),
    usual: "OptionValue | None" = None,
) -> Any:
    """Declare an option.

    Parameters
    ----------
    default
        Default value.
    kind : {"whole", "real", "flag", "choice", "text", "order", "lists", "object"}
        Type of the values; "order" is True, False or a sequence of labels, "lists" is a mapping of names to lists of
        values, or None, and "object" is for values that can only be given in Python.
    special
        Additional values, or types of values, that are allowed.
    least, most : float, optional
        Smallest and largest number allowed.
    above, below : float, optional
        Bounds of a real number that are not allowed themselves.
    names : sequence of str
        Allowed choices.
    values : mapping of str or None to type, optional
        Choices with their own options: name -> class of :class:`OptionValue`. The name is equivalent to an instance
        with default options, and any instance of the class is allowed too. If the class has plain values
        (:attr:`OptionValue.plain`), its name is not a choice but the prefix of its options on the command line. The
        name None is for an option whose only values are instances of the class.
    without : sequence of str
        Options of these classes that have no effect here.
    usual : OptionValue, optional
        Value that supplies the other options of a plain value; an instance with default options by default.
    """
    limits = {"least": least, "most": most, "above": above, "below": below, "names": tuple(names)}
    nested = {"values": dict(values or {}), "without": tuple(without), "usual": usual}
    return field(default=default, metadata={"kind": kind, "special": special, **limits, **nested})


class OptionValue:
    """Base class of option values: related options as one value of another option, in a frozen dataclass.

    Attributes
    ----------
    plain : str
        Name of the option that may be given alone, in place of the value: ``cv=5`` is ``cv=Folds(n_splits=5)``. "" if
        there is none.
    of_network : bool
        True if these options change the network; a fit that continues from a fitted network then requires equal ones.
    """

    plain: ClassVar[str] = ""
    of_network: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Return a constructor call for an equal value, without options that have their defaults."""
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in _fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(changed)})"


def option_value(kind: Kind) -> Kind:
    """Add the defaults of an option-value class to its docstring.

    Parameters
    ----------
    kind : type
        Subclass of :class:`OptionValue`: a frozen dataclass whose fields are declared by :func:`option`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @option_value
    ... @dataclass(kw_only=True, frozen=True, repr=False)
    ... class Steps(OptionValue):
    ...     "Steps of a search."
    ...     count: int = option(3, "whole")
    ...     size: float = option(0.1, "real")
    >>> Steps(count=5)
    Steps(count=5)
    """
    kind.__doc__ = build_docstring(kind, ("Parameters",))
    return kind


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def value_of(declared: Field[Any], given: Any) -> OptionValue | None:
    """Return the option value for a choice or a plain value; None if it has no options.

    The other options of a plain value are those of the usual value of `declared`.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    given : object
        Value of the option: a name, a plain value, or an option value.
    """
    values: Mapping[str, type[OptionValue]] = declared.metadata["values"]
    if isinstance(given, tuple(values.values())):
        return cast(OptionValue, given)
    for name, kind in values.items():
        if kind.plain:
            if _is_plain(next(f for f in _fields(kind) if f.name == kind.plain), given):
                usual = declared.metadata["usual"] or kind()
                return cast(OptionValue, replace(cast(Any, usual), **{kind.plain: given}))
        elif (given is None or isinstance(given, str)) and given == name:
            return kind()
    return None


def _is_plain(inner: Field[Any], given: Any) -> bool:
    """Return True if a value has the type of an option; its range is checked at fit."""
    types_of_kind: dict[str, tuple[type, ...]] = {"whole": (Integral,), "real": (Real,), "text": (str, PathLike)}
    types = types_of_kind.get(inner.metadata["kind"], ())
    named = given is None or isinstance(given, str)
    return isinstance(given, types) or (named and given in inner.metadata["special"])


def plain_name(declared: Field[Any]) -> str:
    """Return the name of the nested option that may be given as a plain value; "" if there is none.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    """
    values: Mapping[str, type[OptionValue]] = declared.metadata["values"]
    return next((kind.plain for kind in values.values() if kind.plain), "")


def simplify(declared: Field[Any], value: OptionValue) -> Any:
    """Return the plain value or name that is equivalent to an option value; the value itself if there is none.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    value : OptionValue
        Instance of one of its classes.
    """
    shorter = getattr(value, value.plain) if value.plain else choice_name(declared, value)
    return shorter if value_of(declared, shorter) == value else value


def choice_name(declared: Field[Any], given: Any) -> Any:
    """Return the name of a choice: the name of the class of an option value, or the choice itself.

    The name is None for an option whose only values are instances of one class.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    given : object
        Value of the option.
    """
    for name, kind in declared.metadata["values"].items():
        if isinstance(given, kind):
            return name
    return given


def nested_fields(declared: Field[Any], kind: type) -> dict[str, Field[Any]]:
    """Return the nested options of an option-value class that have an effect in this option, by name.

    Their defaults are those of the usual value of `declared`, if there is one.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    kind : type
        One of its option-value classes.
    """
    nested = {f.name: f for f in _fields(kind) if f.name not in declared.metadata["without"]}
    usual = declared.metadata["usual"]
    if usual is None:
        return nested
    copies = {name: copy.copy(inner) for name, inner in nested.items()}
    for name, inner in copies.items():
        inner.default = getattr(usual, name)
    return copies


def classes_with_option(declared: Field[Any], name: str) -> dict[Any, type[OptionValue]]:
    """Return the choices that have a nested option, as a mapping of name to class.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    name : str
        Name of the nested option, without the prefix of `declared`.
    """
    values: Mapping[Any, type[OptionValue]] = declared.metadata["values"]
    return {key: kind for key, kind in values.items() if name in nested_fields(declared, kind)}


def nested_options(declared: Sequence[Field[Any]]) -> Iterator[tuple[str, Field[Any], str | None, Field[Any]]]:
    """Yield (nested name, option, name of the choice, nested option) for all options of all option values.

    Parameters
    ----------
    declared : sequence of Field
        Declarations of options. A nested name is ``weights__chains``.
    """
    for outer in declared:
        for key, kind in outer.metadata["values"].items():
            for name, inner in nested_fields(outer, kind).items():
                yield f"{outer.name}__{name}", outer, key, inner


def nested_values(declared: Sequence[Field[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested options of the current choices, by nested name.

    Parameters
    ----------
    declared : sequence of Field
        Declarations of options.
    given : mapping
        Options by name.
    """
    nested = {}
    for outer in declared:
        value = value_of(outer, given[outer.name])
        if value is not None:
            names = nested_fields(outer, type(value))
            nested.update({f"{outer.name}__{name}": getattr(value, name) for name in names})
    return nested


def replace_options(declared: Field[Any], given: Any, entries: Mapping[str, Any]) -> OptionValue:
    """Return a copy of an option value with changed options.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    given : object
        Value of the option: an option value, or a name or plain value that stands for one.
    entries : mapping of str to object
        New nested options, by name.

    Raises
    ------
    DataError
        If the choice has no options, or its class does not have an option of this name.
    """
    before = value_of(declared, given)
    option_name = declared.name
    first = next(iter(entries))
    if before is None:
        having = classes_with_option(declared, first)
        allowed = [
            f"{option_name}={kind.__name__}(...) or its {kind.plain} alone"
            if kind.plain
            else f"{option_name}={key!r} or {option_name}={kind.__name__}(...)"
            for key, kind in having.items()
        ]
        remedy = f"set {', or '.join(allowed)}, before or in the same call" if having else "leave it out"
        raise DataError(
            f"{option_name}__{first}={entries[first]!r} was given with {option_name}={shorten(given)}, which has no "
            f"such option; {remedy}"
        )
    allowed = list(nested_fields(declared, type(before)))
    for name, value in entries.items():
        if name not in allowed:
            raise DataError(
                f"{option_name}__{name}={value!r} was given; {option_name}={before!r} has the options "
                f"{', '.join(allowed)}"
            )
    return cast(OptionValue, replace(cast(Any, before), **entries))


def shorten(value: Any) -> str:
    """Return the representation of a value for messages: one line of at most 60 characters.

    Parameters
    ----------
    value : object
        Value of an option.

    Examples
    --------
    >>> shorten("auto"), shorten(tuple(range(100)))
    ("'auto'", '(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def describe(kind: type, section: str = "Parameters") -> dict[str, tuple[str, str]]:
    """Return name -> (type, text) of all options or attributes, read from the docstrings of a class and its bases.

    Parameters
    ----------
    kind : type
        Estimator or group of options.
    section : {"Parameters", "Attributes"}
        Section of the docstrings.

    Examples
    --------
    >>> from fathomless.estimators.options import LawOptions
    >>> describe(LawOptions)["structure_rate"][0]
    'float or "auto"'
    """
    entries: dict[str, tuple[str, str]] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "sklearn", "abc"):
            continue
        _, _, text = inspect.cleandoc(base.__doc__ or "").partition(f"{section}\n{'-' * len(section)}\n")
        # a section ends at an empty line; its entries start in the first column
        for entry in re.split(r"\n(?=\S)", text.partition("\n\n")[0]):
            head, _, meaning = entry.partition("\n")
            name, colon, type_ = head.partition(" : ")
            if colon:
                entries.setdefault(name, (type_, " ".join(meaning.split())))
    return entries


def build_docstring(kind: type, sections: Sequence[str] = ("Parameters", "Attributes")) -> str:
    """Build the docstring of a class from its own text and the options and attributes of its bases.

    Parameters
    ----------
    kind : type
        Class of options whose own docstring contains a summary, and optionally notes, references and examples.
    sections : sequence of str
        Sections to collect from the bases.
    """
    text = inspect.cleandoc(kind.__doc__ or "")
    head, *rest = re.split(r"\n\n(?=(?:Notes|References|Examples)\n---)", text)
    for section in sections:
        head = head.partition(f"\n\n{section}\n---")[0]
    for section in sections:
        lines = [section, "-" * len(section)]
        for name, (type_, meaning) in describe(kind, section).items():
            default = f", default={getattr(kind, name)!r}" if section == "Parameters" else ""
            lines += [f"{name} : {type_}{default}", f"    {meaning}"]
        head = "\n".join([head, "", *lines])
    return "\n\n".join([head, *rest])
