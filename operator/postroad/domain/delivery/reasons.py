"""Why something is kept from its usual way, as it is stored and shown. Pure."""

from __future__ import annotations

from postroad.domain.smtp.bounces import Bounce
from postroad.errors import InvalidInput

LONGEST_REASON = 200
"""Characters."""


def checked_reason(text: str) -> str:
    """Return a reason with single spaces. Raises: InvalidInput."""
    reason = " ".join(text.split())
    if not reason or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise InvalidInput(f"a reason has 1 to {LONGEST_REASON} printable characters")
    return reason


def reason_of(bounce: Bounce) -> str:
    """Return the reason that a refusal gives; it names no address."""
    return f"{bounce.code} {bounce.reason}: {bounce.words}"[:LONGEST_REASON]
