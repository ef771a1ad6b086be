"""Calls on the socket are the recorded bytes, and come back as what was given."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import DeferItem, Done, ItemEnding, Reject, RetryItem
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.domain.values.text import to_json
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.records import cut
from postroad.embedded.rpc.operations import CALLS, Leased, leased_value
from postroad.embedded.rpc.rpc import MAX_FRAME
from postroad.embedded.rpc.serving import OPERATIONS
from postroad.ports.mail_queue import Operation
from support.leased_mails import NotedMail

MAX_ENVELOPE = StoreOptions().largest_envelope
ENVELOPE = Envelope(None, ("b@example.net",))
HEARD = AttemptOutcomes.of({"b@example.net": Outcome.deferred("450 Greylisted")}, 0.5)
COUNTS = b'[["example.net","","deferred",450,"greylisted","Greylisted",1]]'
ENDINGS: list[tuple[ItemEnding, bytes]] = [
    (
        RetryItem(timedelta(0), None, "451"),
        b'{"name":"retry","reason":"451","delay":0,"remaining":null}',
    ),
    (
        RetryItem(timedelta(seconds=1), ("b@example.net",)),
        b'{"name":"retry","reason":null,"delay":1000000,"remaining":["b@example.net"]}',
    ),
    (
        DeferItem(timedelta(0), (), "rests"),
        b'{"name":"defer","reason":"rests","delay":0,"remaining":[]}',
    ),
]
SENT: list[tuple[str, dict[str, Any], bytes]] = [
    (
        "enqueue",
        {"mail": ENVELOPE, "delay": timedelta(seconds=1), "whole": True},
        b'{"mail":{"sender":null,"to":["b@example.net"]},"delay":1000000,"whole":true}',
    ),
    (
        "record",
        {"item": 1, "outcomes": {"b@example.net": Outcome.failed("550")}},
        b'{"item":1,"outcomes":{"b@example.net":["failed","550"]}}',
    ),
    *(("end", {"ending": ending}, b'{"ending":' + sent + b"}") for ending, sent in ENDINGS),
    (
        "end",
        {"item": 1, "ending": Done(), "outcomes": HEARD},
        b'{"item":1,"ending":{"name":"done"},"outcomes":{"seconds":0.5,"counts":' + COUNTS + b"}}",
    ),
    (
        "end",
        {"item": 1, "ending": Reject("no"), "outcomes": None},
        b'{"item":1,"ending":{"name":"reject","reason":"no"},"outcomes":null}',
    ),
    ("republish", {"older_than": timedelta(hours=1)}, b'{"older_than":3600000000}'),
    ("browse", {"selector": None}, b'{"selector":null}'),
]


@pytest.mark.parametrize(("name", "given", "sent"), SENT, ids=[each[0] for each in SENT])
def test_arguments_are_the_recorded_bytes(name: str, given: dict[str, Any], sent: bytes) -> None:
    assert to_json(CALLS[name].encoded(given)) == sent
    assert CALLS[name].decoded(json.loads(sent)) == given


def test_an_ending_of_another_name_is_refused() -> None:
    with pytest.raises(KeyError):
        CALLS["end"].decoded({"ending": {"name": "other", "remaining": None}})


@pytest.mark.parametrize("ending", [RetryItem(timedelta(0), None, "€" * 4096), Reject("€" * 4096)])
def test_a_reason_is_sent_as_far_as_it_is_kept(ending: RetryItem | Reject) -> None:
    sent = CALLS["end"].encoded({"ending": ending})["ending"]["reason"]

    assert sent == cut(ending.reason or "").decode()
    assert len(sent) < 4096


@pytest.mark.parametrize("operation", Operation)
def test_each_administrative_operation_is_a_call_of_its_name(operation: Operation) -> None:
    given = {"selector": Selector(name="n")}
    call = CALLS[operation.value]

    assert call.decoded(json.loads(to_json(call.encoded(given)))) == given


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("enqueue", UUID(int=7)),
        ("size", Sizes(3, 2, 1, None)),
        ("size", Sizes(3, 2, 1, 0, at_least=True)),
        ("ages", {"x.example": {timedelta(minutes=5): 2, timedelta.max: 1}}),
        ("shape", Shape(5, has_8bit_body=True)),
        ("shape", None),
        ("lend", [1, 2]),
    ],
    ids=str,
)
def test_a_result_comes_back(name: str, result: object) -> None:
    codec = CALLS[name].result

    assert codec.decode(json.loads(to_json(codec.encode(result)))) == result


def test_a_leased_mail_comes_back_with_its_number_and_its_failures() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    mail = NotedMail(UUID(int=7), UUID(int=8), ENVELOPE, moment, moment, 2, 10)

    value = json.loads(to_json(leased_value(3, mail, {"c@example.net": "550"})))

    leased = CALLS["next"].result.decode(value)
    assert leased == Leased(3, vars(mail), {"c@example.net": "550"})


@pytest.mark.parametrize("text", ["x" * 512, "\U0001f4e7" * 128], ids=["ASCII", "others"])
def test_what_was_heard_of_any_number_of_recipients_fits_into_a_frame(text: str) -> None:
    """Else the connection ends with all its leases, each time that such a mail is leased."""
    heard = {f"{number}@example.net": Outcome.failed(text) for number in range(150_000)}
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    mail = NotedMail(UUID(int=7), UUID(int=8), ENVELOPE, moment, moment, 2, 10)

    leased = leased_value(3, mail, {to: each.text for to, each in heard.items()})
    recorded = CALLS["record"].encoded({"item": 3, "outcomes": heard})

    for value in leased["failures"], recorded["outcomes"]:
        assert value.keys() == heard.keys()
    assert max(len(to_json(leased)), len(to_json(recorded))) < MAX_FRAME - MAX_ENVELOPE


def test_the_owner_does_each_call() -> None:
    assert OPERATIONS.keys() == CALLS.keys()
