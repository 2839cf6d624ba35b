"""Infinite and undefined numbers in JSON, which has neither.

Measurements may not be finite, such as R-hat of chains that never move, or the log density of a very unlikely row. They
must not prevent saving a fit. Settings must be finite: :mod:`fathomless.system.io` checks them.
"""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["decode_nonfinite", "encode_nonfinite", "name_nonfinite"]

_NAMES = ("inf", "-inf", "nan")


def encode_nonfinite(value: Any) -> Any:
    """Replace every number that is not finite in nested values by a mapping; :func:`decode_nonfinite` is the inverse.

    Examples
    --------
    >>> encode_nonfinite({"rhat": [1.01, math.inf]})
    {'rhat': [1.01, {'float': 'inf'}]}
    """
    return _replace(value, lambda number: {"float": str(float(number))})


def name_nonfinite(value: Any) -> Any:
    """Replace numbers that are not finite in nested values by the strings ``inf``, ``-inf`` and ``nan``.

    For JSON that other programs read.

    Examples
    --------
    >>> name_nonfinite([0.5, -math.inf])
    [0.5, '-inf']
    """
    return _replace(value, lambda number: str(float(number)))


def decode_nonfinite(value: Any) -> Any:
    """Invert :func:`encode_nonfinite`.

    Examples
    --------
    >>> decode_nonfinite(encode_nonfinite({"rhat": [1.01, math.inf]}))
    {'rhat': [1.01, inf]}
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and value.get("float") in _NAMES:
            return float(value["float"])
        return {key: decode_nonfinite(entry) for key, entry in value.items()}
    return [decode_nonfinite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _replace(value: Any, of: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _replace(entry, of) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(entry, of) for entry in value]
    return of(value) if isinstance(value, float) and not math.isfinite(value) else value
