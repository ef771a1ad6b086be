"""What is kept of an attempt, read where it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from postroad.bootstrap.embedded_store import dump_directory
from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.documents import outcomes_of
from postroad.domain.smtp.bounces import BounceClass


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


def kept_in_log(root: Path) -> dict[UUID, AttemptOutcomes]:
    """Return what the log of a store that no process owns keeps, by entry. Fails where an entry has
    two such records."""
    records = list(dump_directory(root))
    entries = {
        (each["mail_id"], each["entry_number"]): UUID(each["enqueue_id"])
        for each in records
        if each["record"] == "envelope"
    }
    kept: dict[UUID, AttemptOutcomes] = {}
    for each in records:
        if each["record"] == "outcomes":
            entry = entries[each["mail_id"], each["entry_number"]]
            assert entry not in kept
            if (outcomes := outcomes_of(each)) is not None:  # else the moment of the end alone
                kept[entry] = outcomes
    return kept
