"""postroad: durable queues of mail, in memory, over one directory, or distributed on Kubernetes.

`__all__` is the library, with `postroad.errors`, `postroad.sync`, `postroad.django` and
`postroad.testing`. A name leaves it, or changes its meaning, one release after a
DeprecationWarning; everything else may change at any time. Each is loaded on first use, so that a
room can be imported without every driver."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from postroad import errors as errors
    from postroad.bootstrap import open_queue as open_queue
    from postroad.domain.configuration.rules import ViewConfiguration as ViewConfiguration
    from postroad.domain.delivery.attempts import AttemptOutcomes as AttemptOutcomes
    from postroad.domain.delivery.retries import RetryPlan as Retry
    from postroad.domain.mail.envelope_documents import HandedMail as HandedMail
    from postroad.domain.mail.mail import DsnOptions as DsnOptions
    from postroad.domain.mail.mail import Envelope as Envelope
    from postroad.domain.mail.mail import Mail as Mail
    from postroad.domain.mail.mail import Origin as Origin
    from postroad.domain.mail.mail import Outcome as Outcome
    from postroad.domain.mail.mail import OutcomeKind as OutcomeKind
    from postroad.domain.mail.mail import RecipientDsn as RecipientDsn
    from postroad.domain.queues.documents import MailView as MailView
    from postroad.domain.queues.documents import Sizes as Sizes
    from postroad.domain.queues.selection import Selector as Selector
    from postroad.intake.filters.decisions import FilterDecision as FilterDecision
    from postroad.intake.filters.decisions import FilteredMail as FilteredMail
    from postroad.intake.filters.decisions import HeaderChange as HeaderChange
    from postroad.ports.mail_queue import Item as Item
    from postroad.ports.mail_queue import MailQueue as MailQueue
    from postroad.settings import Settings as Settings

__all__ = [
    "AttemptOutcomes",
    "DsnOptions",
    "Envelope",
    "FilterDecision",
    "FilteredMail",
    "HandedMail",
    "HeaderChange",
    "Item",
    "Mail",
    "MailQueue",
    "MailView",
    "Origin",
    "Outcome",
    "OutcomeKind",
    "RecipientDsn",
    "Retry",
    "Selector",
    "Settings",
    "Sizes",
    "ViewConfiguration",
    "__version__",
    "errors",
    "open_queue",
]

_HOMES = {
    "AttemptOutcomes": "postroad.domain.delivery.attempts:AttemptOutcomes",
    "DsnOptions": "postroad.domain.mail.mail:DsnOptions",
    "Envelope": "postroad.domain.mail.mail:Envelope",
    "FilterDecision": "postroad.intake.filters.decisions:FilterDecision",
    "FilteredMail": "postroad.intake.filters.decisions:FilteredMail",
    "HandedMail": "postroad.domain.mail.envelope_documents:HandedMail",
    "HeaderChange": "postroad.intake.filters.decisions:HeaderChange",
    "Item": "postroad.ports.mail_queue:Item",
    "Mail": "postroad.domain.mail.mail:Mail",
    "MailQueue": "postroad.ports.mail_queue:MailQueue",
    "MailView": "postroad.domain.queues.documents:MailView",
    "Origin": "postroad.domain.mail.mail:Origin",
    "Outcome": "postroad.domain.mail.mail:Outcome",
    "OutcomeKind": "postroad.domain.mail.mail:OutcomeKind",
    "RecipientDsn": "postroad.domain.mail.mail:RecipientDsn",
    "Retry": "postroad.domain.delivery.retries:RetryPlan",
    "Selector": "postroad.domain.queues.selection:Selector",
    "Settings": "postroad.settings:Settings",
    "Sizes": "postroad.domain.queues.documents:Sizes",
    "ViewConfiguration": "postroad.domain.configuration.rules:ViewConfiguration",
    "open_queue": "postroad.bootstrap:open_queue",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    found: object
    if name == "__version__":
        found = import_module("importlib.metadata").version("postroad")
    elif name == "errors":
        found = import_module("postroad.errors")
    elif name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        raise AttributeError(f"module 'postroad' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
