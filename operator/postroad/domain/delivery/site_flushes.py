"""What an administrator asks of all workers about a site, and what they answer, as both are posted.
Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from postroad.errors import InvalidInput

MOST_DOMAINS = 2000
"""In one answer."""


@dataclass(frozen=True, slots=True)
class FlushAnswer:
    """A worker tries a site now. `number`: of the request. `domains`: those whose mail goes to the
    site, as far as the worker knows, `more`: how many of them are left out. `is_all`: all mail
    of the worker does."""

    worker: str
    site: str
    number: str
    domains: Sequence[str] = ()
    more: int = 0
    is_all: bool = False

    @property
    def name(self) -> str:
        """The name of its note."""
        return f"{self.worker} {self.site}"

    def text(self) -> str:
        """Return the form in which it is posted."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> FlushAnswer:
        """Read the posted form, which may be of another release. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            domains = tuple(str(each).lower() for each in found["domains"])
            return cls(
                str(found["worker"]),
                str(found["site"]),
                str(found["number"]),
                domains,
                int(found["more"]),
                bool(found["is_all"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput("the answer of a worker cannot be read") from error
