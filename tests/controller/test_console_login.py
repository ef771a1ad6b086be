"""Browsers log in to a console at an OpenID provider that its API server knows: Chromium, a
certified provider, and the rights that a real API server gives to the groups of a token."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright, expect

from postroad import Mail
from postroad.adapters.clocks import MachineClock
from postroad.adapters.kubernetes.access_reviews import ApiAccessReviews
from postroad.adapters.kubernetes.api_requests import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.console.api.access import Console
from postroad.console.api.guard import Hosts
from postroad.console.api.server import ConsoleServer, serve
from postroad.console.api.sessions import TokenIdentities
from postroad.console.openid import OpenIdClient, OpenIdLogins
from postroad.console.reviewed_rights import ReviewedRights
from postroad.controller.kubernetes.api import ROLE_BINDING
from postroad.domain.queues.names import QueueName
from postroad.telemetry.health import Readiness
from stack.control_plane import ControlPlane
from stack.progress import Progress
from support.crds import install_crds
from support.namespaces import new_namespace
from support.openid_provider import OpenIdProvider, an_openid_provider
from support.ports import free_port
from support.reviewed_users import MemoryQueues
from support.shipped_roles import RBAC, ROLE, shipped

pytestmark = [pytest.mark.needs("kubernetes", "chromium", "npm"), pytest.mark.timeout(300)]

CLIENT, AUDIENCE = "postroad-console", "postroad.dev/consoles/mail/main"
GROUPS = {"vera": ["viewers"], "otto": ["viewers", "operators"], "stranger": ["elsewhere"]}
SECONDS = 20
"""For which tokens of the second provider are good."""


class TrustingControlPlane(ControlPlane):
    """An API server that takes the tokens of a provider, for our client."""

    provider_of_users: OpenIdProvider

    def begin(self, name: str, command: list[str]) -> None:
        if name == "apiserver":
            command = [
                *command,
                f"--oidc-issuer-url={self.provider_of_users.url}",
                f"--oidc-ca-file={self.provider_of_users.authorities}",
                f"--oidc-client-id={CLIENT}",
                *("--oidc-username-claim=sub", "--oidc-username-prefix=oidc:"),
                *("--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:"),
            ]
        super().begin(name, command)


@dataclass(frozen=True)
class Known:
    """A provider, the API server that knows it, and where the console is."""

    provider: OpenIdProvider
    kubeconfig: Path
    port: int


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    folder, port = tmp_path_factory.mktemp("known"), free_port()
    redirects = [f"http://127.0.0.1:{port}/login/callback"]
    with an_openid_provider(folder, CLIENT, redirects, GROUPS, seconds=SECONDS) as provider:
        server = TrustingControlPlane(folder / "apiserver")
        server.provider_of_users = provider
        server.prepare(Progress(quiet=True))
        server.start(Progress(quiet=True))
        try:
            yield Known(provider, server.kubeconfig, port)
        finally:
            server.stop()


@pytest.fixture
async def api(known: Known) -> AsyncIterator[ApiServer]:
    server = ApiServer(load_access(known.kubeconfig), "tests")
    await install_crds(server)
    yield server
    await server.close()


@pytest.fixture
async def namespaces(api: ApiServer) -> AsyncIterator[tuple[str, str]]:
    """Two namespaces; in the first, the groups have the roles that are shipped."""
    async with new_namespace(api) as own, new_namespace(api) as other:
        made = []
        for group, part in (("viewers", "view"), ("operators", "edit")):
            role = shipped("ClusterRole", f"postroad-{part}")
            role["metadata"] = {"name": f"{own}-{part}"}
            made.append(await api.create(ROLE, role))
            subject = {"apiGroup": RBAC.partition("/")[0], "kind": "Group", "name": f"oidc:{group}"}
            given = {
                "apiVersion": RBAC,
                "kind": "RoleBinding",
                "metadata": {"name": group, "namespace": own},
                "roleRef": {
                    "apiGroup": RBAC.partition("/")[0],
                    "kind": "ClusterRole",
                    "name": f"{own}-{part}",
                },
                "subjects": [subject],
            }
            await api.create(ROLE_BINDING, given)
        yield own, other
        for each in made:
            await api.delete(ROLE, each)


@asynccontextmanager
async def a_console(known: Known, api: ApiServer, *namespaces: str) -> AsyncIterator[str]:
    queues = MemoryQueues({QueueName(each, "outgoing"): f"memory://{each}" for each in namespaces})
    clock, stop = MachineClock(), asyncio.Event()
    rights = ReviewedRights(ApiAccessReviews(api), clock.elapsed, AUDIENCE)
    client = OpenIdClient(known.provider.url, CLIENT, known.provider.authorities.parent)
    identities = TokenIdentities(rights, clock.elapsed, OpenIdLogins(client, clock.elapsed))
    console = Console.over(queues, rights, clock)
    for each in queues.names():
        found = await queues.open(each)
        await found.queue.purge()
        mail = Mail(sender="a@example.org", recipients=("b@example.net",), content=b"\r\n")
        await found.queue.enqueue(mail)
    listening = socket.create_server(("127.0.0.1", known.port))
    server = ConsoleServer(
        listening, console, Readiness(), identities=identities, hosts=Hosts((), (), True)
    )
    serving = asyncio.create_task(serve(server, stop))
    try:
        yield f"http://127.0.0.1:{known.port}"
    finally:
        stop.set()
        await serving
        await console.operations.close()
        for opened in queues.opened.values():
            await opened.queue.close()


@asynccontextmanager
async def a_browser() -> AsyncIterator[BrowserContext]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            yield await browser.new_context(ignore_https_errors=True)
        finally:
            await browser.close()


async def log_in(page: Page, user: str) -> None:
    """Log in from a page of the console that asks for it, as the forms of the provider want."""
    await page.get_by_role("link", name="Log in at the issuer").click()
    if user:
        await page.get_by_placeholder("Enter any login").fill(user)
        await page.get_by_placeholder("and password").fill("x")
        await page.get_by_role("button", name="Sign-in").click()
        await page.get_by_role("button", name="Continue").click()


async def test_users_log_in_and_have_the_rights_of_their_groups_until_their_tokens_end(
    known: Known, api: ApiServer, namespaces: tuple[str, str]
) -> None:
    own, other = namespaces
    async with a_console(known, api, own, other) as base, a_browser() as context:
        page = await context.new_page()
        refused = await page.goto(f"{base}/queues/{own}/outgoing/mails")
        assert refused is not None
        assert refused.status == 401
        await log_in(page, "otto")
        await expect(page).to_have_url(f"{base}/queues/{own}/outgoing/mails")
        await expect(page.locator("a.who")).to_contain_text("a@example.org")
        (cookie,) = await context.cookies(base)
        shape = {name: cookie.get(name) for name in ("name", "httpOnly", "secure", "sameSite")}
        assert shape == {
            "name": "postroad-console",
            "httpOnly": True,
            "secure": False,
            "sameSite": "Strict",
        }
        assert await page.evaluate("document.cookie") == ""
        await page.locator("a.who").click()
        await page.get_by_role("button", name="Hold").click()
        await expect(page.get_by_role("status")).to_have_text("This mail was held.")
        hidden = await page.goto(f"{base}/queues/{other}/outgoing")
        assert hidden is not None
        assert hidden.status == 404

        await page.goto(f"{base}/queues/{own}/outgoing")
        async with asyncio.timeout(SECONDS + 60):  # the API server gives no grace
            while (answer := await page.reload()) is None or answer.status != 401:
                await asyncio.sleep(1)
        await log_in(page, "")  # the provider knows the user still
        await expect(page).to_have_url(f"{base}/queues/{own}/outgoing")

        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("link", name="Log in at the issuer")).to_be_visible()
        assert await context.cookies(base) == []


@pytest.mark.parametrize(("user", "status"), [("vera", 403), ("stranger", 404)])
async def test_a_user_has_no_rights_that_its_groups_lack(
    known: Known, api: ApiServer, namespaces: tuple[str, str], user: str, status: int
) -> None:
    own, other = namespaces
    async with a_console(known, api, own, other) as base, a_browser() as context:
        page = await context.new_page()
        await page.goto(base)
        await log_in(page, user)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        is_seen = user == "vera"
        await expect(page.get_by_role("link", name=f"{own}/outgoing")).to_have_count(int(is_seen))
        await expect(page.get_by_role("link", name=f"{other}/outgoing")).to_have_count(0)
        answer = await page.request.post(
            f"{base}/api/v1/queues/{own}/outgoing/operations",
            data={"operation": "hold", "selector": {"all": True}},
            headers={"Origin": base},
        )
        assert answer.status == status


async def test_an_answer_of_the_provider_that_comes_again_begins_no_session(
    known: Known, api: ApiServer, namespaces: tuple[str, str]
) -> None:
    async with a_console(known, api, *namespaces) as base, a_browser() as context:
        page = await context.new_page()
        answers: list[str] = []
        page.on(
            "request",
            lambda sent: answers.append(sent.url) if "/login/callback?" in sent.url else None,
        )
        await page.goto(base)
        await log_in(page, "vera")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        (answer,) = answers
        again = await page.goto(answer)
        async with a_browser() as another:
            there = await (await another.new_page()).goto(answer)
            assert [each and each.status for each in (again, there)] == [401, 401]
            assert await another.cookies(base) == []
