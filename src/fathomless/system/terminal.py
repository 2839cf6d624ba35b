"""Escaping of control characters in text for a terminal."""

import re

__all__ = ["escape_control"]

#: Control characters except tabs and line feeds, and marks that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape_control(text: str) -> str:
    r"""Escape control characters, which names of columns and classes may contain and a terminal would execute.

    Examples
    --------
    >>> escape_control("price\x1b[2J\x07 of it\n")
    'price\\x1b[2J\\x07 of it\n'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
