"""A renewed login is used by the next connection, or the next request, of each server's driver."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from pika import PlainCredentials

from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.cassandra.connection import cluster_of
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.adapters.rabbitmq.connection import parameters_of
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.s3.clients import Access as S3Access
from postroad.adapters.s3.objects import Objects
from postroad.adapters.s3.store import Store
from postroad.logins import S3_LOGIN, LoginFolder
from support.mounted_secret import MountedSecret

SECOND = timedelta(seconds=1)
ONE, TWO = ({"username": f"u{n}", "password": f"p{n}"} for n in (1, 2))
KEYS, NEW_KEYS = ({"accessKey": f"AKIA{n}", "secretKey": f"s{n}"} for n in (1, 2))


class Asked:
    """A server over HTTP that records the `Authorization` of each request."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers["Authorization"])
        await request.read()
        if request.path.startswith("/api/"):
            return web.json_response([])
        return web.Response(headers={"ETag": '"1"'})

    def access_keys(self) -> list[str]:
        """The access keys that requests to S3 were signed with."""
        return [re.findall(r"Credential=(\w+)/", each)[0] for each in self.seen]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    found = Asked()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def test_rabbitmq_gets_it_with_the_next_connection(tmp_path: Path) -> None:
    mounted = MountedSecret(tmp_path / "login", ONE)
    access = RabbitMQAccess.from_uri("amqp://r", login_folder=LoginFolder(mounted.folder))

    def user() -> tuple[str, str]:
        credentials = cast("PlainCredentials", parameters_of(access, "test").credentials)
        return credentials.username, credentials.password

    assert user() == ("u1", "p1")
    mounted.renew(TWO)
    assert user() == ("u2", "p2")


async def test_the_management_api_gets_it_with_the_next_request(
    asked: Asked, tmp_path: Path
) -> None:
    mounted = MountedSecret(tmp_path / "login", ONE)
    management = Management(
        RabbitMQAccess.from_uri(
            "amqp://r", login_folder=LoginFolder(mounted.folder), management_url=asked.address
        )
    )

    await management.nodes()
    mounted.renew(TWO)
    await management.nodes()
    await management.nodes()
    await management.close()

    first, second = (aiohttp.encode_basic_auth(f"u{n}", f"p{n}") for n in (1, 2))
    assert asked.seen == [first, second, second]


def test_cassandra_gets_it_with_the_next_connection(tmp_path: Path) -> None:
    mounted = MountedSecret(tmp_path / "login", ONE)
    access = CassandraAccess(
        ("127.0.0.1",), 9042, "dc1", "mail", login_folder=LoginFolder(mounted.folder)
    )
    provider = cluster_of(access, SECOND, SECOND).auth_provider

    def user() -> tuple[str, str]:
        made = provider.new_authenticator("host")
        return made.username, made.password

    assert user() == ("u1", "p1")
    mounted.renew(TWO)
    assert user() == ("u2", "p2")


async def test_s3_gets_it_with_the_next_request(asked: Asked, tmp_path: Path) -> None:
    mounted = MountedSecret(tmp_path / "login", KEYS)
    access = S3Access(
        asked.address, "us-east-1", login_folder=LoginFolder(mounted.folder, S3_LOGIN)
    )
    store, objects = Store(access), Objects(access, "mail")

    async def both() -> None:
        await objects.put("a", b"x")
        await store(lambda client: client.head_bucket(Bucket="mail"))

    await both()
    mounted.renew(NEW_KEYS)
    await asyncio.sleep(0.2)  # obstore keeps a login for 100 ms
    await both()
    await store.close()

    assert asked.access_keys() == ["AKIA1", "AKIA1", "AKIA2", "AKIA2"]
