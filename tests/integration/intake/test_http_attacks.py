"""Hostile requests to a listener of role http: each gets its status, none breaks the server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.http_clients import a_mail, ask, basic, send_octets
from support.intake_files import HTTP, an_intake_by_file
from support.ports import free_port
from support.token_issuer import OTHER_KEY, an_issuer, token

JSON = {"Content-Type": "application/json"}


def octets(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def message(**more: Any) -> dict[str, Any]:
    return a_mail(message={"text": "x"} | more)


def with_headers(**more: str) -> dict[str, Any]:
    return message(headers=more)


FIELDS: dict[str, tuple[Any, int]] = {
    "no_json": (b"{", 400),
    "empty": (b"", 400),
    "not_utf8": (b'{"from": "\xff"}', 400),
    "surrogate": (rb'{"from": "\ud800"}', 400),
    "no_object": ([], 422),
    "nested": (b"[" * 100_000, 400),
    "nested_objects": (b'{"message":' * 100_000, 400),
    "many_values": (b'{"from": [' + b"0," * 300_000 + b"0]}", 413),
    "many_objects": (b"[" + b"{}," * 300_000 + b"{}]", 413),
    "nothing": ({}, 422),
    "unknown_field": (a_mail(bcc=["x@dest.example"]), 422),
    "no_recipient": (a_mail(to=[]), 422),
    "many_recipients": (a_mail(to=[f"{each}@dest.example" for each in range(10_000)]), 422),
    "one_recipient_as_text": (a_mail(to="b@dest.example"), 422),
    "recipient_of_no_domain": (a_mail(to=["postmaster"]), 422),
    "recipient_with_line_end": (a_mail(to=["b@dest.example\r\nDATA"]), 422),
    "recipient_with_brackets": (a_mail(to=["<b@dest.example>"]), 422),
    "recipient_as_list": (a_mail(to=["b@dest.example, c@dest.example"]), 422),
    "long_recipient": (a_mail(to=["b" * 10_000 + "@dest.example"]), 422),
    "sender_with_line_end": (a_mail(**{"from": "a@example.org>\r\nRCPT TO:<x@y"}), 422),
    "no_content": (a_mail(message=None), 422),
    "two_contents": (a_mail(raw="eA=="), 422),
    "raw_not_base64": (a_mail(message=None, raw="!!!!"), 422),
    "raw_as_number": (a_mail(message=None, raw=1), 422),
    "bare_line_ends": (a_mail(message=None, raw=base64.b64encode(b"a\nb").decode()), 422),
    "smuggled_end": (
        a_mail(message=None, raw=base64.b64encode(b"From: a@b.c\r\n\r\nx\n.\r\nMAIL").decode()),
        422,
    ),
    "nul": (a_mail(message=None, raw=base64.b64encode(b"a: b\r\n\r\n\0\r\n").decode()), 422),
    "long_line": (
        a_mail(message=None, raw=base64.b64encode(b"a: b\r\n\r\n" + b"x" * 2000).decode()),
        422,
    ),
    "header_of_no_field": (
        a_mail(message=None, raw=base64.b64encode(b"no field\r\n\r\nx").decode()),
        422,
    ),
    "loop": (
        a_mail(message=None, raw=base64.b64encode(b"Received: x\r\n" * 100 + b"\r\n").decode()),
        422,
    ),
    "delay_of_no_duration": (a_mail(delay="15"), 422),
    "delay_as_number": (a_mail(delay=15), 422),
    "negative_delay": (a_mail(delay="-PT1H"), 422),
    "long_delay": (a_mail(delay="P9999999W"), 422),
    "longest_delay": (a_mail(delay="P999999999999999999999999999W"), 422),
    "empty_delay": (a_mail(delay="P"), 422),
    "priority": (a_mail(priority=101), 422),
    "priority_as_text": (a_mail(priority="1"), 422),
    "huge_number": (b'{"priority": ' + b"9" * 5000 + b"}", 400),
    "tenant": (a_mail(tenant=""), 422),
    "tenant_of_a_user_without_one": (a_mail(tenant="bank"), 403),
    "tenant_by_attribute": (a_mail(attributes={"postroad.tenant": "x"}), 422),
    "digest_by_attribute": (a_mail(attributes={"Postroad.digest": "x"}), 422),
    "attribute_of_no_text": (a_mail(attributes={"a": 1}), 422),
    "subject_with_line_end": (message(subject="x\r\nBcc: z@dest.example"), 422),
    "subject_with_lf": (message(subject="x\nBcc: z@dest.example"), 422),
    "subject_with_next_line": (message(subject="x\u0085Bcc: z@dest.example"), 422),
    "subject_with_separator": (message(subject="x\u2028Bcc: z@dest.example"), 422),
    "subject_with_nul": (message(subject="x\0"), 422),
    "encoded_subject": (message(subject="=?utf-8?q?x=0D=0ABcc:_z?="), 422),
    "long_subject": (message(subject="x" * 999), 422),
    "longest_subject": (message(subject="ä" * 998), 201),
    "fields_too_long_together": (with_headers(**{f"X-{n}": "x" * 998 for n in range(70)}), 422),
    "field_name_with_colon": (with_headers(**{"X: y\r\nBcc": "z"}), 422),
    "field_name_with_blank": (with_headers(**{"X ": "z"}), 422),
    "empty_field_name": (with_headers(**{"": "z"}), 422),
    "field_with_line_end": (with_headers(**{"X-A": "x\r\n\r\nbody"}), 422),
    "field_of_the_server": (with_headers(**{"Content-Type": "text/html"}), 422),
    "field_received": (with_headers(Received="x"), 422),
    "field_bcc": (with_headers(BCC="z@dest.example"), 422),
    "two_from": (with_headers(**{"From": "a@example.org", "from": "b@else.example"}), 422),
    "broken_from": (with_headers(From='"a" <'), 422),
    "odd_from": (with_headers(From="=?utf-8?q?a=40b?= <@,;:>"), 422),
    "attachment_name": (
        message(attachments=[{"name": 'x"\r\nX: y', "type": "text/csv", "content": "eA=="}]),
        422,
    ),
    "attachment_type": (
        message(attachments=[{"name": "x", "type": "text/csv\r\nX: y", "content": "eA=="}]),
        422,
    ),
    "attached_multipart": (
        message(attachments=[{"name": "x", "type": "multipart/mixed", "content": "eA=="}]),
        422,
    ),
    "attachment_not_base64": (
        message(attachments=[{"name": "x", "type": "text/csv", "content": "\n"}]),
        422,
    ),
    "text_with_nul": (message(text="a\0b"), 422),
    "text_with_long_line": (message(text="x" * 100_000), 201),
    "text_with_dots": (message(text=".\r\n.\r\n..\n"), 201),
    "text_with_boundary": (message(text="--===============1==\n", html="x"), 201),
    "large": (message(text="x" * 200_000), 413),
    "bomb_of_base64": (a_mail(message=None, raw="A" * 4_000_000), 413),
}


async def test_hostile_bodies_are_refused_by_the_field_that_is_wrong(tmp_path: Path) -> None:
    got = {}
    async with an_intake_by_file(tmp_path, HTTP, max_size_bytes=150_000) as running:
        for name, (body, _) in FIELDS.items():
            answer = await ask(running, data=octets(body), headers=JSON)
            got[name] = answer.status
            if answer.status != 201:
                assert answer.headers["Content-Type"].startswith("application/problem+json")
                assert set(answer.body) <= {"type", "title", "status", "detail", "errors"}
                assert len(answer.body.get("errors", ())) <= 20
        assert (await ask(running, json=a_mail())).status == 201

    assert got == {name: status for name, (_, status) in FIELDS.items()}
    for _, content in running.queue.mails:
        header, _, _ = content.partition(b"\r\n\r\n")
        assert not re.search(rb"(?im)^(bcc|x):", header)
        assert not re.search(rb"\r(?!\n)|(?<!\r)\n|\0", content)


LOGIN = f"Authorization: {basic()['Authorization']}\r\n".encode()
HEAD = b"POST /v1/mails HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + LOGIN
BODY = octets(a_mail())
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SECOND = b"POST /v1/mails HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "request_octets",
    [
        pytest.param(HEAD + LENGTH + CHUNKED + b"\r\n0\r\n\r\n" + SECOND, id="length_and_chunks"),
        pytest.param(HEAD + CHUNKED + LENGTH + b"\r\n0\r\n\r\n" + SECOND, id="chunks_and_length"),
        pytest.param(HEAD + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY, id="two_lengths"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n" + BODY, id="negative_length"),
        pytest.param(HEAD + b"Content-Length: +5\r\n\r\n" + BODY, id="signed_length"),
        pytest.param(HEAD + b"Content-Length: 5, 5\r\n\r\n" + BODY, id="list_of_lengths"),
        pytest.param(HEAD + b"Content-Length : 5\r\n\r\n" + BODY, id="blank_before_colon"),
        pytest.param(
            HEAD + b"Transfer-Encoding: xchunked\r\n" + LENGTH + b"\r\n" + BODY, id="odd_encoding"
        ),
        pytest.param(HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", id="coding"),
        pytest.param(HEAD + CHUNKED + b"\r\nzz\r\n" + BODY, id="chunk_of_no_size"),
        pytest.param(HEAD + CHUNKED + b"\r\n-5\r\n" + BODY, id="chunk_of_negative_size"),
        pytest.param(HEAD + CHUNKED + b"\r\nfffffffffffffffff\r\n" + BODY, id="chunk_of_huge_size"),
        pytest.param(HEAD + CHUNKED + b"\r\n5\r\nabcdefgh\r\n0\r\n\r\n", id="chunk_too_short"),
        pytest.param(HEAD + CHUNKED + b"\r\n5\nabcde\n0\n\n", id="chunks_with_bare_lf"),
        pytest.param(HEAD + b"X-A: a\r\n b: c\r\n" + b"\0: x\r\n\r\n", id="nul_in_a_name"),
        pytest.param(HEAD + b"X-A: a\0b\r\n\r\n", id="nul_in_a_value"),
        pytest.param(HEAD + LENGTH + b"\r\n" + BODY[:10], id="body_breaks_off"),
        pytest.param(b"EHLO x\r\nMAIL FROM:<>\r\n", id="smtp"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600, id="tls"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http2"),
        pytest.param(b"GET " + b"/x" * 100_000 + b" HTTP/1.1\r\n\r\n", id="long_target"),
        pytest.param(HEAD + b"X-A: " + b"x" * 100_000 + b"\r\n\r\n", id="long_field"),
        pytest.param(HEAD + b"X-A: x\r\n" * 10_000 + b"\r\n", id="many_fields"),
        pytest.param(b"POST /v1/mails HTTP/9.9\r\n\r\n", id="version"),
        pytest.param(b"\r\n" * 10_000, id="line_ends"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_what_is_no_request_is_refused_and_smuggles_nothing(
    tmp_path: Path, request_octets: bytes
) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        got = await send_octets(running, request_octets)
        assert (await ask(running, json=a_mail())).status == 201

    statuses = re.findall(rb"HTTP/1\.[01] ([0-9]{3})", got)
    assert set(statuses) <= {b"400", b"415"}
    assert b"Traceback" not in got
    assert b"Python" not in got
    assert len(running.queue.mails) == 1


async def test_a_message_without_a_length_is_refused(tmp_path: Path) -> None:
    head = b"POST /v1/mails?from=a@example.org&to=b@dest.example HTTP/1.1\r\nHost: x\r\n" + LOGIN
    async with an_intake_by_file(tmp_path, HTTP) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports["http"])
        writer.write(head + b"Content-Type: message/rfc822\r\n\r\n")
        got = await reader.readline()
        writer.transport.abort()

    assert got.startswith(b"HTTP/1.1 411")
    assert not running.queue.mails


@pytest.mark.parametrize(
    ("path", "method", "headers", "body", "status"),
    [
        ("/", "GET", {}, b"", 404),
        ("/v1/mails/../../etc/passwd", "GET", {}, b"", 404),
        ("/v1/mails", "GET", {}, b"", 405),
        ("/v1/mails", "OPTIONS", {}, b"", 405),
        ("/v1/mails", "POST", {"Content-Type": "text/html"}, BODY, 415),
        ("/v1/mails", "POST", {"Content-Type": "application/json; charset=utf-7"}, BODY, 415),
        ("/v1/mails", "POST", {"Content-Type": "application/x-www-form-urlencoded"}, b"a=b", 415),
        ("/v1/mails:batch", "POST", {"Content-Type": "message/rfc822"}, b"a: b\r\n\r\n", 415),
        ("/v1/mails", "POST", JSON | {"Content-Encoding": "gzip"}, gzip.compress(BODY), 415),
        ("/v1/mails", "POST", JSON | {"Content-Encoding": "identity"}, BODY, 201),
        ("/v1/mails", "POST", JSON | {"Idempotency-Key": "x" * 256}, BODY, 400),
        ("/v1/mails", "POST", JSON | {"Idempotency-Key": ""}, BODY, 400),
        ("/v1/mails?from=a@example.org", "POST", {"Content-Type": "message/rfc822"}, b"a: b", 422),
        ("/v1/mails:batch", "POST", JSON, b'{"mails": []}', 422),
        ("/v1/mails:batch", "POST", JSON, b'{"mails": [1]}', 422),
        ("/v1/mails:batch", "POST", JSON, octets({"mails": [{}] * 1001}), 422),
        ("/api/inject/v1", "POST", JSON, b'{"recipients": 1}', 422),
    ],
)
async def test_requests_of_the_wrong_kind_are_refused(
    tmp_path: Path, path: str, method: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, path, method=method, headers=headers, data=body)

    assert answer.status == status
    assert answer.headers["Server"] == "postroad"


@pytest.mark.parametrize(
    "query",
    [
        "from=a@example.org&from=b@example.org&to=b@dest.example",
        "from=a@example.org&to=b@dest.example&bcc=x@dest.example",
        "from=a@example.org&to=b@dest.example%0d%0aDATA",
        "from=a@example.org&to=%ff@dest.example%00",
        "from=a@example.org&to=b@dest.example&priority=1e9",
        "from=a@example.org&to=b@dest.example&delay=1",
        "to=b@dest.example",
        "",
    ],
)
async def test_malformed_queries_are_refused(tmp_path: Path, query: str) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        headers = {"Content-Type": "message/rfc822"}
        answer = await ask(running, f"/v1/mails?{query}", headers=headers, data=b"a: b\r\n\r\n")

    assert answer.status == 422
    assert running.queue.mails == []


TOKENS: dict[str, tuple[Callable[[str], str], int]] = {
    "right": (token, 201),
    "no_algorithm": (lambda issuer: token(issuer, key=None, algorithm="none"), 401),
    "symmetric": (lambda issuer: token(issuer, key="x" * 32, algorithm="HS256"), 401),
    "other_key": (lambda issuer: token(issuer, key=OTHER_KEY), 401),
    "other_audience": (lambda issuer: token(issuer, aud="other"), 401),
    "no_audience": (lambda issuer: token(issuer, aud=None), 401),
    "other_issuer": (lambda issuer: token(issuer, iss="https://else.example"), 401),
    "expired": (lambda issuer: token(issuer, exp=time.time() - 600), 401),
    "no_expiry": (lambda issuer: token(issuer, exp=None), 401),
    "not_verified": (lambda issuer: token(issuer, email_verified=False), 401),
    "no_user": (lambda issuer: token(issuer, email=None), 401),
    "user_of_no_text": (lambda issuer: token(issuer, email=["a@example.org"]), 401),
    "cut": (lambda issuer: token(issuer)[:-5], 401),
    "no_token": (lambda _: "x.y.z", 401),
    "long": (lambda _: "x" * 17_000, 401),
}


@pytest.mark.parametrize("name", TOKENS)
async def test_tokens_are_verified(tmp_path: Path, name: str) -> None:
    make, status = TOKENS[name]
    async with an_issuer() as issuer:
        users = {"oidc": {"issuer": issuer, "audience": "postroad"}}
        async with an_intake_by_file(tmp_path, HTTP | {"users": users}) as running:
            headers = {"Authorization": f"Bearer {make(issuer)}"}
            answer = await ask(running, json=a_mail(), headers=headers)
            by_password = await ask(running, json=a_mail())

    assert answer.status == status
    assert by_password.status == 401
    assert by_password.headers.getall("WWW-Authenticate") == ['Bearer realm="postroad"']


async def test_logins_wait_for_no_issuer_that_is_away(tmp_path: Path) -> None:
    users = {"oidc": {"issuer": f"http://127.0.0.1:{free_port()}", "audience": "postroad"}}
    async with an_intake_by_file(tmp_path, HTTP | {"users": users}) as running:
        headers = {"Authorization": f"Bearer {token('http://127.0.0.1')}"}
        answer = await ask(running, json=a_mail(), headers=headers)

    assert (answer.status, answer.headers["Retry-After"]) == (503, "30")
