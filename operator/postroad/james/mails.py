"""Maps what James queues, a row of his view or a message of his broker, to a mail of postroad.

Pure. Both hold the whole envelope, and the ids of two blobs. What they hold beside it goes into
attributes under `james.`, so that nothing is lost: of his attributes the JSON with its type. A mail
with a field that no release known here has is refused: the field could change what the mail means.
Source: Apache James, EnqueuedMailsDaoUtil, MailReferenceDTO, Serializer, DsnParameters."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from postroad.domain.mail.mail import DsnOptions, Mail, Origin, RecipientDsn
from postroad.domain.mail.seven_bits import decode_xtext
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import json_line
from postroad.errors import InvalidInput

PREFIX = "james."
OF_ATTRIBUTE = f"{PREFIX}attribute."
_DSN = ("dsn-envid", "dsn-ret", "dsn-notify", "dsn-orcpt")

_COMMON = {"name", "sender", "recipients", "state", "attributes"}
_COLUMNS = _COMMON | {
    "queuename", "timerangestart", "bucketid", "enqueueid", "enqueuedtime", "headerblobid",
    "bodyblobid", "errormessage", "remotehost", "remoteaddr", "lastupdated",
    "perrecipientspecificheaders",
}  # fmt: skip
_FIELDS = _COMMON | {
    "enqueueId", "errorMessage", "lastUpdated", "remoteAddr", "remoteHost", "perRecipientHeaders",
    "headerBlobId", "bodyBlobId",
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class QueuedMail:
    """A mail in his queue, without its content. Its repr shows no address."""

    enqueue_id: UUID
    header_blob: str
    body_blob: str
    name: str | None
    sender: str | None
    recipients: tuple[str, ...]
    attributes: Mapping[str, str]
    """His own, by name: JSON with `serializer` and `value`."""

    headers: Sequence[tuple[str, str, str]] = ()
    """Recipient, name and value of the headers that one recipient alone gets."""

    state: str | None = None
    error: str | None = None
    updated: datetime | None = None
    enqueued: datetime | None = None
    host: str | None = None
    address: str | None = None

    def mail(self, content: bytes) -> Mail:
        """Return the mail to enqueue. Raises: InvalidMail; InvalidInput for DSN attributes that are
        not his."""
        kept = {
            "enqueue-id": str(self.enqueue_id),
            "enqueued": rfc3339(self.enqueued),
            "state": self.state,
            "error": self.error,
            "last-updated": rfc3339(self.updated),
            "per-recipient-headers": json_line(list(self.headers)) if self.headers else None,
        }
        return Mail(
            sender=self.sender,
            recipients=self.recipients,
            content=content,
            name=self.name,
            origin=Origin(self.host, self.address) if self.host or self.address else None,
            dsn=_dsn(self.attributes),
            attributes={
                **{PREFIX + name: value for name, value in kept.items() if value is not None},
                **{OF_ATTRIBUTE + name: value for name, value in self.attributes.items()},
            },
        )


def of_row(row: Mapping[str, Any]) -> QueuedMail:
    """Return the mail of a row. Raises: InvalidInput, for one that a later James wrote."""
    _check_known((name for name, value in row.items() if value is not None), _COLUMNS, "column")
    with _reading("row"):
        attributes = dict(row["attributes"] or {})
        return QueuedMail(
            enqueue_id=row["enqueueid"],
            header_blob=_text(row["headerblobid"]),
            body_blob=_text(row["bodyblobid"]),
            name=row["name"],
            sender=_sender(row["sender"]),
            recipients=tuple(row["recipients"] or ()),
            attributes={name: _typed(bytes(each).decode()) for name, each in attributes.items()},
            headers=[tuple(each) for each in row["perrecipientspecificheaders"] or ()],
            state=row["state"],
            error=row["errormessage"],
            updated=_utc(row["lastupdated"]),
            enqueued=_utc(row["enqueuedtime"]),
            host=row["remotehost"],
            address=row["remoteaddr"],
        )


def of_message(body: bytes) -> QueuedMail:
    """Return the mail of a message. Raises: InvalidInput, for one that is none of his, or that a
    later James sent."""
    with _reading("message"):
        found = json.loads(body)
        _check_known(found, _FIELDS, "field")
        per_recipient = found["perRecipientHeaders"] or {}
        return QueuedMail(
            enqueue_id=UUID(found["enqueueId"]),
            header_blob=_text(found["headerBlobId"]),
            body_blob=_text(found["bodyBlobId"]),
            name=found["name"],
            sender=_sender(found["sender"]),
            recipients=tuple(found["recipients"]),
            attributes={name: _typed(each) for name, each in found["attributes"].items()},
            headers=[
                (recipient, name, value)
                for recipient, headers in per_recipient.items()
                for name, values in headers["header"].items()
                for value in values
            ],
            state=found["state"],
            error=found["errorMessage"],
            updated=_instant(found["lastUpdated"]),
            host=found["remoteHost"],
            address=found["remoteAddr"],
        )


def id_in(body: bytes) -> str | None:
    """Return the enqueue id of a message that cannot be read otherwise; None: it has none."""
    try:
        return str(UUID(json.loads(body)["enqueueId"]))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except (
        *(AttributeError, KeyError, TypeError, ValueError, OverflowError),
        RecursionError,  # of JSON that nests too deeply
    ) as error:
        raise InvalidInput(
            f"its {what} cannot be read: {type(error).__name__}",
            hint="was it written by another release of James?",
        ) from error


def _check_known(names: Any, known: set[str], what: str) -> None:
    if unknown := sorted(set(names) - known):
        raise InvalidInput(
            f"James stored the {what} {unknown[0]}, which postroad does not know",
            hint="a later release of James wrote it: let James deliver it",
        )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("an id is missing")
    return value


def _typed(text: str) -> str:
    """Check an attribute's JSON, and return it as he stored it."""
    found = json.loads(text)
    if not isinstance(found["serializer"], str) or "value" not in found:
        raise ValueError("an attribute without its type")
    return text


def _sender(value: str | None) -> str | None:
    return None if value in {"<>", ""} else value


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


def _dsn(attributes: Mapping[str, str]) -> DsnOptions | None:
    """Return the DSN parameters that he keeps in attributes: reports go on as the sender asked."""
    found = {name: json.loads(attributes[name])["value"] for name in _DSN if name in attributes}
    if not found:
        return None
    try:
        notify = {each: typed["value"] for each, typed in found.get("dsn-notify", {}).items()}
        orcpt = {each: typed["value"] for each, typed in found.get("dsn-orcpt", {}).items()}
        envid = found.get("dsn-envid")
        return DsnOptions(
            ret=found.get("dsn-ret"),
            envid=None if envid is None else decode_xtext(envid),
            recipients={
                each: RecipientDsn(
                    tuple(filter(None, notify.get(each, "").split(","))),
                    f"rfc822;{orcpt[each]}" if each in orcpt else None,
                )
                for each in {**notify, **orcpt}
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput("its DSN attributes cannot be read") from error
