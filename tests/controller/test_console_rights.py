"""Rights of the users of a console, reviewed by a real API server with the rights that are shipped:
each role, at each request, in each namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from contract.access_reviews_contract import AUDIENCE, AccessReviewsContract
from postroad.adapters.kubernetes.access_reviews import ApiAccessReviews
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import SERVICE_ACCOUNT
from support.access_to_kubernetes import with_token
from support.console_accounts import bind, binding, make_account, token_of
from support.namespaces import new_namespace
from support.reviewed_users import AUDIENCE as CONSOLE_AUDIENCE
from support.reviewed_users import ReviewedConsole, a_reviewed_console
from support.shipped_roles import BINDING, INSTALL, LEASE_ROLE, RBAC, ROLE, shipped

pytestmark = pytest.mark.needs("kubernetes")

CONSOLES = INSTALL.with_name("consoles.yaml")
QUEUES = "/api/v1/queues"
NO_ID = "0" * 32
NO_QUEUE = "the console has no such queue: GET /api/v1/queues lists them"

ROLES = {
    "stranger": (),
    "viewer": ("view",),
    "operator": ("view", "edit"),
    "administrator": ("view", "edit", "admin"),
}
VIEW, EDIT, ADMIN = (
    {"viewer", "operator", "administrator"},
    {"operator", "administrator"},
    {"administrator"},
)
HOLD = {"operation": "hold", "selector": {"sender": "a@example.org"}}
REQUESTS: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "", None, VIEW),
    ("GET", "/ages", None, VIEW),
    ("GET", "/report", None, VIEW),
    ("GET", "/mails", None, VIEW),
    ("GET", f"/mails/{NO_ID}", None, VIEW),
    ("GET", f"/mails/{NO_ID}/content", None, ADMIN),
    ("GET", "/dead-letters", None, VIEW),
    ("GET", "/sites", None, VIEW),
    ("GET", "/suppressions", None, VIEW),
    ("GET", "/trace?recipient=b", None, VIEW),
    ("GET", "/configuration", None, VIEW),
    ("GET", "/audit", None, VIEW),
    ("GET", f"/operations/{NO_ID}", None, VIEW),
    ("GET", f"/operations/{NO_ID}/events", None, VIEW),
    ("POST", "/operations", HOLD, EDIT),
    ("POST", "/operations", {**HOLD, "dryRun": True}, EDIT),
    ("POST", "/sites/mx.example.net:suspend", {"duration": "1h", "reason": "x"}, EDIT),
    ("POST", "/sites/mx.example.net:resume", None, EDIT),
    ("POST", "/sites/mx.example.net:flush", None, EDIT),
    ("POST", "/sites/mx.example.net:reroute", {"end": True}, EDIT),
    ("PUT", "/suppressions/b@example.net", {}, EDIT),
    ("DELETE", "/suppressions/b@example.net", None, EDIT),
]


@pytest.fixture
async def reviews(api: ApiServer, namespace: str) -> AsyncIterator[ApiAccessReviews]:
    """Reviews for a ServiceAccount that has the shipped rights of consoles alone."""
    name = f"postroad-console-{namespace}"
    role = shipped("ClusterRole", "postroad-console", CONSOLES)
    role["metadata"]["name"] = name
    await make_account(api, namespace, "main-console")
    bound = binding("ClusterRoleBinding", name, namespace, "main-console", name)
    made = [(ROLE, await api.create(ROLE, role)), (BINDING, await api.create(BINDING, bound))]
    server = ApiServer(with_token(api.access, await token_of(api, namespace, "main-console")), "c")
    yield ApiAccessReviews(server)
    await server.close()
    for kind, each in made:
        await api.delete(kind, each)


@pytest.fixture
async def other_namespace(api: ApiServer) -> AsyncIterator[str]:
    async with new_namespace(api) as name:
        yield name


@pytest.fixture
async def tokens(api: ApiServer, namespace: str) -> AsyncIterator[dict[str, str]]:
    """Tokens of accounts with the roles that are shipped, in the first namespace."""
    made = []
    for part in ("view", "edit", "admin"):
        role = shipped("ClusterRole", f"postroad-{part}")
        role["metadata"] = {"name": f"{namespace}-{part}"}
        made.append(await api.create(ROLE, role))
    found = {}
    for account, parts in ROLES.items():
        await make_account(api, namespace, account)
        for part in parts:
            await bind(api, f"{namespace}-{part}", namespace, account)
        found[account] = await token_of(api, namespace, account, [CONSOLE_AUDIENCE])
    yield found
    for each in made:
        await api.delete(ROLE, each)


async def ask(
    console: ReviewedConsole, token: str, place: str, method: str, rest: str, body: Any
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return await console.client.request(
        method, f"{QUEUES}/{place}{rest}", json=body, headers=headers
    )


def is_hidden(answer: httpx.Response) -> bool:
    return answer.status_code == 404 and answer.json()["detail"] == NO_QUEUE


async def test_each_role_has_its_requests_in_its_namespace_and_none_elsewhere(
    reviews: ApiAccessReviews, tokens: dict[str, str], namespace: str, other_namespace: str
) -> None:
    namespaces = namespace, other_namespace
    async with a_reviewed_console(reviews, namespaces=namespaces) as console:
        for role, token in tokens.items():
            listed = await console.client.get(QUEUES, headers={"Authorization": f"Bearer {token}"})
            seen = [each["namespace"] for each in listed.json()["items"]]
            assert seen == ([namespace] if role in VIEW else []), role
            for method, rest, body, allowed in REQUESTS:
                own = await ask(console, token, f"{namespace}/outgoing", method, rest, body)
                where = role, method, rest, own.text[:200]
                assert own.status_code < 500, where
                if role not in VIEW:
                    assert is_hidden(own), where
                else:
                    assert not is_hidden(own), where
                    assert (own.status_code == 403) == (role not in allowed), where
                theirs, missing = [
                    await ask(console, token, place, method, rest, body)
                    for place in (f"{other_namespace}/outgoing", f"{other_namespace}/missing")
                ]
                assert is_hidden(theirs), where
                assert (theirs.text, theirs.headers) == (missing.text, missing.headers), where
            for place in (f"{other_namespace}/outgoing", f"{other_namespace}/missing"):
                assert is_hidden(await ask(console, token, place, "GET", "/events", None)), role
            if role not in VIEW:  # to others, it is a stream without an end
                own = await ask(console, token, f"{namespace}/outgoing", "GET", "/events", None)
                assert is_hidden(own), role
        opened = {each.namespace for each in console.queues.opened}
        assert opened == {namespace}, "no request touched the other tenant's store"


async def test_a_session_of_a_browser_has_the_rights_of_its_user_and_ends_with_the_account(
    api: ApiServer, reviews: ApiAccessReviews, tokens: dict[str, str], namespace: str
) -> None:
    from postroad.console.reviewed_rights import ANSWER_LIFETIME
    from support.memory.clock import ManualClock

    clock = ManualClock()
    async with a_reviewed_console(reviews, clock=clock, namespaces=(namespace,)) as console:
        begun = await console.client.post(
            "/session",
            data={"token": tokens["viewer"]},
            headers={"Origin": "http://127.0.0.1:8600"},
        )
        assert begun.status_code == 303
        path = f"{QUEUES}/{namespace}/outgoing"
        assert (await console.client.get(f"{path}/mails")).status_code == 200
        assert (await console.client.get(f"{path}/mails/{NO_ID}/content")).status_code == 403
        account = await api.get(SERVICE_ACCOUNT, namespace, "viewer")
        assert account
        await api.delete(SERVICE_ACCOUNT, account)
        async with asyncio.timeout(60):  # the API server remembers tokens for some seconds, too
            while (await console.client.get(path)).status_code != 401:
                clock.jump(ANSWER_LIFETIME)
                await asyncio.sleep(0.5)


class TestApiAccessReviews(AccessReviewsContract):
    """Over a real API server."""

    @pytest.fixture
    async def reviews(self, api: ApiServer, namespace: str) -> ApiAccessReviews:
        self._api, self._namespace = api, namespace
        return ApiAccessReviews(api)

    @pytest.fixture
    async def namespace(self, api: ApiServer) -> AsyncIterator[str]:
        async with new_namespace(api) as name:
            yield name

    async def give(
        self, user: str, verb: str, resource: str, *, name: str = "", audience: str = AUDIENCE
    ) -> str:
        rule = {"apiGroups": ["postroad.dev"], "resources": [resource], "verbs": [verb]}
        await make_account(self._api, self._namespace, user)
        role = {
            "apiVersion": RBAC,
            "kind": "Role",
            "metadata": {"name": user, "namespace": self._namespace},
            "rules": [rule | ({"resourceNames": [name]} if name else {})],
        }
        await self._api.create(LEASE_ROLE, role)
        await bind(self._api, user, self._namespace, user, "Role")
        audiences = [audience] if audience else []
        self._token = await token_of(self._api, self._namespace, user, audiences)
        return self._token

    async def revoke(self, user: str) -> None:
        account = await self._api.get(SERVICE_ACCOUNT, self._namespace, user)
        assert account
        await self._api.delete(SERVICE_ACCOUNT, account)
        async with asyncio.timeout(60):  # the API server remembers that a token was good
            while await ApiAccessReviews(self._api).user_of(self._token, AUDIENCE):
                await asyncio.sleep(0.5)
