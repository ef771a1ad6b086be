"""English texts of the page: templates have none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class OperationTexts:
    """Texts of an operation, and the tab on which its mails are."""

    verb: str
    past: str
    meaning: str
    is_destructive: bool = False
    undo: str | None = None
    tab: str = "mails"


OPERATIONS: Mapping[str, OperationTexts] = {
    "hold": OperationTexts("Hold", "held", "They wait until they are released.", undo="release"),
    "release": OperationTexts("Release", "released", "They go on as their delays say."),
    "flush": OperationTexts("Retry now", "made due", "Workers try them as soon as they can."),
    "expire": OperationTexts(
        "Give up", "given up", "They become dead letters, which can be requeued.", True
    ),
    "remove": OperationTexts(
        "Remove", "removed", "They are never delivered. This cannot be undone.", True
    ),
    "requeue": OperationTexts(
        "Requeue", "requeued", "Each gets a new entry, due at once.", tab="dead-letters"
    ),
    "discard": OperationTexts(
        "Discard", "discarded", "They are deleted. This cannot be undone.", True, tab="dead-letters"
    ),
}

TEXTS: Mapping[str, object] = {
    "operations": OPERATIONS,
    "title": "postroad",
    "skip": "Skip to content",
    "queues": "Queues",
    "no_queues": "There is no queue that you may see.",
    "live_on": "Refresh by itself",
    "live_off": "Stop refreshing",
    "waiting": "Waiting",
    "due": "Due",
    "delayed": "Delayed",
    "held": "Held",
    "dead": "Dead letters",
    "oldest": "Oldest due",
    "ages_picture": "Waiting mail by age, the youngest left",
    "at_least": "at least",
    "at_least_hint": "Counting all of it would read too much.",
    "breadcrumbs": "You are here",
    "sections": "Parts of the queue",
    "footer": "Times are UTC; with scripts, yours stands first.",
    "tabs": {
        "queue": "Overview",
        "mails": "Mail",
        "dead-letters": "Dead letters",
        "sites": "Sites",
        "suppressions": "Suppression list",
        "trace": "Trace",
        "configuration": "Configuration",
    },
    "ages": "Mail by domain and age",
    "ages_hint": "How many mails are older than each age. Each number leads to these mails.",
    "domain": "Domain",
    "all": "All",
    "over": "over",
    "more_domains": "more domains have less mail.",
    "nothing_waits": "No mail waits.",
    "search": "Search",
    "filters": "Search mail",
    "without_filters": "Clear",
    "more_filters": "More filters",
    "sender": "Sender",
    "sender_hint": "the whole address; <> for none",
    "recipient": "Recipient",
    "recipient_hint": "the whole address",
    "older_than": "Older than",
    "older_hint": "such as 30m or 4h",
    "state": "State",
    "any_state": "Any",
    "states": {"due": "Due", "delayed": "Delayed", "held": "Held", "dead": "Dead letter"},
    "text": "Text",
    "text_hint": "in an address, the name, the last answer",
    "no_mail": "No mail fits.",
    "no_mail_yet": "None so far: the search goes on with the next page.",
    "next": "Next page",
    "first": "First page",
    "choose": "Choose the mail from",
    "chosen": "With the chosen mails",
    "found": "With all mails of this search, on every page",
    "found_all": "With every mail of the queue",
    "found_dead": "With every dead letter of this search",
    "found_dead_all": "With every dead letter of the queue",
    "not_selectable": "State and text do not select mail for an operation: choose mails above, or "
    "search by address, domain or age.",
    "null_sender": "no sender (<>)",
    "to": "to",
    "more_recipients": "more",
    "attempts": "attempts",
    "attempt_one": "attempt",
    "old": "old",
    "mail": "Mail",
    "why": "Why it waits",
    "why_dead": "Why it was given up",
    "path": "Path through time",
    "accepted": "Accepted",
    "entered": "This entry began",
    "unlogged": "attempts so far. The console knows no attempt log: start it with --log.",
    "last_answer": "The last answer:",
    "next_attempt": "Next attempt",
    "is_held": "No attempt until it is released",
    "is_due": "Next attempt: as soon as a worker has a connection",
    "is_dead": "Given up",
    "envelope": "Envelope",
    "recipients": "Recipients left",
    "mail_name": "Name",
    "size": "Size",
    "priority": "Priority",
    "mail_id": "Mail id",
    "enqueue_id": "Enqueue id",
    "attributes": "Attributes",
    "content": "Save its content",
    "actions": "Change this mail",
    "was": "This mail was",
    "confirm_title": "Is this meant?",
    "confirm_mails": "mails",
    "confirm_mail": "mail",
    "confirm_none": "No mail fits any more: nothing to do.",
    "changed": "The number has changed since you confirmed it:",
    "cancel": "Cancel",
    "selected_by": "Selected by",
    "selected_all": "every mail",
    "selected_ids": "chosen one by one",
    "operation": "Operation",
    "phases": {
        "Counted": "Counted only",
        "Running": "Under way",
        "Done": "Done",
        "Failed": "Failed",
    },
    "of": "of",
    "began": "Began",
    "ended": "Ended",
    "look_again": "Look again",
    "undo": "Undo",
    "undo_hint": "It is for all held mails of the same selection, also those held before.",
    "unchanged": "The others were so already, or have gone.",
    "back": "Back to the list",
    "dead_hint": "By reason, most first. Addresses in reasons are left out for this.",
    "no_reason": "No reason",
    "sites_hint": "Sites that workers deliver to, those in need first.",
    "no_sites": "No worker has mail for a site, and none is suspended.",
    "site": "Site",
    "connections": "Connections",
    "at_work": "At work",
    "last_reply": "Last answer",
    "until": "until",
    "rerouted": "Rerouted to",
    "more_sites": "more sites are left out.",
    "suspend": "Suspend",
    "resume": "Resume",
    "flush": "Try now",
    "duration": "For",
    "duration_hint": "such as 2h, 30 days at most",
    "reason": "Reason",
    "site_states": {
        "suspended": "Suspended",
        "backoff": "Backing off",
        "active": "Active",
        "waiting": "Waiting",
        "idle": "Idle",
    },
    "did_site": {
        "suspend": "The site is suspended; workers obey within seconds.",
        "resume": "The site gets mail again.",
    },
    "did_address": {
        "add": "The address is on the list.",
        "remove": "The address is off the list.",
    },
    "suppressed_hint": "Addresses that are not mailed.",
    "no_suppressed": "No address is on this list.",
    "address": "Address",
    "by": "By",
    "added": "Added",
    "expires": "Expires",
    "never": "never",
    "pending": "mailed yet: more refusals are needed",
    "suppress": "Put on the list",
    "readmit": "Take off",
    "lifetime": "For how long",
    "lifetime_hint": "such as 720h; empty: for good",
    "tenant": "Tenant",
    "tenant_hint": "empty: of mail without one",
    "show": "Show",
    "trace_hint": "The attempts of a recipient's mail, also of mail that is gone.",
    "within": "Within the last",
    "outcomes": {
        "delivered": "Delivered",
        "failed": "Failed",
        "deferred": "Deferred",
    },
    "no_attempts": "No attempt fits.",
    "view": "The view's configuration",
    "version": "Version",
    "slice_window": "Slice window",
    "bucket_count": "Buckets",
    "pace": "Browse start pace",
    "written": "written under version",
    "read": "read from version",
    "history": "History",
    "events": {
        "ConfigurationCreated": "Created",
        "ConfigurationChanged": "Changed",
        "ConfigurationRefused": "Refused",
        "ConfigurationAdopted": "Adopted",
        "HistoryFolded": "Earlier events, folded",
    },
    "refused": "Back to the queues",
    "token": "Token of Kubernetes",
    "log_in": "Log in",
}


def refused_title(status: int) -> str:
    """Return what a refusal is called."""
    return HTTPStatus(status).phrase
