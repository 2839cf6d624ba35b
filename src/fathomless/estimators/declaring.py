"""Declarations of options, and values of several options that belong together.

An option is declared once, by :func:`option`, for Python, the command line and the documentation. Options that have an
effect only with one choice of another option are fields of a frozen value of it: ``weights="hmc"`` is
``weights=HMC()``, and ``weights=HMC(chains=4)`` changes one of them. In ``get_params``, ``set_params``, searches and
messages such a field is named ``weights__chains``, on the command line ``--hmc.chains``. Nothing here needs torch.
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
    "chosen",
    "described",
    "documentation",
    "having_option",
    "nested_fields",
    "nested_of",
    "nested_options",
    "option",
    "option_value",
    "plain_name",
    "replaced",
    "shortened",
    "simplest",
    "value_of",
]

Kind = TypeVar("Kind", bound=type)

_LONGEST = 60  # characters of a value in a message


def option(
    default: Any,
    kind: str,
    *special: Any,
    least: float | None = None,
    most: float | None = None,
    names: Sequence[str] = (),
    values: Mapping[Any, type] | None = None,
    without: Sequence[str] = (),
    usual: "OptionValue | None" = None,
) -> Any:
    """Declare an option.

    Parameters
    ----------
    default
        Its default.
    kind : {"whole", "real", "flag", "choice", "text", "object"}
        What it is; "object" is what only Python can give.
    special
        Values, or types of values, that are allowed beside the kind.
    least, most : float, optional
        The smallest and the largest number allowed.
    names : sequence of str
        The choices.
    values : mapping of str or None to type, optional
        Choices with options of their own: name -> class of :class:`OptionValue`. The name stands for the class with its
        defaults, and a value of the class may be given in its place. The name of a class that plain values stand for
        (:attr:`OptionValue.plain`) is no choice; the command line has it in front of the options. None as a name is
        for an option that is such a value and nothing else.
    without : sequence of str
        Options of these classes that have no effect here.
    usual : OptionValue, optional
        Value whose other options a plain value has; one with the defaults of its class by default.
    """
    limits = {"least": least, "most": most, "names": tuple(names)}
    nested = {"values": dict(values or {}), "without": tuple(without), "usual": usual}
    return field(default=default, metadata={"kind": kind, "special": special, **limits, **nested})


class OptionValue:
    """Options that belong together: one value of another option. Classes of values are frozen dataclasses.

    Attributes
    ----------
    plain : str
        Name of the option that may be given alone, in place of the value: ``cv=5`` is ``cv=Folds(n_splits=5)``. "" if
        there is none.
    of_network : bool
        True if they change the network, so that a fit which continues from a fitted network needs the same ones.
    """

    plain: ClassVar[str] = ""
    of_network: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Return the call that makes an equal value, without options that have their defaults."""
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in _fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(given)})"


def option_value(kind: Kind) -> Kind:
    """Write the defaults of a class of values into its docstring.

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
    kind.__doc__ = documentation(kind, ("Parameters",))
    return kind


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def value_of(declared: Field[Any], given: Any) -> OptionValue | None:
    """Return the value that a choice or a plain value stands for, or None for one without options of its own.

    A plain value has the other options of the usual value of `declared`.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    given : object
        Value of the option: a name, a plain value, or a value with options.
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
    """Return True if a value is of the type of an option; whether it is in its range is checked at fit."""
    every: dict[str, tuple[type, ...]] = {"whole": (Integral,), "real": (Real,), "text": (str, PathLike)}
    types = every.get(inner.metadata["kind"], ())
    named = given is None or isinstance(given, str)
    return isinstance(given, types) or (named and given in inner.metadata["special"])


def plain_name(declared: Field[Any]) -> str:
    """Return the name of the nested option that a plain value stands for; "" if there is none.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    """
    values: Mapping[str, type[OptionValue]] = declared.metadata["values"]
    return next((kind.plain for kind in values.values() if kind.plain), "")


def simplest(declared: Field[Any], value: OptionValue) -> Any:
    """Return the plain value or the name that stands for a value with options, if there is one, or else the value.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    value : OptionValue
        Value of one of its classes.
    """
    shorter = getattr(value, value.plain) if value.plain else chosen(declared, value)
    return shorter if value_of(declared, shorter) == value else value


def chosen(declared: Field[Any], given: Any) -> Any:
    """Return the name of a choice: that of its class for a value with options, and else the choice itself.

    The name of an option that is one value and nothing else is None.

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
    """Return the options of a class of values that have an effect for the option that takes it, by name.

    Their defaults are those of the usual value of `declared`, if there is one.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    kind : type
        One of its classes of values.
    """
    found = {f.name: f for f in _fields(kind) if f.name not in declared.metadata["without"]}
    usual = declared.metadata["usual"]
    if usual is None:
        return found
    copies = {name: copy.copy(one) for name, one in found.items()}
    for name, one in copies.items():
        one.default = getattr(usual, name)
    return copies


def having_option(declared: Field[Any], name: str) -> dict[Any, type[OptionValue]]:
    """Return name of a choice -> its class, of the choices with an option.

    Parameters
    ----------
    declared : Field
        Declaration of the option that is chosen.
    name : str
        Name of the nested option, without that of `declared`.
    """
    values: Mapping[Any, type[OptionValue]] = declared.metadata["values"]
    return {key: kind for key, kind in values.items() if name in nested_fields(declared, kind)}


def nested_options(declared: Sequence[Field[Any]]) -> Iterator[tuple[str, Field[Any], str | None, Field[Any]]]:
    """Yield (nested name, option, name of the choice, nested option) for every option of every value.

    Parameters
    ----------
    declared : sequence of Field
        Declarations of options. A nested name is ``weights__chains``.
    """
    for one in declared:
        for key, kind in one.metadata["values"].items():
            for name, inner in nested_fields(one, kind).items():
                yield f"{one.name}__{name}", one, key, inner


def nested_of(declared: Sequence[Field[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the values that choices stand for, by their nested names.

    Parameters
    ----------
    declared : sequence of Field
        Declarations of options.
    given : mapping
        Options by name.
    """
    found = {}
    for one in declared:
        value = value_of(one, given[one.name])
        if value is not None:
            found.update({f"{one.name}__{name}": getattr(value, name) for name in nested_fields(one, type(value))})
    return found


def replaced(declared: Field[Any], given: Any, entries: Mapping[str, Any]) -> OptionValue:
    """Return a value with other options.

    Parameters
    ----------
    declared : Field
        Declaration of the option.
    given : object
        Value of the option: a name that stands for a value with options, or such a value.
    entries : mapping of str to object
        New options of the value, by name.

    Raises
    ------
    DataError
        For a choice without options, and for names that its class does not have.
    """
    before, option_name = value_of(declared, given), declared.name
    first = next(iter(entries))
    if before is None:
        having = having_option(declared, first)
        allowed = [
            f"{option_name}={kind.__name__}(...) or its {kind.plain} alone"
            if kind.plain
            else f"{option_name}={key!r} or {option_name}={kind.__name__}(...)"
            for key, kind in having.items()
        ]
        remedy = f"it needs {', or '.join(allowed)}: set that first, or at once" if having else "leave it out"
        raise DataError(
            f"{option_name}__{first}={entries[first]!r} was given with {option_name}={shortened(given)}, which has no "
            f"such option; {remedy}"
        )
    allowed = list(nested_fields(declared, type(before)))
    for name, value in entries.items():
        if name not in allowed:
            raise DataError(
                f"{option_name}__{name}={value!r} was given; options of {option_name}={before!r} are "
                f"{', '.join(allowed)}"
            )
    return cast(OptionValue, replace(cast(Any, before), **entries))


def shortened(value: Any) -> str:
    """Return the text of a value for messages, at most 60 characters of one line.

    Parameters
    ----------
    value : object
        Value of an option.

    Examples
    --------
    >>> shortened("auto"), shortened(tuple(range(100)))
    ("'auto'", '(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def described(kind: type, section: str = "Parameters") -> dict[str, tuple[str, str]]:
    """Return name -> (type, text) of every option, or of every attribute, as the docstrings of its bases say.

    Parameters
    ----------
    kind : type
        An estimator, or a group of options.
    section : {"Parameters", "Attributes"}
        Which section is read.

    Examples
    --------
    >>> from fathomless.estimators.options import LawOptions
    >>> described(LawOptions)["structure_rate"][0]
    'float or "auto"'
    """
    entries: dict[str, tuple[str, str]] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "sklearn", "abc"):
            continue
        _, _, text = inspect.cleandoc(base.__doc__ or "").partition(f"{section}\n{'-' * len(section)}\n")
        for entry in re.split(r"\n(?=\S)", text.partition("\n\n")[0]):
            head, _, meaning = entry.partition("\n")
            name, colon, type_ = head.partition(" : ")
            if colon:
                entries.setdefault(name, (type_, " ".join(meaning.split())))
    return entries


def documentation(kind: type, sections: Sequence[str] = ("Parameters", "Attributes")) -> str:
    """Return the docstring of a class with its options and attributes, and those of its bases.

    Parameters
    ----------
    kind : type
        A class of options whose own docstring holds a summary, and perhaps notes, references and examples.
    sections : sequence of str
        Sections that are collected.
    """
    text = inspect.cleandoc(kind.__doc__ or "")
    head, *rest = re.split(r"\n\n(?=(?:Notes|References|Examples)\n---)", text)
    for section in sections:
        head = head.partition(f"\n\n{section}\n---")[0]
    for section in sections:
        lines = [section, "-" * len(section)]
        for name, (type_, meaning) in described(kind, section).items():
            default = f", default={getattr(kind, name)!r}" if section == "Parameters" else ""
            lines += [f"{name} : {type_}{default}", f"    {meaning}"]
        head = "\n".join([head, "", *lines])
    return "\n\n".join([head, *rest])
