"""What is kept of an attempt, read where it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.domain.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.bounces import BounceClass
from postroad.domain.mail import OutcomeKind


def kept_in(row: Mapping[str, Any]) -> AttemptOutcomes | None:
    """Return what the columns of a mark keep."""
    if row["outcomes"] is None:
        return None
    counts = tuple(
        OutcomeCount(
            domain, site, OutcomeKind(kind), code, reason and BounceClass(reason), words, count
        )
        for domain, site, kind, code, reason, words, count in row["outcomes"]
    )
    return AttemptOutcomes(counts, row["seconds"])
