"""postroad: distributed mail queues on Kubernetes.

The names below are the library; everything else is reached through them.
They are loaded on first use, so that a room can be imported without every driver."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroad.bootstrap import open_queue as open_queue
    from postroad.domain.configuration.rules import ViewConfiguration as ViewConfiguration
    from postroad.domain.delivery.attempts import AttemptOutcomes as AttemptOutcomes
    from postroad.domain.mail.envelope_documents import HandedMail as HandedMail
    from postroad.domain.mail.mail import Mail as Mail
    from postroad.domain.mail.mail import Outcome as Outcome
    from postroad.domain.queues.selection import Selector as Selector
    from postroad.intake.filters.decisions import FilterDecision as FilterDecision
    from postroad.intake.filters.decisions import FilteredMail as FilteredMail
    from postroad.intake.filters.decisions import HeaderChange as HeaderChange

__all__ = [
    "AttemptOutcomes",
    "FilterDecision",
    "FilteredMail",
    "HandedMail",
    "HeaderChange",
    "Mail",
    "Outcome",
    "Selector",
    "ViewConfiguration",
    "open_queue",
]

_HOMES = {
    "AttemptOutcomes": "postroad.domain.delivery.attempts",
    "FilterDecision": "postroad.intake.filters.decisions",
    "FilteredMail": "postroad.intake.filters.decisions",
    "HandedMail": "postroad.domain.mail.envelope_documents",
    "HeaderChange": "postroad.intake.filters.decisions",
    "Mail": "postroad.domain.mail.mail",
    "Outcome": "postroad.domain.mail.mail",
    "Selector": "postroad.domain.queues.selection",
    "ViewConfiguration": "postroad.domain.configuration.rules",
    "open_queue": "postroad.bootstrap",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'postroad' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
