"""The guard of the console: what an attacker sends is refused, by a problem, before any queue is
asked; and every response has the headers of a page that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from postroad.console.api.guard import MAX_BODY, SECURITY_HEADERS, RequestRate
from postroad.console.api.sessions import IDLE, LIFETIME, LINK_LIFETIME, MAX_SESSIONS, Sessions
from postroad.console.rights import ConsoleUser
from support.consoles import HOST, ORIGIN, RunningConsole, a_console

QUEUES = "/api/v1/queues"
MAILS = f"{QUEUES}/memory/guarded/mails"


@pytest.fixture
async def console() -> AsyncIterator[RunningConsole]:
    async with a_console("memory://guarded") as running:
        yield running


def check_problem(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    check_headers(answer)


def check_headers(answer: httpx.Response) -> None:
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


async def test_every_response_has_the_security_headers(console: RunningConsole) -> None:
    for path in ("/healthz", "/readyz", "/metrics", QUEUES, "/api/v1/openapi.json", "/missing"):
        check_headers(await console.client.get(path))
    assert "unsafe" not in SECURITY_HEADERS["Content-Security-Policy"]


async def test_probes_need_no_session_and_all_else_does(console: RunningConsole) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await console.anonymous.get(path)).status_code == 200
    for path in ("/", QUEUES, MAILS, "/api/v1/openapi.json", "/missing", "//", "/healthz/.."):
        answer = await console.anonymous.get(path)
        check_problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8600", "127.0.0.1", "127.0.0.1:8601", "", f"{HOST}."]
)
async def test_a_name_that_was_rebound_to_loopback_reaches_nothing(
    console: RunningConsole, host: str
) -> None:
    for path in ("/healthz", QUEUES, "/?token=x"):
        check_problem(await console.client.get(path, headers={"Host": host}), 421)


async def test_a_link_is_good_once_and_its_cookie_is_no_script_s(console: RunningConsole) -> None:
    token = console.sessions.new_link()
    client = console.anonymous

    opened = await client.get("/", params={"token": token})

    assert opened.status_code == 303
    assert token not in opened.headers["location"]
    cookie = opened.headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert attribute in cookie
    assert (await client.get(QUEUES)).status_code == 200
    client.cookies.clear()
    check_problem(await client.get("/", params={"token": token}), 401)
    check_problem(await client.get("/", params={"token": ""}), 401)
    unseen = console.sessions.new_link()
    assert (await client.head("/", params={"token": unseen})).status_code == 401
    assert (await client.get("/", params={"token": unseen})).status_code == 303


async def test_a_session_is_a_bearer_token_too_and_then_needs_no_origin(
    console: RunningConsole,
) -> None:
    client = console.anonymous
    client.headers["Authorization"] = f"Bearer {console.login()}"

    assert (await client.get(QUEUES)).status_code == 200
    check_problem(await client.post(QUEUES), 405)
    for wrong in ("Bearer", "Bearer x", "Basic eDp4", "Bearer \x7f", "bearer  "):
        check_problem(await client.get(QUEUES, headers={"Authorization": wrong}), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:8601"},
        {"Origin": f"https://{HOST}"},
        {"Origin": f"{ORIGIN}.evil.example"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_elsewhere_changes_nothing_by_the_cookie(
    console: RunningConsole, headers: dict[str, str]
) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await console.client.request(method, MAILS, headers=headers)
        check_problem(answer, 403)


async def test_a_change_without_an_origin_is_refused(console: RunningConsole) -> None:
    del console.client.headers["Origin"]
    check_problem(await console.client.post(MAILS), 403)


@pytest.mark.parametrize("length", [str(MAX_BODY + 1), "9" * 100, "-1", "x", "1e3"])
async def test_a_body_that_is_too_large_is_not_read(console: RunningConsole, length: str) -> None:
    answer = await console.client.post(MAILS, headers={"Content-Length": length}, content=b"")
    check_problem(answer, 413)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/queues/memory/../local/guarded",
        "/api/v1/queues/memory/%2e%2e/guarded",
        "/api/v1/queues/memory/guarded%00/mails",
        "/api/v1/queues/memory/GUARDED",
        "/api/v1/queues/memory/guarded/mails/..%2f..%2fetc",
        "/api/v1/queues/memory/guarded//mails",
        "/api/v1/queues/memory/guarded/mails/",
        "/static/../../pyproject.toml",
        "/api/v1/queues/" + "x" * 5000 + "/guarded",
        "/api/v1/queues/mémoire/guarded",
    ],
)
async def test_a_path_that_is_no_queue_s_is_not_found(console: RunningConsole, path: str) -> None:
    answer = await console.client.get(path)
    check_problem(answer, 404)


async def test_a_user_who_asks_too_often_waits_and_others_do_not() -> None:
    async with a_console("memory://guarded", rate=RequestRate(0.001, 3)) as console:
        answers = [await console.client.get(QUEUES) for _ in range(5)]
        assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
        check_problem(answers[-1], 429)
        assert int(answers[-1].headers["retry-after"]) > 0
        other = {"Authorization": f"Bearer {console.login()}"}
        assert (await console.anonymous.get(QUEUES, headers=other)).status_code == 200
        refused = [await console.anonymous.get(QUEUES) for _ in range(4)]
        assert refused[-1].status_code == 429, "guesses of tokens are limited, too"
        assert (await console.anonymous.get("/healthz")).status_code == 200


async def test_a_query_of_too_many_fields_is_no_error_of_the_console(
    console: RunningConsole,
) -> None:
    for client in (console.anonymous, console.client):
        check_problem(await client.get("/?" + "&".join(["a=1"] * 50)), 400)


class NoRights:
    """Rights of users who have none."""

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        return False


async def test_without_a_right_a_queue_looks_as_one_that_is_missing() -> None:
    async with a_console("memory://guarded", rights=NoRights()) as console:
        assert (await console.client.get(QUEUES)).json()["items"] == []
        for name in ("guarded", "missing"):
            for rest in ("", "/ages", "/mails", "/dead-letters", f"/mails/{'0' * 32}/content"):
                answer = await console.client.get(f"{QUEUES}/memory/{name}{rest}")
                check_problem(answer, 404)


def test_sessions_and_links_end() -> None:
    now = timedelta(0)
    sessions = Sessions(lambda: now)
    late, link = sessions.new_link(), sessions.new_link()
    assert sessions.redeem(late) is None, "a new link takes the place of the one before"
    now = LINK_LIFETIME + timedelta(seconds=1)
    assert sessions.redeem(link) is None

    secret = sessions.redeem(sessions.new_link())
    assert secret is not None
    while now < LIFETIME + LINK_LIFETIME:
        assert sessions.find(secret) is not None
        now += IDLE
    now += timedelta(seconds=2)
    assert sessions.find(secret) is None, "it has lasted as long as sessions may"

    idle = sessions.redeem(sessions.new_link())
    assert idle is not None
    now += IDLE + timedelta(seconds=1)
    assert sessions.find(idle) is None

    many = [sessions.redeem(sessions.new_link()) or "" for _ in range(MAX_SESSIONS + 1)]
    assert [sessions.find(each) is None for each in many] == [True] + [False] * MAX_SESSIONS


async def test_files_of_the_page_need_no_session_and_lead_nowhere_else(
    console: RunningConsole,
) -> None:
    for name in ("page.css", "page.js", "htmx.min.js", "icon.svg"):
        answer = await console.anonymous.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("/static/../api/v1/queues", "/static/%2e%2e/api/v1/queues", "/static/", "/static"):
        answer = await console.anonymous.get(path)
        assert answer.status_code in (401, 404), path
    posted = await console.anonymous.post("/static/page.css")
    assert posted.status_code == 401
