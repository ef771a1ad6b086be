"""Mail by HTTP, of programs that log in; aiohttp is the client."""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from postroad import open_queue
from postroad.errors import BrokerUnavailable, KeyReused, StoreFull
from support import http_openapi
from support.http_clients import a_mail, ask, basic
from support.intake_files import (
    ALICE,
    HTTP,
    PASSWORD,
    SUBMISSION,
    TLS,
    an_intake_by_file,
    write_users,
)

RAW = b"From: a@example.org\r\nSubject: x\r\n\r\nhello\r\n"
RFC822 = {"Content-Type": "message/rfc822"}
IN_RAW = {"raw": base64.b64encode(RAW).decode(), "message": None}
QUERY = "?from=a@example.org&to=b@dest.example"


async def test_a_message_of_parts_is_composed_and_queued(tmp_path: Path) -> None:
    message = {
        "subject": "Grüße",
        "text": "one\rtwo\nthree\r\n",
        "html": "<b>one</b>",
        "headers": {"X-A": "1", "To": "All <all@dest.example>"},
        "attachments": [
            {"name": 'a "b".csv', "type": "text/csv", "content": base64.b64encode(b"\0x").decode()}
        ],
    }
    mail = a_mail(message=message, delay="PT15M", priority=7, attributes={"campaign": "c"})
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, json=mail)

    assert answer.status == 201
    ((queued, content),) = running.queue.mails
    assert answer.body == {"id": "00000000-0000-0000-0000-000000000001", "mailId": queued.name}
    assert (queued.sender, queued.recipients) == ("a@example.org", ("b@dest.example",))
    assert (queued.priority, dict(queued.attributes)) == (7, {"campaign": "c"})
    assert running.queue.delays == [timedelta(minutes=15)]
    assert content.startswith(b"Received: from unknown ([127.0.0.1])\r\n")
    assert f"with HTTP id {queued.name};".encode() in content
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n", content)
    parsed = email.message_from_bytes(content, policy=email.policy.default)
    assert (parsed["Subject"], parsed["X-A"]) == ("Grüße", "1")
    assert (parsed["From"], parsed["To"]) == ("a@example.org", "All <all@dest.example>")
    assert parsed["Message-ID"] == f"<{queued.name}@intake.example>"
    assert parsed["Date"] is not None
    text, html = parsed.get_body(("plain",)), parsed.get_body(("html",))
    assert text is not None
    assert html is not None
    assert text.get_content().splitlines() == ["one", "two", "three"]
    assert html.get_content().strip() == "<b>one</b>"
    (file,) = parsed.iter_attachments()
    assert (file.get_filename(), file.get_payload(decode=True)) == ('a "b".csv', b"\0x")


async def test_a_whole_message_is_queued_as_it_came(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        path = f"/v1/mails{QUERY}&to=c@dest.example&delay=PT1H&priority=-3"
        answers = [
            await ask(running, path, data=RAW, headers=RFC822),
            await ask(running, json=a_mail(**IN_RAW)),
            await ask(running, path, data=RAW, headers=RFC822 | {"Expect": "100-continue"}),
        ]

    assert [each.status for each in answers] == [201, 201, 201]
    (queued, content), (_, other), _ = running.queue.mails
    assert queued.recipients == ("b@dest.example", "c@dest.example")
    assert queued.priority == -3
    assert content.endswith(RAW)
    assert other.endswith(RAW)
    assert running.queue.delays[0] == timedelta(hours=1)


async def test_a_large_message_goes_through_a_file(tmp_path: Path) -> None:
    large = RAW + b"x" * 70 + b"\r\n" + (b"y" * 70 + b"\r\n") * 20_000
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, f"/v1/mails{QUERY}", data=large, headers=RFC822)

    assert answer.status == 201
    assert running.queue.mails[0][1].endswith(large)


async def test_https_is_served_with_the_certificate_of_the_listener(tmp_path: Path) -> None:
    tls = TLS | {"mode": "Implicit"}
    document = HTTP | {"listeners": [{"name": "http", "role": "http", "tls": tls}]}
    async with an_intake_by_file(tmp_path, document) as running:
        answer = await ask(running, json=a_mail(), secured=True)

    assert answer.status == 201
    assert b"with HTTPS id" in running.queue.mails[0][1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"alice@example.org").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"a\0alice@example.org:x\0y").decode()},
        {"Authorization": "Bearer abc"},
        {"Authorization": "Digest abc"},
        basic(password="wrong"),
        basic("bob@example.org"),
        basic("", ""),
    ],
)
async def test_a_client_that_has_not_logged_in_is_refused(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, json=a_mail(), headers=headers)

    assert answer.status == 401
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
    assert running.queue.mails == []


RULES: list[dict[str, Any]] = [
    {
        "users": ["*@example.org"],
        "senders": ["@example.org"],
        "tenant": "example",
        "perMinute": 3,
        "maxSize": "64Ki",
    }
]


async def test_a_rule_bounds_senders_size_tenant_and_rate(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP | {"rules": RULES}) as running:

        async def status(**more: Any) -> int:
            return (await ask(running, json=a_mail(**more))).status

        assert await status(**{"from": "x@else.example"}) == 403
        assert await status(**{"from": ""}) == 403
        assert await status(tenant="other") == 403
        path = f"/v1/mails{QUERY}"
        large = await ask(running, path, data=RAW + b"x\r\n" * 30_000, headers=RFC822)
        assert large.status == 413
        author = {"text": "x", "headers": {"From": "x@else.example"}}
        assert await status(message=author) == 403
        assert await status(tenant="example") == 201
        late = await ask(running, json=a_mail())
        assert (late.status, late.headers["Retry-After"]) == (429, "60")

    ((mail, _),) = running.queue.mails
    assert mail.attributes == {"postroad.tenant": "example"}


async def test_a_client_has_one_limit_of_mails_for_smtp_and_http(tmp_path: Path) -> None:
    listeners = [*SUBMISSION["listeners"], *HTTP["listeners"]]
    both = HTTP | {"listeners": listeners}
    async with an_intake_by_file(tmp_path, both, client_mails_per_minute=1) as running:

        def send() -> None:
            with running.client() as client:
                client.login(ALICE, PASSWORD)
                client.sendmail("a@example.org", "b@dest.example", "Subject: x\r\n\r\nhello\r\n")

        await asyncio.to_thread(send)
        assert (await ask(running, json=a_mail())).status == 429

    assert len(running.queue.mails) == 1


async def test_hidden_recipients_stay_hidden(tmp_path: Path) -> None:
    recipients = ["b@dest.example", "c@dest.example", "b@dest.example"]
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, json=a_mail(to=recipients))
        bcc = {"text": "x", "headers": {"bcc": "z@dest.example"}}
        refused = await ask(running, json=a_mail(message=bcc))

    ((mail, content),) = running.queue.mails
    assert (answer.status, refused.status) == (201, 422)
    assert mail.recipients == ("b@dest.example", "c@dest.example")
    assert b"c@dest" not in content
    assert b"To: undisclosed-recipients:;\r\n" in content


async def test_a_batch_answers_for_each_mail_in_order(tmp_path: Path) -> None:
    mails: list[Any] = [
        a_mail(),
        a_mail(to=[]),
        a_mail(to=["broken"]),
        a_mail(**IN_RAW),
        a_mail(unknown=1),
    ]
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, "/v1/mails:batch", json={"mails": mails})

    assert answer.status == 207
    results = answer.body["results"]
    assert [each["status"] for each in results] == [201, 422, 422, 201, 422]
    assert results[2]["errors"][0]["field"] == "to[0]"
    assert {each["mailId"] for each in results if each["status"] == 201} == {
        mail.name for mail, _ in running.queue.mails
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BrokerUnavailable("away"), 503),
        (StoreFull("full"), 503),
        (RuntimeError("a bug"), 503),
        (KeyReused(), 409),
    ],
)
async def test_a_mail_that_is_not_durable_is_not_accepted(
    tmp_path: Path, error: Exception, status: int
) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        running.queue.error = error
        answer = await ask(running, json=a_mail())

    assert answer.status == status
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_request_under_way_is_answered_while_the_process_ends(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        running.queue.gate.clear()
        under_way = asyncio.create_task(ask(running, json=a_mail()))
        while not running.queue.waiting:
            await asyncio.sleep(0.01)
        running.process.stop.set()
        await asyncio.sleep(0.05)
        running.queue.gate.set()
        assert (await under_way).status == 201


async def test_a_key_stands_for_one_mail(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "order-7"}
    async with open_queue(f"embedded://{tmp_path}/store", create=True) as queue:
        async with an_intake_by_file(tmp_path, HTTP, queue=queue) as running:
            first = await ask(running, json=a_mail(), headers=key)
            again = await ask(running, json=a_mail(), headers=key)
            other = await ask(running, json=a_mail(message={"text": "other"}), headers=key)
            recipients = await ask(running, json=a_mail(to=["c@dest.example"]), headers=key)
            at_once = await asyncio.gather(
                *(
                    ask(
                        running,
                        f"/v1/mails{QUERY}",
                        data=RAW + b"x\r\n" * 200_000,
                        headers=RFC822 | {"Idempotency-Key": "k"},
                    )
                    for _ in range(4)
                )
            )
            batch = [
                await ask(running, "/v1/mails:batch", json={"mails": [a_mail()] * 2}, headers=key)
                for _ in range(2)
            ]
        mails = [each async for each in queue.browse()]

    assert first.status == again.status == 201
    assert first.body == again.body
    assert (other.status, recipients.status) == (409, 409)
    assert len({str(each.body) for each in at_once}) == 1
    assert at_once[0].status == 201
    ids = [[each.get("id") for each in answer.body["results"]] for answer in batch]
    assert ids[0] == ids[1]
    assert len(mails) == 3


async def test_a_key_of_another_user_is_another_key(tmp_path: Path) -> None:
    write_users(tmp_path / "users.yaml", **{ALICE: PASSWORD, "bob@example.org": PASSWORD})
    key = {"Idempotency-Key": "order-7"}
    async with an_intake_by_file(tmp_path, HTTP) as running:
        for user in (ALICE, "bob@example.org"):
            await ask(running, json=a_mail(), headers=key | basic(user, PASSWORD))

    assert len(set(running.queue.keys)) == 2


async def test_inject_takes_a_mail_for_each_recipient(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "from": {"email": "a@example.org", "name": "Ä, A"},
        "reply_to": {"email": "help@example.org"},
        "subject": "x",
        "text_body": "hello\n",
        "html_body": "<b>hello</b>",
        "headers": {"X-A": "1"},
        "attachments": [{"data": "AAE=", "base64": True, "content_type": "image/gif"}],
    }
    recipients = [{"email": "b@dest.example", "name": "B, b"}, {"email": "c@dest.example"}]
    wanted = {"envelope_sender": "a@example.org", "recipients": recipients}
    async with an_intake_by_file(tmp_path, HTTP) as running:
        parts = await ask(running, "/api/inject/v1", json=wanted | {"content": content})
        whole = await ask(
            running, "/api/inject/v1", json=wanted | {"content": "From: a@example.org\n\nhello\n"}
        )

    assert parts.status == whole.status == 200
    assert parts.body == {
        "success_count": 2, "fail_count": 0, "failed_recipients": [], "errors": []
    }  # fmt: skip
    assert whole.body["success_count"] == 2
    mails = {mail.recipients[0]: body for mail, body in running.queue.mails[:2]}
    parsed = email.message_from_bytes(mails["b@dest.example"], policy=email.policy.default)
    assert parsed["To"] == '"B, b" <b@dest.example>'
    assert parsed["From"] == '"Ä, A" <a@example.org>'
    assert b"c@dest" not in mails["b@dest.example"]
    assert running.queue.mails[2][1].endswith(b"From: a@example.org\r\n\r\nhello\r\n")


@pytest.mark.parametrize(
    "more",
    [
        {"substitutions": {"a": 1}},
        {"recipients": [{"email": "b@dest.example", "substitutions": {"a": 1}}]},
        {"content": "Subject: {{ name }}\n\nx"},
        {"content": {"text_body": "{% if a %}"}},
        {"content": {"text_body": "a", "amp_html_body": "b"}},
        {"deferred_spool": True},
        {"deferred_generation": True},
        {"trace_headers": {}},
        {"template_dialect": "Jinja"},
        {"recipients": []},
    ],
)
async def test_inject_refuses_what_is_not_honoured(tmp_path: Path, more: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {
        "envelope_sender": "a@example.org",
        "recipients": [{"email": "b@dest.example"}],
        "content": "From: a@example.org\n\nx",
    }
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, "/api/inject/v1", json=wanted | more)

    assert answer.status == 422
    assert running.queue.mails == []


async def test_inject_names_the_recipients_that_failed(tmp_path: Path) -> None:
    rules = [{"perMinute": 1}]
    wanted = {
        "envelope_sender": "a@example.org",
        "recipients": [{"email": "b@dest.example"}, {"email": "c@dest.example"}],
        "content": "From: a@example.org\n\nx",
    }
    async with an_intake_by_file(tmp_path, HTTP | {"rules": rules}) as running:
        answer = await ask(running, "/api/inject/v1", json=wanted)

    assert answer.body == {
        "success_count": 1,
        "fail_count": 1,
        "failed_recipients": ["c@dest.example"],
        "errors": ["c@dest.example: too many mails from this user, come again"],
    }


async def test_the_description_names_every_path_and_error(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running:
        answer = await ask(running, "/v1/openapi.json", method="GET", headers={"Authorization": ""})

    document = answer.body
    assert document == http_openapi.document(), "run `make api-reference`"
    assert document["openapi"] == "3.1.0"
    posts = ["/v1/mails", "/v1/mails:batch", "/api/inject/v1"]
    assert sorted(document["paths"]) == sorted([*posts, "/v1/openapi.json"])
    for path in posts:
        responses = document["paths"][path]["post"]["responses"]
        assert {"400", "401", "403", "409", "413", "415", "422", "429", "503"} <= set(responses)
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])
    assert document["components"]["schemas"]["MailRequest"]["properties"]["delay"]["format"] == (
        "duration"
    )


async def test_a_client_has_its_share_of_connections(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP, client_sessions=1) as running:
        running.queue.gate.clear()
        under_way = asyncio.create_task(ask(running, json=a_mail()))
        while not running.queue.waiting:
            await asyncio.sleep(0.01)
        with pytest.raises(aiohttp.ClientError):
            await ask(running, json=a_mail())
        running.queue.gate.set()
        assert (await under_way).status == 201


async def test_line_ends_are_normalised_where_the_settings_say(tmp_path: Path) -> None:
    raw = b"From: a@example.org\n\nhello\r" + b"x\n" * 200_000 + b"a\0b"
    async with an_intake_by_file(tmp_path, HTTP, bare_line_ends="normalise") as running:
        answer = await ask(running, f"/v1/mails{QUERY}", data=raw, headers=RFC822)

    assert answer.status == 201
    wanted = b"From: a@example.org\r\n\r\nhello\r\n" + b"x\r\n" * 200_000 + b"ab\r\n"
    assert running.queue.mails[0][1].endswith(wanted)


async def test_changed_rules_hold_for_connections_that_are_open(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, HTTP) as running, aiohttp.ClientSession() as session:
        url = f"http://localhost:{running.ports['http']}/v1/mails"

        async def status() -> int:
            async with session.post(url, json=a_mail(), headers=basic()) as response:
                return response.status

        assert await status() == 201
        file = tmp_path / "intake.yaml"
        rules = yaml.safe_dump({"rules": [{"senders": ["@else.example"]}]})
        file.write_text(file.read_text() + rules)
        running.process.look()
        while await status() != 403:
            await asyncio.sleep(0.01)
