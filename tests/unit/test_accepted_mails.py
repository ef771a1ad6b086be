"""Every mail that `Mail` accepts comes back equal from each engine; the others are refused by the
name of their field."""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from enum import Enum, StrEnum
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad import Mail, Outcome, open_queue
from postroad.domain.mail.given_values import MAX_ENVELOPE
from postroad.domain.mail.mail import (
    MIN_PRIORITY,
    NOTIFY,
    DsnOptions,
    Envelope,
    Origin,
    RecipientDsn,
)
from postroad.errors import InvalidInput, InvalidMail
from postroad.ports.mail_queue import MailQueue


class Names(StrEnum):
    """A string that is a member of an enumeration."""

    ANN = "ann@a.example"


class Printed(str, Enum):  # noqa: UP042 - as users write it
    """A string that prints as another one."""

    BEN = "ben@b.example"


GOOD: dict[str, Any] = {
    "sender": "a@a.example",
    "recipients": ("b@b.example",),
    "content": b"Subject: x\r\n\r\nx\r\n",
}
SURROGATES = ("\ud800", "a\udfff", "\ud800\udc00")
NO_TEXT: tuple[Any, ...] = (5, True, 1.5, float("nan"), b"x", ["x"], ..., *SURROGATES)
ANY_TEXT = st.text(max_size=8) | st.sampled_from(("", "\0", "\x1b[2J", "\r\n", "ü", "\U0001f600"))
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
NUMBERS = count()


def local(value: str) -> str:
    return f"{value}@a.example"


LOCALS = st.sampled_from(("a", '"a b"', "ü", "a+b", "A.B", "a.", "postmaster"))
ADDRESSES = st.builds(local, LOCALS) | st.sampled_from(("postmaster", "a@[192.0.2.1]", *Names))
DSN = st.builds(
    DsnOptions,
    ret=st.sampled_from((None, "FULL", "HDRS")),
    envid=st.none() | PRINTABLE,
    recipients=st.dictionaries(
        ADDRESSES,
        st.builds(
            RecipientDsn,
            notify=st.lists(st.sampled_from(sorted(NOTIFY)), max_size=3),
            orcpt=st.none() | PRINTABLE.map("rfc822;{}".format),
        ),
        max_size=2,
    ),
)
ORIGINS = st.builds(Origin, *[st.none() | ANY_TEXT] * 3)
BYTES = st.binary(max_size=40)
CONTENTS: st.SearchStrategy[Any] = (
    BYTES | BYTES.map(bytearray) | BYTES.map(lambda each: memoryview(each))
)
MAILS = st.builds(
    Mail,
    sender=st.none() | ADDRESSES,
    recipients=st.lists(ADDRESSES, min_size=1, max_size=4),
    content=CONTENTS,
    name=st.none() | ANY_TEXT,
    attributes=st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3),
    origin=st.none() | ORIGINS,
    dsn=st.none() | DSN,
    priority=st.integers(MIN_PRIORITY, -MIN_PRIORITY),
)


async def browsed(queue: MailQueue) -> list[Envelope]:
    return [view.mail async for view in queue.browse()]


async def check_that_all_come_back(url: str, mails: list[Mail]) -> None:
    async with open_queue(url, create=True) as queue:
        for mail in mails:
            await queue.enqueue(mail)
        assert await browsed(queue) == [mail.envelope for mail in mails]
    async with open_queue(url, create=True) as queue:
        assert await browsed(queue) == [mail.envelope for mail in mails]
        found = []
        async with aclosing(queue.dequeue(len(mails))) as items:  # type: ignore[type-var]
            async for item in items:
                found.append((item.mail, await item.content()))
                await item.done()
                if len(found) == len(mails):
                    break
        assert sorted(found, key=repr) == sorted(
            [(mail.envelope, mail.content) for mail in mails], key=repr
        )
        assert (await queue.size()).size == 0


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(MAILS, min_size=1, max_size=12))
@pytest.mark.parametrize("engine", ["embedded", "memory"])
def test_every_accepted_mail_comes_back_equal(engine: str, mails: list[Mail]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"embedded://{directory}/queue"
        if engine == "memory":
            url = f"memory://accepted-{next(NUMBERS)}"
        asyncio.run(check_that_all_come_back(url, mails))


async def stream() -> AsyncIterator[bytes]:
    yield b"x"


def named(value: object) -> str:
    """A name that is equal in every process of a run."""
    return repr(value).partition(" at 0x")[0][:40]


def refused() -> list[tuple[str, Any]]:
    return [
        *(("sender", value) for value in (*NO_TEXT, "", "<>", "a", "Ann <a@a.example>")),
        *(("recipients", value) for value in (*NO_TEXT, None, "a@a.example", (), [])),
        *(("recipients", (value,)) for value in (*NO_TEXT, None, "", "a")),
        *(("name", value) for value in (*NO_TEXT, "x" * (MAX_ENVELOPE + 1))),
        *(("attributes", value) for value in (*NO_TEXT, None, ("a", "b"))),
        *(("attributes", {"a": value}) for value in (*NO_TEXT, None, {})),
        *(("attributes", {value: "a"}) for value in (5, None, True, b"x", *SURROGATES)),
        ("attributes", {"a": "x" * MAX_ENVELOPE}),
        *(("origin", value) for value in (*NO_TEXT, {"host": "x"})),
        *(("dsn", value) for value in (*NO_TEXT, {"ret": "FULL"})),
        *(("priority", value) for value in (*NO_TEXT[1:], None, False, 0.0, 101, -101, 10**400)),
        *(("content", value) for value in (None, "x", 5, [b"x"], io.BytesIO(b"x"))),
        ("content", (each for each in [b"x"])),
    ]


@pytest.mark.parametrize(("field", "value"), refused(), ids=named)
def test_a_field_of_another_kind_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidMail, match=f"(?i){field}"):
        Mail(**GOOD | {field: value})


@pytest.mark.parametrize("value", [each for each in NO_TEXT if each != "\ud800"], ids=named)
@pytest.mark.parametrize(
    ("made", "field"),
    [
        *((Origin, name) for name in ("host", "address", "protocol")),
        *((DsnOptions, name) for name in ("ret", "envid", "recipients")),
        *((RecipientDsn, name) for name in ("notify", "orcpt")),
    ],
)
def test_options_of_another_kind_are_refused_by_their_name(
    made: Any, field: str, value: Any
) -> None:
    with pytest.raises(InvalidMail, match=f"(?i){field}"):
        made(**{field: value})


@pytest.mark.parametrize("sender", ["", "<>"])
def test_a_null_sender_by_another_name_gets_the_right_one(sender: str) -> None:
    with pytest.raises(InvalidMail) as caught:
        Mail(**GOOD | {"sender": sender})

    assert "None" in caught.value.hint


def test_members_of_enumerations_are_kept_as_plain_strings() -> None:
    mail = Mail(Printed.BEN, (Names.ANN,), b"", attributes={Printed.BEN: Printed.BEN})

    kept = [mail.sender, *mail.recipients, *mail.attributes, *mail.attributes.values()]
    assert {type(each) for each in kept} == {str}
    assert f"{mail.envelope.sender}" == "ben@b.example"


def test_what_a_mail_was_made_of_may_change_afterwards() -> None:
    recipients, attributes, content = ["b@b.example"], {"a": "b"}, bytearray(b"x")
    mail = Mail("a@a.example", recipients, content, attributes=attributes)

    recipients.append("broken")
    attributes["n"] = 5  # type: ignore[assignment]
    content.clear()

    assert mail == Mail("a@a.example", ("b@b.example",), b"x", attributes={"a": "b"})
    assert mail.envelope.attributes == {"a": "b"}


def test_options_without_any_are_none() -> None:
    assert Mail(**GOOD, origin=Origin()).origin is None


async def of_texts() -> AsyncIterator[Any]:
    yield "x"


async def of_arrays() -> AsyncIterator[Any]:
    yield bytearray(b"ab")
    yield memoryview(b"c")


async def of_an_error() -> AsyncIterator[bytes]:
    yield b"x"
    raise ArithmeticError


class Stream:
    """An object that is no iterator itself."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return stream()


@pytest.fixture(params=["embedded", "memory"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MailQueue]:
    url = f"embedded://{tmp_path}/queue"
    if request.param == "memory":
        url = f"memory://accepted-{next(NUMBERS)}"
    async with open_queue(url, create=True) as opened:
        yield opened


@pytest.mark.parametrize("missing", ["file", "directory", "texts"])
async def test_a_content_that_cannot_be_read_is_refused_and_queues_nothing(
    queue: MailQueue, tmp_path: Path, missing: str
) -> None:
    contents = {"file": tmp_path / "none", "directory": tmp_path, "texts": of_texts()}

    with pytest.raises(InvalidMail, match="content"):
        await queue.enqueue(Mail(**GOOD | {"content": contents[missing]}))

    assert (await queue.size()).size == 0


async def test_the_error_of_a_stream_is_the_callers(queue: MailQueue) -> None:
    with pytest.raises(ArithmeticError):
        await queue.enqueue(Mail(**GOOD | {"content": of_an_error()}))

    assert (await queue.size()).size == 0


@pytest.mark.parametrize(("content", "whole"), [(of_arrays, b"abc"), (Stream, b"x")])
async def test_streams_of_any_bytes_are_taken(queue: MailQueue, content: Any, whole: bytes) -> None:
    await queue.enqueue(Mail(**GOOD | {"content": content()}))

    assert await (await anext(queue.dequeue())).content() == whole


@pytest.mark.parametrize("delay", [5, 0.5, None, "5s", float("nan")])
async def test_a_delay_that_is_no_timedelta_is_refused(queue: MailQueue, delay: Any) -> None:
    with pytest.raises(InvalidInput, match="timedelta"):
        await queue.enqueue(Mail(**GOOD), delay)
    await queue.enqueue(Mail(**GOOD))
    item = await anext(queue.dequeue())
    for again in (item.retry, item.defer):
        with pytest.raises(InvalidInput, match="timedelta"):
            await again(delay)
    await item.done()
    assert (await queue.size()).size == 0


@pytest.mark.parametrize("key", [5, b"x", "", "x" * 513])
async def test_a_key_of_another_kind_is_refused(queue: MailQueue, key: Any) -> None:
    with pytest.raises(InvalidInput, match="key"):
        await queue.enqueue(Mail(**GOOD), key=key)


@pytest.mark.parametrize("prefetch", ["3", 2.5, None, True, 0])
async def test_a_prefetch_of_another_kind_is_refused(queue: MailQueue, prefetch: Any) -> None:
    with pytest.raises(InvalidInput, match="prefetch"):
        await anext(queue.dequeue(prefetch))


async def test_why_an_item_ends_is_a_string_with_whatever_characters(queue: MailQueue) -> None:
    await queue.enqueue(Mail(**GOOD))
    item = await anext(queue.dequeue(1))
    endings: list[Any] = [
        lambda: item.retry(timedelta(0), error=5),  # type: ignore[arg-type]
        lambda: item.defer(timedelta(0), reason=b"x"),  # type: ignore[arg-type]
        lambda: item.reject(None),  # type: ignore[arg-type]
    ]
    for ending in endings:
        with pytest.raises(InvalidInput, match="string"):
            await ending()

    await item.reject("no\ud800")

    assert [view.reason async for view in queue.dead_letters()] == ["no?"]


@pytest.mark.parametrize("value", [5, None, b"x"])
def test_an_outcome_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="string"):
        Outcome.failed(value)
    with pytest.raises(ValueError, match="OutcomeKind"):
        Outcome(value)
    assert Outcome("failed", "no\ud800") == Outcome.failed("no?")  # type: ignore[arg-type]
