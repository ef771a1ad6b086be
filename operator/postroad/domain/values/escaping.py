"""Escapes what a terminal would execute or hide: addresses and names are a client's own words."""

from __future__ import annotations

import json


def json_line(value: object) -> str:
    """Return a value as JSON on one line.

    >>> print(json_line({"sender": "zoë@b.example", "name": "\\x9b2J"}))
    {"sender": "zoë@b.example", "name": "\\u009b2J"}
    """
    return escaped(json.dumps(value, ensure_ascii=False))


def escaped(text: str) -> str:
    """Return a text with an escape of JSON for each character that is not printable, line ends
    apart.

    >>> print(escaped("caf\\u00e9 \\u202e\\x1b[31m"))
    café \\u202e\\u001b[31m
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )
