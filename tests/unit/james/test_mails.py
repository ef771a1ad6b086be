"""What James queues becomes a mail with all that he keeps of it."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from postroad.domain.mail.mail import DsnOptions, Origin, RecipientDsn
from postroad.errors import InvalidInput, InvalidMail
from postroad.james.mails import QueuedMail, id_in, of_message, of_row

ID = UUID("b606a391-7cfb-452a-9028-ddc57200f6e7")
TYPED = '{"serializer":"IntSerializer","value":6}'
UPDATED = datetime(2026, 1, 2, 10, 0, 0, 250_000)  # noqa: DTZ001


def row(**changed: Any) -> dict[str, Any]:
    """A row as the driver returns it: timestamps without a zone."""
    return {
        "queuename": "spool",
        "timerangestart": datetime(2026, 1, 2, 10),  # noqa: DTZ001
        "bucketid": 1,
        "enqueueid": ID,
        "enqueuedtime": UPDATED,
        "name": "mail-6",
        "state": "transport",
        "headerblobid": "header",
        "bodyblobid": "body",
        "attributes": OrderedDict(number=TYPED.encode()),
        "errormessage": "451 later",
        "sender": "a@example.org",
        "recipients": ["b@example.net", "c@example.net"],
        "remotehost": "client.example.org",
        "remoteaddr": "192.0.2.6",
        "lastupdated": UPDATED,
        "perrecipientspecificheaders": [("b@example.net", "X-Only", "välue")],
    } | changed


def message(**changed: Any) -> bytes:
    found = {
        "enqueueId": str(ID),
        "recipients": ["b@example.net", "c@example.net"],
        "name": "mail-6",
        "sender": "a@example.org",
        "state": "transport",
        "errorMessage": "451 later",
        "lastUpdated": 1767348000.250000000,
        "attributes": {"number": TYPED},
        "remoteAddr": "192.0.2.6",
        "remoteHost": "client.example.org",
        "perRecipientHeaders": {"b@example.net": {"header": {"X-Only": ["välue"]}}},
        "headerBlobId": "header",
        "bodyBlobId": "body",
    } | changed
    return json.dumps(found).encode()


@pytest.mark.parametrize("queued", [of_row(row()), of_message(message())], ids=["row", "message"])
def test_row_and_message_become_the_same_mail(queued: QueuedMail) -> None:
    mail = queued.mail(b"Subject: hi\r\n\r\n\xff")

    assert (mail.sender, mail.recipients) == ("a@example.org", ("b@example.net", "c@example.net"))
    assert (mail.content, mail.name) == (b"Subject: hi\r\n\r\n\xff", "mail-6")
    assert mail.origin == Origin("client.example.org", "192.0.2.6")
    expected = {
        "james.enqueue-id": str(ID),
        "james.state": "transport",
        "james.error": "451 later",
        "james.last-updated": "2026-01-02T10:00:00.250Z",
        "james.per-recipient-headers": '[["b@example.net", "X-Only", "välue"]]',
        "james.attribute.number": TYPED,
    }
    if queued.enqueued:
        expected["james.enqueued"] = "2026-01-02T10:00:00.250Z"
    assert mail.attributes == expected


@pytest.mark.parametrize("sender", [None, "<>"])
def test_null_sender_stays_one(sender: str | None) -> None:
    assert of_row(row(sender=sender)).mail(b"").sender is None
    assert of_message(message(sender=sender)).mail(b"").sender is None


def test_what_james_left_unset_becomes_no_attribute() -> None:
    bare = row(
        state=None, errormessage=None, lastupdated=None, attributes=None,
        perrecipientspecificheaders=None, remotehost=None, remoteaddr=None, name=None,
    )  # fmt: skip
    mail = of_row(bare).mail(b"")

    assert mail.attributes == {
        "james.enqueue-id": str(ID),
        "james.enqueued": "2026-01-02T10:00:00.250Z",
    }
    assert (mail.origin, mail.name, mail.dsn) == (None, None, None)


def test_dsn_parameters_are_those_that_the_sender_gave() -> None:
    attributes = {
        "dsn-envid": {"serializer": "StringSerializer", "value": "QQ+2B1"},
        "dsn-ret": {"serializer": "StringSerializer", "value": "HDRS"},
        "dsn-notify": {
            "serializer": "MapSerializer",
            "value": {
                "b@example.net": {"serializer": "StringSerializer", "value": "FAILURE,DELAY"},
                "c@example.net": {"serializer": "StringSerializer", "value": "NEVER"},
            },
        },
        "dsn-orcpt": {
            "serializer": "MapSerializer",
            "value": {"b@example.net": {"serializer": "StringSerializer", "value": "d@e.example"}},
        },
    }
    typed = {name: json.dumps(value) for name, value in attributes.items()}

    assert of_message(message(attributes=typed)).mail(b"").dsn == DsnOptions(
        ret="HDRS",
        envid="QQ+1",
        recipients={
            "b@example.net": RecipientDsn(("FAILURE", "DELAY"), "rfc822;d@e.example"),
            "c@example.net": RecipientDsn(("NEVER",)),
        },
    )


def test_dsn_attributes_of_another_form_are_refused() -> None:
    typed = {"dsn-notify": '{"serializer":"StringSerializer","value":"NEVER"}'}
    with pytest.raises(InvalidInput, match="DSN"):
        of_message(message(attributes=typed)).mail(b"")


def test_field_of_a_later_james_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="column expiry, which") as refused:
        of_row(row(expiry=5))
    assert "later release" in refused.value.hint
    with pytest.raises(InvalidInput, match="field expiry, which"):
        of_message(message(expiry=None))


def test_column_of_a_later_james_without_a_value_is_no_matter() -> None:
    assert of_row(row(expiry=None)).enqueue_id == ID


@pytest.mark.parametrize(
    "changed",
    [
        {"headerblobid": None},
        {"bodyblobid": ""},
        {"attributes": {"x": b"no json"}},
        {"attributes": {"x": b'{"value": 1}'}},
        {"attributes": {"x": b'{"serializer": "IntSerializer"}'}},
        {"attributes": {"x": b"\xff"}},
    ],
)
def test_damaged_rows_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="its row cannot be read"):
        of_row(row(**changed))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"enqueueId": 5}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_message_of_james_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        of_message(body)
    assert id_in(body) is None


def test_id_of_an_unreadable_message_is_found() -> None:
    assert id_in(message(expiry=1)) == str(ID)


def test_mail_without_recipients_is_refused_as_a_mail() -> None:
    with pytest.raises(InvalidMail, match="recipients"):
        of_row(row(recipients=[])).mail(b"")


def test_repr_shows_no_address() -> None:
    assert "example" not in repr(of_row(row()))
