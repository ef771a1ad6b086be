"""Values that callers give for the fields of a mail, checked and as every store gives them back."""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from postroad.errors import InvalidMail

MAX_ENVELOPE = 4 * 1024 * 1024
"""Characters of all that a mail has beside its content: a record of the log and a row of the view
hold it whole."""

NO_VALUES: Mapping[str, Any] = MappingProxyType({})

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = frozenset((str, type(None)))


def are_plain(texts: tuple[Any, ...]) -> bool:
    """True if all are None or short ASCII, which need no closer look. Quick: each mail asks it."""
    if not _PLAIN.issuperset(map(type, texts)):
        return False
    joined = "".join(filter(None, texts))
    return joined.isascii() and len(joined) < MAX_ENVELOPE // 2


def typed(value: Any, kind: type, what: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise InvalidMail(f"{what} is {kind.__name__} or None, not {type(value).__name__}")
    return value


def text(value: Any, what: str) -> str:
    """Return a string as every store gives it back: of no subclass, since one may print as another
    string, and without surrogates, since a pair of them comes back as one character. Raises:
    InvalidMail."""
    if not isinstance(value, str):
        raise InvalidMail(f"{what} is a string, not {type(value).__name__}")
    if not value.isascii() and _SURROGATE.search(value):
        raise InvalidMail(f"{what} holds a surrogate, which is no character")
    return value if type(value) is str else str.__str__(value)


def optional(value: Any, what: str) -> str | None:
    return None if value is None else text(value, what)


def texts(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        found = "one string" if isinstance(value, str) else type(value).__name__
        raise InvalidMail(f"{what} is a sequence of strings, not {found}: write [one] or (one,)")
    if type(value) is tuple and None not in value and are_plain(value):
        return value
    return tuple([text(each, f"one of {what}") for each in value])


def mapping(value: Any, what: str, checked: Callable[[Any, str], Any]) -> Mapping[str, Any]:
    """Return a copy that its giver cannot change any more."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidMail(f"{what} is a mapping, not {type(value).__name__}")
    if not value:
        return NO_VALUES
    return MappingProxyType(
        {text(name, f"a key of {what}"): checked(each, what) for name, each in value.items()}
    )
