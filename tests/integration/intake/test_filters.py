"""Filters before 250, from the file of intake to the queue: by SMTP and by HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroad import open_queue
from postroad.domain.mail.mail import QUARANTINE, DsnOptions, RecipientDsn
from postroad.errors import InvalidSettings
from postroad.intake.filters import opening
from postroad.intake.filters.room import LARGE_MAIL, FilterRoom
from postroad.intake.message_buffer import MEMORY_BYTES
from postroad.intake_settings.intake_file import read_intake
from support.filter_functions import SEEN, decide, decide_async, fold, rewrite
from support.http_clients import Answer, a_mail, ask
from support.intake_files import ALICE, HTTP, RunningIntake, an_intake_by_file
from support.scripted_milter import CONTINUE, ScriptedMilter, packet
from support.scripted_milter import running as running_milter
from support.webhook_server import SECRET, WebhookServer

FUNCTION: dict[str, Any] = {"name": "mine", "function": "support.filter_functions:decide"}
RELAY: dict[str, Any] = {"listeners": [{"name": "relay", "role": "relay"}], "filters": [FUNCTION]}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def mail_that(body: bytes = b"hello\r\n", **decision: Any) -> bytes:
    """A mail for which the function decides so."""
    return b"X-Do: " + json.dumps(decision).encode() + b"\r\nSubject: x\r\n\r\n" + body


async def sent(running: RunningIntake, content: bytes, *to: str) -> tuple[int, bytes]:
    """Send a mail; return the reply to it."""

    def work() -> tuple[int, bytes]:
        with running.client("relay", secured=False) as client:
            client.ehlo()
            client.mail("a@x.example")
            for each in to or ("b@y.example",):
                client.rcpt(each)
            return client.data(content)

    return await asyncio.to_thread(work)


@pytest.mark.parametrize("call", [decide, decide_async])
async def test_a_function_sees_a_mail_and_changes_all_of_it(tmp_path: Path, call: Any) -> None:
    filters = [FUNCTION | {"function": f"support.filter_functions:{call.__name__}"}]
    content = mail_that(
        headers=[["add", "X-Seen", "yes"], ["remove", "X-Do"]],
        sender="z@x.example",
        add_recipients=["c@y.example"],
        remove_recipients=["b@y.example"],
    )
    async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}) as running:
        code, _ = await sent(running, content)

    assert code == 250
    ((mail, queued),) = running.queue.mails
    assert (mail.sender, mail.recipients) == ("z@x.example", ("c@y.example",))
    assert queued.startswith(b"Received: ")
    assert queued.endswith(b"\r\nSubject: x\r\nX-Seen: yes\r\n\r\nhello\r\n")
    (seen,) = SEEN
    assert (seen.sender, seen.recipients, seen.content) == (
        "a@x.example",
        ("b@y.example",),
        content,
    )
    assert seen.client.host == "client.example"
    assert (seen.client.address, seen.client.protocol) == ("127.0.0.1", "ESMTP")
    assert (seen.hostname, seen.name, seen.user) == ("intake.example", mail.name, None)


@pytest.mark.parametrize("size", [10, 3 * MEMORY_BYTES])
@pytest.mark.parametrize("grown", [0, 3 * MEMORY_BYTES // 12])
async def test_mails_in_files_are_filtered_as_those_in_memory(
    tmp_path: Path, size: int, grown: int
) -> None:
    body = b"0123456789\r\n" * (size // 12 + 1)
    content = mail_that(body, headers=[["add", "X", "y"]], **({"grow": grown} if grown else {}))
    async with an_intake_by_file(tmp_path, RELAY) as running:
        assert (await sent(running, content))[0] == 250

    ((mail, queued),) = running.queue.mails
    assert mail.shape is not None
    assert mail.shape.header_size == queued.index(b"\r\n\r\n") + 4
    assert queued.partition(b"\r\n\r\n")[2] == (b"0123456789\r\n" * grown if grown else body)
    assert b"\r\nX: y\r\n\r\n" in queued


@pytest.mark.parametrize(
    ("decision", "code", "count"),
    [
        ({"verdict": "reject", "reply": "554 5.7.1 spam"}, 554, 0),
        ({"verdict": "defer"}, 451, 0),
        ({"verdict": "discard"}, 250, 0),
        ({"verdict": "nonsense"}, 451, 0),
        ({"nonsense": 1}, 451, 0),
        ({"remove_recipients": ["b@y.example"]}, 451, 0),
        ({}, 250, 1),
    ],
)
async def test_the_reply_is_what_the_filter_decides(
    tmp_path: Path, decision: dict[str, Any], code: int, count: int
) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        assert (await sent(running, mail_that(**decision)))[0] == code
        assert (await sent(running, b"Subject: x\r\n\r\nnext\r\n"))[0] == 250

    assert len(running.queue.mails) == count + 1


async def test_a_recipient_that_a_filter_removes_takes_its_parameters_along(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:

        def work() -> int:
            with running.client("relay", secured=False) as client:
                client.ehlo()
                client.mail("a@x.example", ["RET=HDRS"])
                client.rcpt("b@y.example", ["NOTIFY=NEVER"])
                client.rcpt("c@y.example", ["NOTIFY=FAILURE"])
                content = mail_that(
                    remove_recipients=["b@y.example"], add_recipients=["d@y.example"]
                )
                return client.data(content)[0]

        assert await asyncio.to_thread(work) == 250

    ((mail, _),) = running.queue.mails
    assert mail.recipients == ("c@y.example", "d@y.example")
    of_each = {"c@y.example": RecipientDsn(("FAILURE",)), "d@y.example": RecipientDsn(("NEVER",))}
    assert mail.dsn == DsnOptions("HDRS", None, of_each)


async def test_no_report_names_a_recipient_that_a_filter_adds(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        assert (await sent(running, mail_that(add_recipients=["d@y.example"])))[0] == 250

    ((mail, _),) = running.queue.mails
    assert mail.dsn == DsnOptions(None, None, {"d@y.example": RecipientDsn(("NEVER",))})


async def test_the_log_has_the_codes_of_a_filters_reply_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postroad.intake")
    async with an_intake_by_file(tmp_path, RELAY) as running:
        for reply in ("550 5.1.1 no b@y.example", "554 5.7.1 b@y.example"):
            content = mail_that(verdict="reject", reply=reply)
            assert (await sent(running, content))[1] == reply[4:].encode()

    logged = [vars(each) for each in caplog.records if each.message == "mail refused"]
    assert [each["reply"] for each in logged] == ["550 5.1.1", "554 5.7.1"]
    assert "y.example" not in str(logged)


async def test_a_mail_that_a_filter_holds_is_queued_as_held(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        assert (await sent(running, mail_that(hold="EICAR")))[0] == 250

    assert running.queue.mails[0][0].attributes == {QUARANTINE: "mine: EICAR"}


async def test_a_milter_and_a_function_filter_in_order(tmp_path: Path) -> None:
    milter = ScriptedMilter()
    milter.replies[b"E"] = packet(b"h", b"X-Milter\0yes\0") + packet(b"q", b"spam\0") + CONTINUE
    async with running_milter(milter, tmp_path):
        filters = [{"name": "m", "milter": milter.address}, FUNCTION]
        async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}) as running:
            body = b"0123456789\r\n" * (MEMORY_BYTES // 10)
            assert (await sent(running, mail_that(body), "b@y.example", "c@y.example"))[0] == 250
            milter.replies[b"R"] = packet(b"y", b"450 4.7.1 grey\0")
            assert await sent(running, mail_that()) == (450, b"4.7.1 grey")

    ((mail, content),) = running.queue.mails
    assert mail.attributes == {QUARANTINE: "m: spam"}
    assert content.partition(b"\r\n\r\n")[0].endswith(b"\r\nX-Milter: yes")
    assert [b"X-Milter: yes" in each.content for each in SEEN] == [True]
    assert b"".join(milter.of(b"B"))[: len(body)] == body
    assert milter.commands().count(b"R") == 3


async def test_a_hook_filters_and_its_secret_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    other = "whsec_" + base64.b64encode(b"o" * 32).decode()
    async with WebhookServer() as server:
        server.body = b'{"headers": [{"action": "add", "name": "X", "value": "y"}]}'
        filters = [{"name": "hook", "http": server.url, "secret": {"file": "secret"}}]
        async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}) as running:
            assert (await sent(running, b"A: 1\r\n\r\nhi\r\n"))[0] == 250
            assert server.requests[0].is_signed_by(SECRET)
            (tmp_path / "secret").write_text(other)
            running.process.look()
            while not server.requests[-1].is_signed_by(other):
                assert (await sent(running, b"A: 1\r\n\r\nhi\r\n"))[0] == 250
            server.statuses = {"b@y.example": 500}
            assert (await sent(running, b"A: 1\r\n\r\nhi\r\n"))[0] == 451

    assert running.queue.mails[0][1].endswith(b"\r\nA: 1\r\nX: y\r\n\r\nhi\r\n")


@pytest.mark.parametrize("secret", [None, "", "short"])
async def test_a_secret_that_cannot_sign_is_refused_at_the_start(
    tmp_path: Path, secret: str | None
) -> None:
    if secret is not None:
        (tmp_path / "secret").write_text(secret)
    filters = [{"name": "hook", "http": "https://x.example/", "secret": {"file": "secret"}}]
    with pytest.raises(InvalidSettings, match="the secrets of the filter hook"):
        async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}):
            pass


async def test_http_submission_goes_through_the_same_filters(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP | {"filters": [FUNCTION]}) as running:

        async def status(**decision: Any) -> int:
            target = "/v1/mails?from=a@x.example&to=b@y.example"
            headers = {"Content-Type": "message/rfc822"}
            answer = await ask(running, target, data=mail_that(**decision), headers=headers)
            return answer.status

        assert await status(verdict="reject") == 422
        assert await status(verdict="defer") == 503
        assert await status(verdict="discard") == 201
        assert await status(headers=[["add", "X", "y"]]) == 201

    assert [b"X: y" in content for _, content in running.queue.mails] == [True]
    assert {each.user for each in SEEN} == {ALICE}


async def test_what_filters_add_is_not_held_against_the_limit_of_the_client(tmp_path: Path) -> None:
    content = mail_that((b"x" * 70 + b"\r\n") * 1000, headers=[["add", "X", "y" * 100]])
    async with an_intake_by_file(tmp_path, RELAY, max_size_bytes=len(content)) as running:
        assert (await sent(running, content))[0] == 250
        assert (await sent(running, content + b"x\r\n"))[0] == 552

    assert [b"X: yyy" in content for _, content in running.queue.mails] == [True]


@pytest.mark.parametrize(("on_error", "code"), [("Defer", 451), ("Accept", 250)])
async def test_a_fault_of_a_filter_is_no_fault_of_the_client(
    tmp_path: Path, on_error: str, code: int
) -> None:
    filters = [
        FUNCTION | {"function": f"support.filter_functions:{fold.__name__}", "onError": on_error}
    ]
    async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}) as running:
        assert (await sent(running, b"A: 1\r\n\r\nbody\r\n"))[0] == code

    assert [content[-6:] for _, content in running.queue.mails] == [b"body\r\n"] * (code == 250)


async def test_a_mail_that_finds_no_room_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = partial(FilterRoom, 4 * LARGE_MAIL, timedelta(seconds=0.01))
    monkeypatch.setattr(opening, "FilterRoom", room)
    milter, content = ScriptedMilter(replies={b"E": None}), b"A: 1\r\n\r\n" + b"x\r\n" * 400_000
    async with running_milter(milter, tmp_path):
        filters = [{"name": "m", "milter": milter.address, "timeout": "10s"}]
        async with an_intake_by_file(tmp_path, RELAY | {"filters": filters}) as running:
            first = asyncio.create_task(sent(running, content))
            while not milter.of(b"E"):
                await asyncio.sleep(0.01)
            assert await sent(running, content) == (451, b"4.3.0 not now, come again")
            assert (await first)[0] == 451


async def test_a_key_stands_for_what_the_client_asked_for(tmp_path: Path) -> None:
    """Whatever a filter makes of it: another sender each time, the same recipients each time."""
    filters = [FUNCTION | {"function": f"support.filter_functions:{rewrite.__name__}"}]
    async with open_queue(f"embedded://{tmp_path}/store", create=True) as queue:
        document = HTTP | {"filters": filters}
        async with an_intake_by_file(tmp_path, document, queue=queue) as running:

            async def post(**more: Any) -> Answer:
                return await ask(running, json=a_mail(**more), headers={"Idempotency-Key": "k"})

            first, again = await post(), await post()
            others = [
                await post(to=["c@dest.example"]),
                await post(**{"from": "z@example.org"}),
                await post(message={"text": "other"}),
            ]
        senders = [each.mail.sender async for each in queue.browse()]

    assert (first.status, again.status, first.body) == (201, 201, again.body)
    assert [each.status for each in others] == [409, 409, 409]
    assert senders == ["srs1@x.example"]


async def test_a_discarded_mail_with_a_key_has_one_id(tmp_path: Path) -> None:
    headers = {"Content-Type": "message/rfc822"}
    target = "/v1/mails?from=a@x.example&to=b@y.example"
    async with an_intake_by_file(tmp_path, HTTP | {"filters": [FUNCTION]}) as running:

        async def post(key: str) -> Any:
            content, more = mail_that(verdict="discard"), headers | {"Idempotency-Key": key}
            answer = await ask(running, target, data=content, headers=more)
            assert answer.status == 201
            return answer.body

        assert await post("k") == await post("k") != await post("other")

    assert running.queue.mails == []


async def test_filters_of_other_listeners_do_not_see_a_mail(tmp_path: Path) -> None:
    listeners = [*RELAY["listeners"], {"name": "other", "role": "relay"}]
    document = RELAY | {"listeners": listeners, "filters": [FUNCTION | {"listeners": ["other"]}]}
    async with an_intake_by_file(tmp_path, document) as running:
        assert (await sent(running, mail_that(verdict="reject")))[0] == 250

    assert SEEN == []


async def test_a_changed_file_filters_the_sessions_that_begin_later(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        file = tmp_path / "intake.yaml"
        document = yaml.safe_load(file.read_text())
        assert (await sent(running, mail_that(verdict="reject")))[0] == 550
        file.write_text(yaml.safe_dump(document | {"filters": []}))
        running.process.look()
        while (await sent(running, mail_that(verdict="reject")))[0] != 250:
            await asyncio.sleep(0.01)
        file.write_text(yaml.safe_dump(document))
        running.process.look()
        while (await sent(running, mail_that(verdict="reject")))[0] != 550:
            await asyncio.sleep(0.01)


async def test_a_header_that_is_too_large_to_be_filtered_is_refused(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        for header in (b"A: 1\r\n" * 50_000, b"A: 1\r\n" * 6000, b"A: 1\r\n" + b" 2\r\n" * 6000):
            assert (await sent(running, header))[0] == 552
            assert (await sent(running, header + b"\r\nbody\r\n"))[0] == 552
        assert (await sent(running, b"\r\n" + b"body\r\n" * 9000))[0] == 250
        assert (await sent(running, b"A: 1\r\n" * 4000 + b"\r\n" + b"body\r\n" * 9000))[0] == 250


@pytest.mark.parametrize(
    "start",
    [
        b"From x Mon Nov 30 00:00:00 2026\r\n",
        b"A: 1\r\nno field\r\n",
        b" folded\r\n",
        b": empty\r\n",
    ],
)
@pytest.mark.parametrize("end", [b"", b"\r\nbody\r\n"])
async def test_a_header_with_a_line_of_no_field_is_refused_as_it_hides_fields_from_filters(
    tmp_path: Path, start: bytes, end: bytes
) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        assert await sent(running, start + b"Subject: hidden\r\n" + end) == (
            554,
            b"5.6.0 the header has a line that belongs to no field",
        )
        assert (await sent(running, b"\r\n" + start))[0] == 250

    assert len(running.queue.mails) == len(SEEN) == 1


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ([{"name": "a"}], "give one of milter, http and function"),
        ([FUNCTION | {"milter": "inet:127.0.0.1:1"}], "give one of milter, http and function"),
        ([FUNCTION | {"secret": {"file": "x"}}], "secret is of http"),
        ([{"name": "a", "http": "https://x.example/"}], "secret is of http"),
        ([{"name": "a", "http": "http://x.example/", "secret": {"file": "x"}}], "write https://"),
        ([{"name": "a", "milter": "inet:127.0.0.1"}], "write inet:HOST:PORT or unix:/PATH"),
        ([{"name": "a", "milter": "unix:run/x"}], "write inet:HOST:PORT or unix:/PATH"),
        ([FUNCTION | {"function": "decide"}], "function"),
        ([FUNCTION | {"timeout": "6m"}], "a filter has 1s to 5m"),
        ([FUNCTION | {"onError": "Reject"}], "onError"),
        ([FUNCTION, FUNCTION], "filters: mine stands twice"),
        ([FUNCTION | {"listeners": ["x"]}], "names a listener that there is not: x"),
        (
            [FUNCTION | {"name": name, "timeout": "241s"} for name in "ab"],
            "those of relay have 482s",
        ),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(
    tmp_path: Path, filters: list[dict[str, Any]], error: str
) -> None:
    file = tmp_path / "intake.yaml"
    document = {"listeners": [{"name": "relay", "role": "relay", "port": 0}], "filters": filters}
    file.write_text(yaml.safe_dump(document))

    with pytest.raises(InvalidSettings, match=error):
        read_intake(file)


async def test_a_function_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    document = RELAY | {"filters": [FUNCTION | {"function": "support.filter_functions:none"}]}
    with pytest.raises(InvalidSettings, match="has no function none"):
        async with an_intake_by_file(tmp_path, document):
            pass
