"""Measured numbers in JSON, which has no infinity and nothing for what is undefined.

What was measured may not be finite: R-hat of chains that stand still, the density of a row that nothing expected.
That is no reason to lose a fit. Settings are another matter: :mod:`fathomless.system.io` refuses what is not finite in
them.
"""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["marked", "restored", "spoken"]

_NAMES = ("inf", "-inf", "nan")


def marked(value: Any) -> Any:
    """Return nested values with a mark in place of every number that is not finite; :func:`restored` undoes it.

    Examples
    --------
    >>> marked({"rhat": [1.01, math.inf]})
    {'rhat': [1.01, {'float': 'inf'}]}
    """
    return _replaced(value, lambda number: {"float": str(float(number))})


def spoken(value: Any) -> Any:
    """Return nested values with the text ``inf``, ``-inf`` or ``nan`` in place of numbers that are not finite.

    For JSON that other programs read.

    Examples
    --------
    >>> spoken([0.5, -math.inf])
    [0.5, '-inf']
    """
    return _replaced(value, lambda number: str(float(number)))


def restored(value: Any) -> Any:
    """Undo :func:`marked`.

    Examples
    --------
    >>> restored(marked({"rhat": [1.01, math.inf]}))
    {'rhat': [1.01, inf]}
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and value.get("float") in _NAMES:
            return float(value["float"])
        return {key: restored(one) for key, one in value.items()}
    return [restored(one) for one in value] if isinstance(value, list | tuple) else value


def _replaced(value: Any, of: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(one, of) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, of) for one in value]
    return of(value) if isinstance(value, float) and not math.isfinite(value) else value
