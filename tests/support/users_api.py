"""The part of RabbitMQ's management API that is about users, in memory, as 3.10 answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

ADMINISTRATOR, PASSWORD = "admin", "secret"

Place = tuple[str, str, str]
"""Vhost, user, and exchange of a permission; no exchange: of the vhost."""


class UsersApi:
    """The users of a RabbitMQ, with what they are permitted. `requests` are those so far; `tags`
    those of the user who asks."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {ADMINISTRATOR: {"password": PASSWORD, "tags": []}}
        self.permissions: dict[Place, dict[str, str]] = {}
        self.requests: list[str] = []
        self.is_administrator = True

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of an application."""
        one, of_one = "/api/users/{user}", "{which:permissions|topic-permissions}"
        place = f"/api/{of_one}/{{vhost}}/{{user}}"
        return [
            web.get("/api/users", self._list),
            web.get(one, self._get),
            web.put(one, self._put),
            web.delete(one, self._delete),
            web.get(f"{one}/{of_one}", self._permitted),
            web.put(place, self._permit),
            web.delete(place, self._forbid),
        ]

    def note(self, request: web.Request) -> None:
        """Note a request, and refuse it where its user is no administrator."""
        self.requests.append(f"{request.method} {request.raw_path}")
        if not self.is_administrator:
            raise web.HTTPUnauthorized(text='{"error": "not_authorised"}')

    def _user(self, request: web.Request) -> str:
        self.note(request)
        user = request.match_info["user"]
        if user not in self.users:
            raise web.HTTPNotFound
        return user

    async def _list(self, request: web.Request) -> web.Response:
        self.note(request)
        return web.json_response([{"name": name, "tags": []} for name in self.users])

    async def _get(self, request: web.Request) -> web.Response:
        user = self._user(request)
        return web.json_response({"name": user, "tags": self.users[user]["tags"]})

    async def _put(self, request: web.Request) -> web.Response:
        self.note(request)
        user, body = request.match_info["user"], await request.json()
        is_new = user not in self.users
        self.users[user] = {"password": body["password"], "tags": body["tags"].split(",")}
        return web.Response(status=201 if is_new else 204)

    async def _delete(self, request: web.Request) -> web.Response:
        user = self._user(request)
        del self.users[user]
        for place in [each for each in self.permissions if each[1] == user]:
            del self.permissions[place]
        return web.Response(status=204)

    async def _permitted(self, request: web.Request) -> web.Response:
        user, of_topics = self._user(request), request.match_info["which"] != "permissions"
        return web.json_response(
            [
                {"user": user, "vhost": vhost, "later": 1, **patterns}
                for (vhost, name, exchange), patterns in self.permissions.items()
                if name == user and bool(exchange) == of_topics
            ]
        )

    async def _permit(self, request: web.Request) -> web.Response:
        user, body = self._user(request), await request.json()
        place = request.match_info["vhost"], user, body.get("exchange", "")
        is_new = place not in self.permissions
        self.permissions[place] = body
        return web.Response(status=201 if is_new else 204)

    async def _forbid(self, request: web.Request) -> web.Response:
        user, vhost = self._user(request), request.match_info["vhost"]
        of_topics = request.match_info["which"] != "permissions"
        for place in [*self.permissions]:
            if place[:2] == (vhost, user) and bool(place[2]) == of_topics:
                del self.permissions[place]
        return web.Response(status=204)


@asynccontextmanager
async def serving(api: UsersApi) -> AsyncIterator[str]:
    """Serve it; yield its URL."""
    application = web.Application()
    application.add_routes(api.routes())
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
