"""A console in a cluster: its users are those of Kubernetes, and have the rights that they have
there. Two tenants of it see nothing of each other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest
from starlette.types import Message

from postroad.console.api.guard import RequestRate
from postroad.console.api.sessions import IDLE, MAX_TOKEN_SESSIONS, SHORT_LIFETIME, Sessions
from postroad.console.audit import AuditEntry
from postroad.console.queues import ConsoleQueue
from postroad.console.reviewed_rights import ANSWER_LIFETIME, MAX_TOKEN, Answers
from postroad.ports.access_reviews import ReviewedRight
from support.memory.clock import ManualClock
from support.reviewed_users import (
    AUDIENCE,
    VIEWER,
    MemoryAccessReviews,
    ReviewedConsole,
    a_reviewed_console,
)

QUEUES = "/api/v1/queues"
ORIGIN = "http://127.0.0.1:8600"
PATHS = (
    "", "/ages", "/report", "/mails", "/dead-letters", f"/mails/{'0' * 32}",
    f"/mails/{'0' * 32}/content", "/sites", "/suppressions", "/trace?recipient=b",
    "/configuration", "/audit", "/events",
    f"/operations/{'0' * 32}", f"/operations/{'0' * 32}/events",
)  # fmt: skip


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def seen(answer: httpx.Response) -> tuple[int, str, dict[str, str]]:
    return answer.status_code, answer.text, dict(answer.headers)


async def test_a_queue_of_another_tenant_is_as_one_that_does_not_exist() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        items = (await console.get(token, QUEUES)).json()["items"]
        assert [each["namespace"] for each in items] == ["a"]
        for rest in PATHS:
            there, missing, nowhere = [
                await console.get(token, f"{QUEUES}/{place}{rest}")
                for place in ("b/outgoing", "b/missing", "nowhere/outgoing")
            ]
            assert there.status_code == 404
            assert seen(there) == seen(missing) == seen(nowhere), rest
            page = await console.get(token, f"/queues/b/outgoing{rest}")
            assert page.status_code == 404
        for method, rest, body in (
            ("POST", "/operations", {"operation": "hold", "selector": {"all": True}}),
            ("POST", "/sites/mx.example.net:suspend", {"duration": "2h", "reason": "x"}),
            ("DELETE", "/suppressions/b@example.net", None),
        ):
            asked = [
                await console.client.request(
                    method, f"{QUEUES}/b/{name}{rest}", json=body, headers=bearer(token)
                )
                for name in ("outgoing", "missing")
            ]
            assert asked[0].status_code == 404
            assert seen(asked[0]) == seen(asked[1])
        names = [str(each) for each in console.queues.opened]
        assert names == ["a.outgoing"], "no store of the other tenant was touched"


async def test_the_same_is_asked_about_a_queue_that_exists_and_one_that_does_not() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        counts = []
        for name in ("outgoing", "missing"):
            before = len(reviews.asked)
            await console.get(token, f"{QUEUES}/b/{name}/mails/{'0' * 32}/content")
            asked = [each for each in reviews.asked[before:] if getattr(each, "name", "") == name]
            counts.append(len(asked))
        assert counts == [2, 2]


async def test_a_reader_without_a_right_of_its_part_is_refused() -> None:
    reviews = MemoryAccessReviews()
    reader, viewer = reviews.give("reader", "a", *VIEWER[:2]), reviews.give("viewer", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        path = f"{QUEUES}/a/outgoing"
        assert (await console.get(reader, path)).status_code == 200
        assert (await console.get(reader, f"{path}/mails")).status_code == 403
        assert (await console.get(viewer, f"{path}/mails")).status_code == 200
        refused = await console.get(viewer, f"{path}/mails/{'0' * 32}/content")
        assert refused.status_code == 403
        assert "mailqueues/content" in refused.json()["detail"]
        change = {"operation": "hold", "selector": {"all": True}}
        answer = await console.client.post(
            f"{path}/operations", json=change, headers=bearer(viewer)
        )
        assert answer.status_code == 403


async def test_a_right_to_one_queue_by_its_name_is_enough() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("bob", "a")
    reviews.rights.add(("bob", ReviewedRight("get", "mailqueues", "a", "outgoing")))
    async with a_reviewed_console(reviews) as console:
        assert (await console.get(token, f"{QUEUES}/a/outgoing")).status_code == 200
        assert (await console.get(token, f"{QUEUES}/a/other")).status_code == 404


async def test_rights_that_were_taken_away_are_gone_after_seconds_and_answers_are_kept() -> None:
    reviews, clock = MemoryAccessReviews(), ManualClock()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, clock=clock) as console:
        for _ in range(5):
            assert (await console.get(token, f"{QUEUES}/a/outgoing")).status_code == 200
        assert len(reviews.asked) == 2, "a token and a right"
        reviews.rights.clear()
        clock.jump(ANSWER_LIFETIME)
        assert (await console.get(token, f"{QUEUES}/a/outgoing")).status_code == 404
        del reviews.tokens[token]
        clock.jump(ANSWER_LIFETIME)
        assert (await console.get(token, f"{QUEUES}/a/outgoing")).status_code == 401


async def test_an_api_server_that_is_away_is_503_and_never_a_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    reviews, clock = MemoryAccessReviews(), ManualClock()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, clock=clock) as console:
        assert (await console.get(token, f"{QUEUES}/a/outgoing")).status_code == 200
        clock.jump(ANSWER_LIFETIME)
        reviews.is_away = True
        for path in ("/", QUEUES, f"{QUEUES}/a/outgoing", f"{QUEUES}/b/outgoing"):
            answer = await console.get(token, path)
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        reviews.is_away = False
        assert (await console.get(token, QUEUES)).status_code == 200, "no error is remembered"
        reviews.is_away = True
        for path in (f"{QUEUES}/a/outgoing/mails", f"{QUEUES}/b/outgoing/mails"):
            assert (await console.get(token, path)).status_code == 503, "the user is known"
    assert token not in caplog.text
    assert token not in str([vars(each) for each in caplog.records])


async def test_a_token_for_another_audience_and_what_is_no_token_are_refused() -> None:
    reviews = MemoryAccessReviews()
    reviews.tokens["elsewhere"] = "eve", f"{AUDIENCE}-2"
    reviews.tokens["of-an-issuer"] = "oscar", ""
    async with a_reviewed_console(reviews) as console:
        assert (await console.get("elsewhere", QUEUES)).status_code == 401
        assert (await console.get("of-an-issuer", QUEUES)).status_code == 200
        before = len(reviews.asked)
        for wrong in ("", "x" * (MAX_TOKEN + 1), "\x7f"):
            assert (await console.get(wrong, QUEUES)).status_code == 401
        assert (await console.client.get(QUEUES)).status_code == 401
        assert len(reviews.asked) == before


async def test_strangers_cannot_let_the_api_server_review_without_end() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, rate=RequestRate(0.001, 5)) as console:
        assert (await console.get(token, QUEUES)).status_code == 200
        answers = [await console.get(f"made-up-{each}", QUEUES) for each in range(20)]
        assert {each.status_code for each in answers} == {401, 429}
        assert reviews.asked.count("user") <= 6
        assert (await console.get(token, QUEUES)).status_code == 200, "a known user passes"


async def test_made_up_tokens_that_come_again_have_the_rate_of_strangers() -> None:
    reviews, clock = MemoryAccessReviews(), ManualClock()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, clock=clock, rate=RequestRate(1, 5)) as console:
        assert (await console.get(token, QUEUES)).status_code == 200
        for _ in range(6):  # so that many made-up tokens have been reviewed
            clock.jump(ANSWER_LIFETIME)
            for each in range(30):
                await console.get(f"made-up-{each}", QUEUES)
        before = reviews.asked.count("user")
        for each in range(30):
            await console.get(f"made-up-{each}", QUEUES)
        assert reviews.asked.count("user") == before
        assert before <= 1 + 6 * 5
        assert (await console.get(token, QUEUES)).status_code == 200, "a known user passes"


async def cookie_of(console: ReviewedConsole, token: str) -> httpx.Response:
    return await console.client.post(
        "/session", data={"token": token}, headers={"Origin": ORIGIN, "Accept": "text/html"}
    )


async def test_a_browser_exchanges_a_token_for_a_session_that_ends_with_it() -> None:
    reviews, clock = MemoryAccessReviews(), ManualClock()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, clock=clock) as console:
        form = await console.client.get("/", headers={"Accept": "text/html"})
        assert form.status_code == 401
        assert 'action="/session"' in form.text
        begun = await cookie_of(console, token)
        assert begun.status_code == 303
        cookie = begun.headers["set-cookie"]
        assert token not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" not in cookie
        assert (await console.client.get(f"{QUEUES}/a/outgoing")).status_code == 200
        assert (await console.client.get(f"{QUEUES}/b/outgoing")).status_code == 404
        del reviews.tokens[token]
        clock.jump(ANSWER_LIFETIME)
        assert (await console.client.get(f"{QUEUES}/a/outgoing")).status_code == 401
        reviews.give("alice", "a")
        clock.jump(ANSWER_LIFETIME)
        answer = await console.client.get(f"{QUEUES}/a/outgoing")
        assert answer.status_code == 401, "the session is over, and does not come back"


async def test_a_session_by_a_token_is_short() -> None:
    reviews, clock = MemoryAccessReviews(), ManualClock()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, clock=clock) as console:
        await cookie_of(console, token)
        ends = SHORT_LIFETIME + timedelta(seconds=1)
        assert ends <= IDLE + timedelta(seconds=1)
        clock.jump(ends)
        assert (await console.client.get(QUEUES)).status_code == 401


async def test_a_user_who_begins_many_sessions_ends_none_of_another_user() -> None:
    reviews = MemoryAccessReviews()
    token, other = reviews.give("alice", "a", *VIEWER), reviews.give("eve", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        begun = [await cookie_of(console, each) for each in (token, other)]
        for _ in range(MAX_TOKEN_SESSIONS):
            await cookie_of(console, other)
        console.client.cookies.clear()
        for answer, status in zip(begun, (200, 401), strict=True):
            cookie = answer.headers["set-cookie"].partition(";")[0]
            found = await console.client.get(QUEUES, headers={"Cookie": cookie})
            assert found.status_code == status


async def test_accounts_of_a_namespace_without_end_end_no_session_of_others() -> None:
    sessions = Sessions(ManualClock().elapsed, most=30)
    others = [sessions.begin("t", each) for each in ("alice", "system:serviceaccount:b:robot")]
    for number in range(50):
        own = sessions.begin("t", f"system:serviceaccount:a:robot-{number}")
    assert all(sessions.find(each) for each in [*others, own])
    assert len(sessions._sessions) == 30


async def test_made_up_links_without_end_keep_no_user_from_a_good_one() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews, rate=RequestRate(0.001, 5)) as console:
        made = await console.client.post("/session", headers=bearer(token))
        found = [(await console.client.get("/?token=x")).status_code for _ in range(10)]
        assert found == [401] * 5 + [429] * 5
        assert (await console.client.get(made.json()["link"])).status_code == 303


async def test_a_page_elsewhere_logs_no_browser_in_by_its_own_link() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("eve", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        made = await console.client.post("/session", headers=bearer(token))
        link = made.json()["link"]
        for site in ("cross-site", "same-site"):
            refused = await console.client.get(link, headers={"Sec-Fetch-Site": site})
            assert refused.status_code == 403
            assert "set-cookie" not in refused.headers
        opened = await console.client.get(link, headers={"Sec-Fetch-Site": "none"})
        assert opened.status_code == 303


async def test_a_form_elsewhere_begins_no_session_here() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("eve", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        for headers in ({"Origin": "http://evil.example"}, {}, {"Origin": "null"}):
            answer = await console.client.post("/session", data={"token": token}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
        assert (await cookie_of(console, "made-up")).status_code == 401
        large = await console.client.post(
            "/session", content=b"x" * 70_000, headers={"Origin": ORIGIN}
        )
        assert large.status_code == 413
        many = await console.client.post(
            "/session", content=b"&a=1" * 30, headers={"Origin": ORIGIN}
        )
        assert many.status_code == 400


async def test_a_stranger_who_leaves_amid_a_form_is_no_error_of_the_console() -> None:
    async with a_reviewed_console(MemoryAccessReviews()) as console:
        begun: Message = {"type": "http.request", "body": b"token=", "more_body": True}
        coming = iter((begun, {"type": "http.disconnect"}))
        sent: list[Message] = []

        async def receive() -> Message:
            return next(coming)

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1:8600"), (b"origin", ORIGIN.encode())]
        scope = {"type": "http", "method": "POST", "path": "/session", "headers": headers}
        transport = console.client._transport
        assert isinstance(transport, httpx.ASGITransport)
        await transport.app(scope | {"query_string": b""}, receive, send)
        assert sent == []


async def test_a_bearer_gets_a_link_for_a_browser_which_is_good_once() -> None:
    reviews = MemoryAccessReviews()
    token, other = reviews.give("alice", "a", *VIEWER), reviews.give("bob", "b", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        made = [
            await console.client.post("/session", headers=bearer(each)) for each in (token, other)
        ]
        assert [each.status_code for each in made] == [201, 201]
        link = made[0].json()["link"]
        assert token not in link
        opened = await console.client.get(f"{link}&to=/queues/a/outgoing")
        assert (opened.status_code, opened.headers["location"]) == (303, "/queues/a/outgoing")
        assert (await console.client.get(f"{QUEUES}/a/outgoing")).status_code == 200
        assert (await console.client.get(link)).status_code == 401
        elsewhere = await console.client.get(
            f"{made[1].json()['link']}&to=/queues/a;url=//evil.example/"
        )
        assert elsewhere.headers["location"] == "/"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:54321", "http://127.0.0.1:54321"),
        ("localhost:8600", "http://localhost:8600"),
        ("[::1]:8600", "http://[::1]:8600"),
        ("main-console.mail.svc", "http://main-console.mail.svc"),
        ("console.example.org", "https://console.example.org"),
    ],
)
async def test_a_console_in_a_cluster_is_reached_under_its_names(host: str, origin: str) -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        begun = await console.client.post(
            "/session", data={"token": token}, headers={"Host": host, "Origin": origin}
        )
        assert begun.status_code == 303
        assert ("Secure" in begun.headers["set-cookie"]) == origin.startswith("https:")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "localhost:x", "127.0.0.1:8600@evil.example", "127.0.0.2:80"],
)
async def test_another_name_reaches_nothing(host: str) -> None:
    async with a_reviewed_console(MemoryAccessReviews()) as console:
        assert (await console.client.get("/", headers={"Host": host})).status_code == 421


async def test_no_probe_and_no_metric_is_served_to_users() -> None:
    reviews = MemoryAccessReviews()
    token = reviews.give("alice", "a", *VIEWER)
    async with a_reviewed_console(reviews) as console:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert (await console.client.get(path)).status_code == 401
            assert (await console.get(token, path)).status_code == 404


async def test_changes_are_in_the_list_of_their_queue_and_announced_without_addresses() -> None:
    reviews, announced = MemoryAccessReviews(), list[tuple[str, AuditEntry]]()

    async def announce(on: ConsoleQueue, entry: AuditEntry) -> None:
        announced.append((on.uid, entry))

    operations = (("create", "mailqueues/operations"), ("get", "mailqueues/operations"))
    token, other = (reviews.give(each, each[0], *VIEWER, *operations) for each in ("anna", "bert"))
    async with a_reviewed_console(reviews, announce=announce) as console:
        for body in (
            {"operation": "hold", "selector": {"sender": "secret@example.org"}},
            {"operation": "hold", "selector": {"all": True}, "dryRun": True},
        ):
            answer = await console.client.post(
                f"{QUEUES}/a/outgoing/operations", json=body, headers=bearer(token)
            )
            assert answer.status_code == 202
        await console.client.post(
            f"{QUEUES}/a/outgoing/sites/mx.example.net:suspend",
            json={"duration": "2h", "reason": "they asked"},
            headers=bearer(token),
        )
        await asyncio.sleep(0)
        found = (await console.get(token, f"{QUEUES}/a/outgoing/audit")).json()["items"]
        assert [(each["who"], each["change"]) for each in found] == [
            ("anna", "suspend"),
            ("anna", "hold"),
        ]
        assert found[0]["more"] == {"site": "mx.example.net"}
        assert (found[1]["fields"], found[1]["matched"]) == (["sender"], 0)
        assert "secret@example.org" not in str(found) + str(announced)
        assert [each for each, _ in announced] == ["uid-of-a.outgoing"] * 2
        theirs = await console.get(other, f"{QUEUES}/b/outgoing/audit")
        assert theirs.json()["items"] == []


async def test_those_who_ask_at_the_same_time_share_a_request_and_errors_are_not_kept() -> None:
    clock, asked = ManualClock(), 0
    answers: Answers[int] = Answers(clock.elapsed)

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if asked == 1:
            raise ValueError
        return asked

    first = await asyncio.gather(
        *(answers.get("key", ask) for _ in range(3)), return_exceptions=True
    )
    assert [type(each) for each in first] == [ValueError] * 3
    assert await asyncio.gather(*(answers.get("key", ask) for _ in range(3))) == [2, 2, 2]
    clock.jump(ANSWER_LIFETIME)
    assert await answers.get("key", ask) == 3
