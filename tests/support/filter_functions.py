"""Functions that filter mail: what each does stands in the mail's field X-Do, in JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from postroad import FilterDecision, FilteredMail, HeaderChange

SEEN: list[FilteredMail] = []


def decide(mail: FilteredMail) -> FilterDecision | None:
    """Keep the mail, and decide as it says."""
    SEEN.append(mail)
    found = re.search(rb"(?m)^X-Do: (.*)\r\n", mail.content)
    if found is None:
        return None
    wanted: dict[str, Any] = json.loads(found[1])
    if "headers" in wanted:
        wanted["headers"] = tuple(HeaderChange(*each) for each in wanted["headers"])
    if "grow" in wanted:
        wanted["body"] = b"0123456789\r\n" * wanted.pop("grow")
    return FilterDecision(**wanted)


async def decide_async(mail: FilteredMail) -> FilterDecision | None:
    """Do the same."""
    return decide(mail)


def rewrite(mail: FilteredMail) -> FilterDecision:
    """Give the mail another sender each time, and the same recipients each time."""
    SEEN.append(mail)
    return FilterDecision(
        sender=f"srs{len(SEEN)}@x.example",
        add_recipients=("d@y.example",),
        remove_recipients=mail.recipients,
    )


def fold(_: FilteredMail) -> FilterDecision:
    """Make a body of a line that is too long."""
    return FilterDecision(body=b"x" * 2000 + b"\r\n")
