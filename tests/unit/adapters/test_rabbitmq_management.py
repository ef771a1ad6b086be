"""The management API over https: whom it is believed by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from postroad.adapters.rabbitmq import management as management_api
from postroad.adapters.rabbitmq.connection import Access
from postroad.adapters.rabbitmq.management import Management, _Queue, listed
from postroad.domain.queues.quorum_queues import QuorumQueue
from postroad.errors import BrokerRefused, BrokerUnavailable, CredentialsRefused, TlsRefused
from postroad.tls import ClientTls
from support.certificates import Certificates


async def two_nodes(_: web.Request) -> web.Response:
    running = {"a": True, "b": True, "c": False}
    return web.json_response([{"name": each, "running": runs} for each, runs in running.items()])


QUEUES: list[dict[str, object]] = [
    {"name": "whole", "members": ["a", "b"], "online": ["a"], "effective_policy_definition": []},
    {"name": "headless", "members": ["a"], "effective_policy_definition": {"max-length": 9}},
    {"name": "classic"},
]


async def three_queues(_: web.Request) -> web.Response:
    return web.json_response(QUEUES)


async def one_queue(request: web.Request) -> web.Response:
    named = [each for each in QUEUES if each["name"] == request.match_info["name"]]
    return web.json_response(named[0] if named else {}, status=200 if named else 404)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def url(certificates: Certificates) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/api/nodes", two_nodes)
    application.router.add_get("/api/queues/{vhost}", three_queues)
    application.router.add_get("/api/queues/{vhost}/{name}", one_queue)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=certificates.server_context())
    await site.start()
    yield f"https://localhost:{runner.addresses[0][1]}"
    await runner.cleanup()


def management(url: str, ca_file: Path | None) -> Management:
    return Management(
        Access.from_uri("amqps://localhost", tls=ClientTls(ca_file), management_url=url)
    )


async def test_the_authorities_of_the_broker_vouch_for_its_management_api(
    url: str, certificates: Certificates
) -> None:
    api = management(url, certificates.authority)

    assert await api.nodes() == ["a", "b"]
    await api.close()


async def test_quorum_queues_are_those_with_members_and_have_the_keys_of_their_policies(
    url: str, certificates: Certificates
) -> None:
    api = management(url, certificates.authority)

    assert await api.quorum_queues() == [
        QuorumQueue("whole", ("a", "b"), ("a",)),
        QuorumQueue("headless", ("a",), (), frozenset({"max-length"})),
    ]
    assert [await api.quorum_queue(each) for each in ("whole", "classic", "none")] == [
        QuorumQueue("whole", ("a", "b"), ("a",)),
        None,
        None,
    ]
    await api.close()


async def test_a_certificate_of_an_unknown_authority_is_not_accepted(url: str) -> None:
    api = management(url, None)

    with pytest.raises(TlsRefused, match="is not accepted"):
        await api.nodes()
    await api.close()


async def test_authorities_that_cannot_be_read_are_an_error_of_the_broker_and_read_again(
    url: str, certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "mended.crt"
    file.write_text("garbage")
    api = management(url, file)

    with pytest.raises(TlsRefused, match="cannot be read"):
        await api.nodes()
    file.write_bytes(certificates.authority.read_bytes())

    assert await api.nodes() == ["a", "b"]
    await api.close()


class Answers:
    """An API that answers as a test sets, and notes the requests."""

    def __init__(self) -> None:
        self.status, self.body = 200, "{}"
        self.requests: list[tuple[str, str, str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        said = request.headers.get("Authorization", "")
        self.requests.append((request.method, request.raw_path, await request.text(), said))
        return web.Response(status=self.status, text=self.body, content_type="application/json")


@pytest.fixture
async def answers() -> Answers:
    return Answers()


@pytest.fixture
async def plain(answers: Answers) -> AsyncIterator[Management]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answers.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0)
    await site.start()
    url = f"http://other:user@localhost:{runner.addresses[0][1]}/prefix/"
    api = Management(Access.from_uri("amqp://u:p@localhost/a%2Fb", management_url=url))
    yield api
    await api.close()
    await runner.cleanup()


async def test_a_queue_of_the_vhost_is_asked_about_with_the_rights_of_its_user(
    plain: Management, answers: Answers
) -> None:
    answers.body = '{"name": "a queue", "messages_unacknowledged": 7}'
    assert await plain.unacknowledged("a queue") == 7
    answers.body = '{"name": "work"}'
    assert await plain.unacknowledged("work") == 0

    method, path, _, said = answers.requests[0]
    assert (method, path) == ("GET", "/prefix/api/queues/a%2Fb/a%20queue")
    assert said == "Basic dTpw"


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_a_copy_is_added_on_a_node(plain: Management, answers: Answers, status: int) -> None:
    answers.status, answers.body = status, ""

    await plain.add_member("work", "rabbit@b")

    [(method, path, body, _)] = answers.requests
    assert (method, path) == ("POST", "/prefix/api/queues/quorum/a%2Fb/work/replicas/add")
    assert json.loads(body) == {"node": "rabbit@b"}


async def test_what_is_missing_is_found_as_none_and_deleted_without_an_error(
    plain: Management, answers: Answers
) -> None:
    answers.body = '{"name": "one"}'
    assert await plain.find(dict[str, str], "users/one") == {"name": "one"}
    answers.status = 404

    assert await plain.find(dict[str, str], "users/one") is None
    await plain.remove("users/one")

    assert [each[:2] for each in answers.requests] == [
        ("GET", "/prefix/api/users/one"),
        ("GET", "/prefix/api/users/one"),
        ("DELETE", "/prefix/api/users/one"),
    ]
    with pytest.raises(BrokerRefused, match="answered 404"):
        await plain.exchange_arguments("x")
    with pytest.raises(BrokerRefused, match="answered 404"):
        await plain.put("users/one", {})


@pytest.mark.parametrize("status", [201, 204])
async def test_what_is_put_is_sent_as_it_is(
    plain: Management, answers: Answers, status: int
) -> None:
    answers.status, answers.body = status, ""

    await plain.put("users/one", {"tags": "none"})

    [(method, path, body, _)] = answers.requests
    assert (method, path, json.loads(body)) == ("PUT", "/prefix/api/users/one", {"tags": "none"})


async def test_an_exchange_has_the_arguments_that_it_was_declared_with(
    plain: Management, answers: Answers
) -> None:
    answers.body = '{"arguments": {"claimant": "one"}}'
    assert await plain.exchange_arguments("a claim") == {"claimant": "one"}
    answers.body = "{}"
    assert await plain.exchange_arguments("a claim") == {}

    assert answers.requests[0][1] == "/prefix/api/exchanges/a%2Fb/a%20claim"


async def test_the_guard_is_asked_before_each_write_and_before_no_read(answers: Answers) -> None:
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused

    access = Access.from_uri("amqp://u:p@localhost", management_url="http://127.0.0.1:1")
    api = Management(access, refuse)

    for write in (api.put("a", {}), api.remove("a"), api.add_member("work", "b")):
        with pytest.raises(Refused):
            await write
    with pytest.raises(BrokerUnavailable):
        await api.find(object, "a")
    await api.close()


@pytest.mark.parametrize(
    ("status", "expected", "text"),
    [
        (401, CredentialsRefused, "refused the user"),
        (404, BrokerRefused, "answered 404"),
        (201, BrokerRefused, "answered 201"),
        (500, BrokerRefused, "answered 500"),
    ],
)
async def test_an_answer_that_is_none_is_refused(
    plain: Management, answers: Answers, status: int, expected: type[Exception], text: str
) -> None:
    answers.status = status

    with pytest.raises(expected, match=text):
        await plain.unacknowledged("work")


async def test_plain_http_needs_no_authorities(tmp_path: Path) -> None:
    api = management("http://127.0.0.1:1", tmp_path / "missing.crt")

    with pytest.raises(BrokerUnavailable, match="ClientConnectorError"):
        await api.nodes()
    await api.close()


async def test_an_answer_that_is_too_large_is_not_kept(
    plain: Management, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management_api, "MAX_ANSWER", 1000)
    answers.body = json.dumps([" " * 996])
    assert await plain.find(list[str], "users") == [" " * 996]
    answers.body = json.dumps([" " * 997])

    with pytest.raises(BrokerUnavailable, match="more than 1000 octets"):
        await plain.find(list[str], "users")


@pytest.mark.parametrize("body", ["", "<html>", "[" * 200_000], ids=["none", "HTML", "deep"])
async def test_an_answer_that_is_no_json_is_a_refusal(
    plain: Management, answers: Answers, body: str
) -> None:
    answers.body = body

    with pytest.raises(BrokerRefused, match="without JSON"):
        await plain.find(list[str], "users")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("[]", "its value"),
        ("null", "its value"),
        ('{"error": "not_found"}', "name: Field required"),
        ('{"name": "work", "messages_unacknowledged": "many"}', "messages_unacknowledged"),
    ],
)
async def test_a_body_of_another_shape_is_a_refusal_that_names_the_field(
    plain: Management, answers: Answers, body: str, problem: str
) -> None:
    answers.body = body

    with pytest.raises(BrokerRefused, match=f"not as RabbitMQ does: {problem}"):
        await plain.unacknowledged("work")
    with pytest.raises(BrokerRefused, match="not as RabbitMQ does"):
        await plain.quorum_queues() if body != "[]" else await plain.exchange_arguments("x")


@pytest.mark.parametrize("listing", [[{}] * 9, [{"name": "work", "members": [1] * 9}]])
def test_a_list_of_another_shape_has_its_first_error_alone(listing: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(listed(_Queue)).validate_python(listing)

    assert refused.value.error_count() == 1, "a million take gigabytes"
