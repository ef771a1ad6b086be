"""Envelopes as JSON and back, for all that store and send them.

The *whole* form names every field, and its reader refuses a field that it does not know: bodies of
the broker (wire.py). The *brief* form leaves out what is not given, and its reader passes over what
it does not know: spool files and the log (FORMAT.md 4), the socket.

The columns of the view and the whole form have no place for a new field. There it travels among the
attributes, next to the mail's id, so that a handler which copies the attributes to another mail
does not copy it: `with_extras`, `extras_in`. A release that does not know the field keeps it as it
keeps any attribute. Source: ADR 0027; ADR 0030.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroad.domain.json_values import optional_text, texts, typed
from postroad.domain.mail import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    PRIORITY,
    DsnOptions,
    Envelope,
    Origin,
    RecipientDsn,
)
from postroad.domain.shapes import Shape, with_shape, without_shape
from postroad.errors import InvalidInput

_PRIORITY = re.compile("([0-9a-f]{32}) (-?[0-9]{1,9})")
_ENVELOPE_FIELDS = {"sender", "recipients", "name", "attributes", "origin", "dsn"}


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
    AttributeError, InvalidInput for what `brief_envelope` cannot have written."""
    origin, dsn = found.get("origin"), found.get("dsn")
    return Envelope(
        found["sender"],
        found["to"],
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
        recipients=tuple(texts(values["recipients"])),
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
        recipients[address] = RecipientDsn(tuple(texts(notify)), optional_text(orcpt))
    return DsnOptions(optional_text(values["ret"]), optional_text(values["envid"]), recipients)
