"""The dispatch of a message has a step for each verdict."""

from __future__ import annotations

from postroad.distributed.dequeue.dispatch import _WHEN_OVER, _WITH_ENTRY
from postroad.domain.queues.dispatch import Verdict


def test_each_verdict_has_one_step() -> None:
    """A verdict without one would raise at its first message, and put that into the dead queue."""
    assert _WHEN_OVER.keys() | _WITH_ENTRY.keys() == set(Verdict)
    assert not _WHEN_OVER.keys() & _WITH_ENTRY.keys()
