"""Where a worker writes what became of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from postroad.domain.delivery.attempt_log import Attempted
from postroad.domain.mail.mail import Outcome


class AttemptLog(Protocol):
    """The attempt log of a process (domain/delivery/attempt_log.py)."""

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        """Write the outcomes of an attempt, before the queue records them: what the log lacks, the
        queue tries again. A kill of the process loses nothing that was written, a power cut some
        seconds. Never raises: mail goes out although the log cannot be written, which is counted
        and logged."""
        ...
