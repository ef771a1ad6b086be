"""The request of a caller of `open_queue`, and the check of its URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import InvalidQueueURL
from postroad.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A queue's URL, and how to open it."""

    url: SplitResult
    settings: Settings
    create: bool
    configuration: ViewConfiguration | None
    lock: int | None = None
    """The descriptor of the lock on a store, inherited from its owner."""


PARAMETERS = {"embedded": {"mail"}}
"""The parameters that a URL may have, by scheme."""


def check_parts(url: SplitResult) -> None:
    """Refuse parts of a URL that would be ignored, such as a misspelt parameter.
    Raises: InvalidQueueURL."""
    if url.fragment or (url.path.strip("/") and url.scheme != "embedded"):
        raise InvalidQueueURL(
            f"{url.geturl()!r} has more than a queue's URL has: write %23 for # and %3F for ?"
        )
    known = PARAMETERS.get(url.scheme, set())
    unknown = sorted(parse_qs(url.query, keep_blank_values=True).keys() - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidQueueURL(f"unknown parameter of the URL: {unknown[0]!r} (known: {names})")
