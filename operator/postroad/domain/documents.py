"""Envelopes, views, selectors, sizes, leased mails and outcomes as JSON and back, for all that
store, send or print them.

An envelope has two forms. The *whole* form names every field, and its reader refuses a field that
it does not know: bodies of the broker (wire.py). The *brief* form leaves out what is not given, and
its reader passes over what it does not know: spool files and the log (FORMAT.md 4), the socket.
Views have two as well: exact, with instants in microseconds (the socket), and printed, with times
as text (`browse --json`).

The columns of the view and the whole form have no place for a new field. There it travels among the
attributes, next to the mail's id, so that a handler which copies the attributes to another mail
does not copy it: `with_extras`, `extras_in`. A release that does not know the field keeps it as it
keeps any attribute. Source: ADR 0027; ADR 0030.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroad.domain.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.bounces import BounceClass
from postroad.domain.instants import (
    duration,
    duration_us,
    instant,
    microseconds,
    optional_instant,
    optional_microseconds,
    rfc3339,
)
from postroad.domain.mail import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    DsnOptions,
    Envelope,
    Origin,
    OutcomeKind,
    RecipientDsn,
)
from postroad.domain.mail_views import LeasedMail, MailView, Sizes
from postroad.domain.selection import Selector
from postroad.domain.shapes import Shape, with_shape, without_shape
from postroad.errors import InvalidInput

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with separators makes an encoder for each call."""

PRIORITY = "postroad.priority"
"""The attribute that holds a priority other than 0 where attributes hold what has no place."""

_PRIORITY = re.compile("([0-9a-f]{32}) (-?[0-9]{1,9})")
_ENVELOPE_FIELDS = {"sender", "recipients", "name", "attributes", "origin", "dsn"}


def to_json(content: object) -> bytes:
    """Return compact JSON in ASCII: it holds any string, lone surrogates included."""
    return _compact(content).encode("ascii")


# Envelopes


def brief_envelope(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope in the brief form."""
    found: dict[str, Any] = {"sender": envelope.sender, "to": envelope.recipients}
    if envelope.name is not None:
        found["name"] = envelope.name
    if envelope.attributes:
        found["attributes"] = dict(envelope.attributes)
    if envelope.origin is not None:
        found["origin"] = _origin_values(envelope.origin)
    if (dsn := envelope.dsn) is not None:
        found["dsn"] = [dsn.ret, dsn.envid, _dsn_recipients(dsn)]
    if envelope.priority:
        found["priority"] = envelope.priority
    return found


def envelope_of_brief(found: Mapping[str, Any]) -> Envelope:
    """Return the envelope of its brief form. Raises: ValueError, LookupError, TypeError,
    AttributeError, InvalidMail for what `brief_envelope` cannot have written."""
    origin, dsn = found.get("origin"), found.get("dsn")
    return Envelope(
        found["sender"],
        tuple(found["to"]),
        found.get("name"),
        found.get("attributes", {}),
        None if origin is None else Origin(*origin),
        None if dsn is None else _brief_dsn(*dsn),
        found.get("priority", 0),
    )


def whole_envelope(envelope: Envelope, shape: Shape | None, mail_id: UUID) -> dict[str, Any]:
    """Return an envelope in the whole form, with the shape of its mail."""
    origin, dsn = envelope.origin, envelope.dsn
    return {
        "sender": envelope.sender,
        "recipients": envelope.recipients,
        "name": envelope.name,
        "attributes": dict(with_extras(envelope, shape, mail_id)),
        "origin": origin and _origin_values(origin),
        "dsn": dsn and {"ret": dsn.ret, "envid": dsn.envid, "recipients": _dsn_recipients(dsn)},
    }


def envelope_of_whole(values: Any, mail_id: UUID) -> tuple[Envelope, Shape | None]:
    """Return the envelope of its whole form, and the shape. Raises: InvalidInput, TypeError,
    KeyError, ValueError."""
    if typed(values, dict).keys() != _ENVELOPE_FIELDS:
        raise InvalidInput("a field of the envelope is missing or unknown")
    origin, dsn = values["origin"], values["dsn"]
    extras, shape = extras_in(_attributes(values["attributes"]), mail_id)
    envelope = Envelope(
        sender=optional_text(values["sender"]),
        recipients=tuple(_texts(values["recipients"])),
        name=optional_text(values["name"]),
        origin=None if origin is None else _whole_origin(origin),
        dsn=None if dsn is None else _whole_dsn(dsn),
        **extras,
    )
    return envelope, shape


def with_extras(envelope: Envelope, shape: Shape | None, mail_id: UUID) -> Mapping[str, str]:
    """Return the attributes as they are stored, with all that has no place of its own."""
    attributes = with_shape(envelope.attributes, shape, mail_id)
    if envelope.priority:
        return {**attributes, PRIORITY: f"{mail_id.hex} {envelope.priority}"}
    return attributes


def extras_in(stored: Mapping[str, str], mail_id: UUID) -> tuple[dict[str, Any], Shape | None]:
    """Return what `with_extras` stored: fields of `Envelope` by their names, the attributes as the
    user gave them among them, and the shape."""
    attributes, shape = without_shape(stored, mail_id)
    extras: dict[str, Any] = {}
    if (found := _PRIORITY.fullmatch(attributes.get(PRIORITY, ""))) is not None:
        attributes = {name: text for name, text in attributes.items() if name != PRIORITY}
        is_known = LOWEST_PRIORITY <= int(found[2]) <= HIGHEST_PRIORITY
        if found[1] == mail_id.hex and is_known:  # else another mail's, or another release's
            extras["priority"] = int(found[2])
    return {"attributes": MappingProxyType(dict(attributes)), **extras}, shape


def _origin_values(origin: Origin) -> list[str | None]:
    return [origin.host, origin.address, origin.protocol]


def _dsn_recipients(dsn: DsnOptions) -> dict[str, Any]:
    return {to: [options.notify, options.orcpt] for to, options in dsn.recipients.items()}


def _brief_dsn(ret: str | None, envid: str | None, recipients: Mapping[str, Any]) -> DsnOptions:
    each = {to: RecipientDsn(tuple(notify), orcpt) for to, (notify, orcpt) in recipients.items()}
    return DsnOptions(ret, envid, each)


def _attributes(values: Any) -> Mapping[str, str]:
    return {name: typed(value, str) for name, value in typed(values, dict).items()}


def _whole_origin(values: Any) -> Origin:
    host, address, protocol = typed(values, list)
    return Origin(optional_text(host), optional_text(address), optional_text(protocol))


def _whole_dsn(values: Any) -> DsnOptions:
    recipients: dict[str, RecipientDsn] = {}
    for address, (notify, orcpt) in typed(values["recipients"], dict).items():
        recipients[address] = RecipientDsn(tuple(_texts(notify)), optional_text(orcpt))
    return DsnOptions(optional_text(values["ret"]), optional_text(values["envid"]), recipients)


# Views, sizes, leased mails


def exact_view(view: MailView) -> dict[str, Any]:
    """Return a view in the exact form."""
    return {
        "enqueue_id": str(view.enqueue_id),
        "mail_id": str(view.mail_id),
        "mail": brief_envelope(view.mail),
        "accepted_at": microseconds(view.accepted_at),
        "enqueued_at": microseconds(view.enqueued_at),
        "due_at": optional_microseconds(view.due_at),
        "held": view.held,
        "attempt": view.attempt,
        "size_bytes": view.size_bytes,
        "last_error": view.last_error,
        "reason": view.reason,
    }


def view_of_exact(value: Mapping[str, Any]) -> MailView:
    """Return the view of its exact form."""
    return MailView(
        UUID(value["enqueue_id"]),
        UUID(value["mail_id"]),
        envelope_of_brief(value["mail"]),
        instant(value["accepted_at"]),
        instant(value["enqueued_at"]),
        optional_instant(value["due_at"]),
        value["held"],
        value["attempt"],
        value["size_bytes"],
        value["last_error"],
        value["reason"],
    )


def printed_view(view: MailView) -> dict[str, Any]:
    """Return a view in the printed form; only a dead letter has a `reason`."""
    values: dict[str, Any] = {
        "enqueue_id": str(view.enqueue_id),
        "mail_id": str(view.mail_id),
        "name": view.mail.name,
        "sender": view.mail.sender,
        "recipients": list(view.mail.recipients),
        "accepted_at": rfc3339(view.accepted_at),
        "enqueued_at": rfc3339(view.enqueued_at),
        "due_at": rfc3339(view.due_at),
        "held": view.held,
        "attempt": view.attempt,
        "priority": view.mail.priority,
        "size_bytes": view.size_bytes,
        "last_error": view.last_error,
    }
    return values if view.reason is None else values | {"reason": view.reason}


def sizes_value(sizes: Sizes) -> dict[str, int | None]:
    """Return sizes by name, sent and printed alike; `at_least` only where it holds, because a
    process of the release before does not know it."""
    values = asdict(sizes)
    if not sizes.at_least:
        del values["at_least"]
    return values


def leased_value(leased: LeasedMail) -> dict[str, Any]:
    """Return a leased mail with exact instants."""
    return {
        "enqueue_id": str(leased.enqueue_id),
        "mail_id": str(leased.mail_id),
        "mail": brief_envelope(leased.mail),
        "accepted_at": microseconds(leased.accepted_at),
        "enqueued_at": microseconds(leased.enqueued_at),
        "attempt": leased.attempt,
        "size_bytes": leased.size_bytes,
    }


def leased_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the LeasedMail that `leased_value` wrote, by name."""
    return {
        "enqueue_id": UUID(value["enqueue_id"]),
        "mail_id": UUID(value["mail_id"]),
        "mail": envelope_of_brief(value["mail"]),
        "accepted_at": instant(value["accepted_at"]),
        "enqueued_at": instant(value["enqueued_at"]),
        "attempt": value["attempt"],
        "size_bytes": value["size_bytes"],
    }


# What is kept of an attempt


def outcomes_value(outcomes: AttemptOutcomes | None) -> dict[str, Any] | None:
    """Return what is kept of an attempt: seconds, and counts as lists in the order of fields."""
    if outcomes is None:
        return None
    counts = [
        [each.domain, each.site, each.kind, each.code, each.reason, each.words, each.count]
        for each in outcomes.counts
    ]
    return {"seconds": outcomes.seconds, "counts": counts}


def outcomes_of(value: Any) -> AttemptOutcomes | None:
    """Return what `outcomes_value` wrote, in this or a later release; None for what cannot be read,
    because nothing depends on it."""
    try:
        counts = tuple(_count(*each) for each in value["counts"])
        return AttemptOutcomes(counts, float(value["seconds"]))
    except (TypeError, ValueError, LookupError):
        return None


def _count(
    domain: str,
    site: str,
    kind: str,
    code: int,
    reason: str | None,
    words: str,
    count: int,
    *_: object,
) -> OutcomeCount:
    known = None if reason is None else BounceClass.known(reason)
    return OutcomeCount(
        *(str(domain), str(site), OutcomeKind(kind), int(code), known, str(words), int(count))
    )


# Selectors


def selector_value(selector: Selector | None) -> dict[str, Any] | None:
    """Return a selector with its age in microseconds; None stands for no selector at all."""
    if selector is None:
        return None
    age, enqueue_id = selector.older_than, selector.enqueue_id
    value = asdict(selector) | {
        "enqueue_id": None if enqueue_id is None else str(enqueue_id),
        "older_than": None if age is None else duration_us(age),
    }
    domains = value.pop("domains")  # an owner of the release before knows none
    return value if domains is None else value | {"domains": sorted(domains)}


def selector_of(value: Mapping[str, Any] | None) -> Selector | None:
    """Return the selector that `selector_value` wrote. Raises: TypeError, ValueError."""
    if value is None:
        return None
    fields = dict(value)
    if fields["enqueue_id"] is not None:
        fields["enqueue_id"] = UUID(fields["enqueue_id"])
    if fields["older_than"] is not None:
        fields["older_than"] = duration(fields["older_than"])
    if fields["attribute"] is not None:
        name, text = fields["attribute"]
        fields["attribute"] = (name, text)
    if "domains" in fields:
        fields["domains"] = frozenset(map(str, fields["domains"]))
    return Selector(**fields)


# Values that were read


def typed(value: Any, kind: type) -> Any:
    """Return a value of a type. Raises: InvalidInput."""
    if not isinstance(value, kind):
        raise InvalidInput(f"a value is no {kind.__name__}")
    return value


def natural(value: Any) -> int:
    """Return a whole number from 0 on. Raises: InvalidInput."""
    number: int = typed(value, int)
    if number < 0 or isinstance(value, bool):
        raise InvalidInput("a number is negative")
    return number


def optional_text(value: Any) -> str | None:
    """Return a text or None. Raises: InvalidInput."""
    if value is None:
        return None
    text: str = typed(value, str)
    return text


def _texts(values: Any) -> list[str]:
    return [typed(each, str) for each in typed(values, list)]
