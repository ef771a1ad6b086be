"""An upload that a store refuses because another request of the same moment is in its way (409).

versitygw answers so to one of many first uploads of a day: they make the folders of their keys at
once. No server does it on demand, so the answers are played here, over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.objects import Objects
from postroad.errors import BlobsUnavailable

REFUSAL = "<Error><Code>{}</Code><Message>later</Message></Error>"

Put = Callable[[Objects], Awaitable[None]]

both = pytest.mark.parametrize(
    "put",
    [lambda objects: objects.put("a", b"x"), lambda objects: objects.put_new("a", b"x")],
    ids=["put", "put_new"],
)


class PlayedBucket:
    """A bucket that refuses the next uploads with these codes."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.stored: list[bytes] = []

    async def put(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refusals:
            return web.Response(status=409, text=REFUSAL.format(self.refusals.pop(0)))
        self.stored.append(body)
        return web.Response(headers={"ETag": '"1"'})


@pytest.fixture
async def played() -> AsyncIterator[tuple[PlayedBucket, Objects]]:
    bucket = PlayedBucket()
    app = web.Application()
    app.router.add_put("/mail/{key:.+}", bucket.put)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield bucket, Objects(Access(f"http://127.0.0.1:{port}", "us-east-1", "a", "b"), "mail")
    await runner.cleanup()


@pytest.mark.parametrize("code", ["ExistingObjectIsDirectory", "ConditionalRequestConflict"])
@both
async def test_it_is_sent_once_more(
    played: tuple[PlayedBucket, Objects], put: Put, code: str
) -> None:
    bucket, objects = played
    bucket.refusals = [code]

    await put(objects)

    assert bucket.stored == [b"x"]


@both
async def test_a_store_that_goes_on_refusing_is_unavailable(
    played: tuple[PlayedBucket, Objects], put: Put
) -> None:
    bucket, objects = played
    bucket.refusals = ["ExistingObjectIsDirectory"] * 9

    with pytest.raises(BlobsUnavailable, match="ExistingObjectIsDirectory"):
        await put(objects)

    assert bucket.stored == []
    assert len(bucket.refusals) == 9 - 2
