"""Escapes what a terminal would execute or hide: addresses and names are a client's own words.

Values written as JSON, and checked when they are read.

Names of enumerations in resources and in the files that share their schema: CamelCase with an
initial capital, acronyms as they are written. Stored data, metric labels, variables and options of
commands have the values themselves, in lower case.
Source: Kubernetes API conventions (Constants)."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from postroad.errors import InvalidInput


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


def ascii_lower(text: str) -> str:
    """Return a text with its letters of ASCII in lower case. `str.lower` makes such letters of
    others, too.

    >>> ascii_lower("K\u212a") == "k\u212a", "K\u212a".lower()
    (True, 'kk')
    """
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def is_same_mailbox(address: str, folded: str) -> bool:
    """Return whether folding an address has changed the case of letters of ASCII alone in its local
    part: a server that knows no mailbox with another letter may have the one that it folds to."""
    local, its = (each.rpartition("@")[0] for each in (address, folded))
    return local.isascii() or ascii_lower(local) == its


_compact = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with separators makes an encoder for each call."""


def to_json(content: object) -> bytes:
    """Return compact JSON in ASCII: it holds any string, lone surrogates included."""
    return _compact(content).encode("ascii")


def typed(value: Any, kind: type) -> Any:
    """Return a value of a type. Raises: InvalidInput."""
    if not isinstance(value, kind):
        raise InvalidInput(f"a value is no {kind.__name__}")
    return value


def natural(value: Any) -> int:
    """Return a whole number from 0 on. Raises: InvalidInput."""
    number: int = typed(value, int)
    if number < 0 or isinstance(value, bool):
        raise InvalidInput("a number is negative")
    return number


def optional_text(value: Any) -> str | None:
    """Return a text or None. Raises: InvalidInput."""
    if value is None:
        return None
    text: str = typed(value, str)
    return text


def texts(values: Any) -> list[str]:
    """Return a list of texts. Raises: InvalidInput."""
    return [typed(each, str) for each in typed(values, list)]


_ACRONYMS = {each.upper(): each for each in ("CA", "DANE", "LMTP", "MX", "SMTP", "STS", "TLS")}
_ACRONYMS |= {"IPV4": "IPv4", "IPV6": "IPv6"}


def api_name(member: Enum) -> str:
    """Return the name of a member in resources.

    >>> from postroad.tls import Encryption
    >>> api_name(Encryption.VERIFY_CA)
    'VerifyCA'
    """
    return "".join(_ACRONYMS.get(each, each.capitalize()) for each in member.name.split("_"))


class ByApiName:
    """Marks a field of a model whose enumeration is read and written by the names in resources."""

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes the enumeration `source`."""
        members = {api_name(each): each for each in source}
        names = core_schema.literal_schema(list(members))
        return core_schema.no_info_before_validator_function(
            lambda value: api_name(value) if isinstance(value, source) else value,
            core_schema.no_info_after_validator_function(members.__getitem__, names),
            serialization=core_schema.plain_serializer_function_ser_schema(api_name),
        )


BY_API_NAME = ByApiName()
