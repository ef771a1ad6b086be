"""What a watch of the MailQueues shows: since when each is ready, and which stopped being so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from bench.operator_setup import is_ready, ready_condition
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.ports.kubernetes import Kind, Object

AGAIN_SECONDS = 0.5


class ReadyWatch:
    """The resources of one kind in a namespace. Instants are those of `time.monotonic`."""

    def __init__(self, api: ApiServer, namespace: str, kind: Kind = MAIL_QUEUE) -> None:
        self._api = api
        self._path = f"{kind.prefix}/namespaces/{namespace}/{kind.plural}?watch=true"
        self._seen: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self.ready_at: dict[str, float] = {}
        """When each was first seen ready."""
        self.gone_at: dict[str, float] = {}
        self.losses: list[str] = []
        """Each time that a resource which had been ready was not: its name, and why."""

    async def run(self) -> None:
        """Watch until cancelled. A watch that ends begins anew, with what is there."""
        async with self._api.open_session() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await self._watch(session)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        url = f"{self._api.access.address}{self._path}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.get(url, timeout=timeout) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not self._learn(json.loads(line)):
                        return

    def _learn(self, event: dict[str, Any]) -> bool:
        """Take one event; return whether the watch goes on."""
        if event["type"] == "ERROR":
            return False
        found, now = event["object"], time.monotonic()
        name = found["metadata"]["name"]
        if event["type"] == "DELETED":
            self._seen.pop(name, None)
            self.ready_at.pop(name, None)
            self.gone_at[name] = now
        else:
            self._note(name, found, now)
        self._changed.set()
        return True

    def _note(self, name: str, found: Object, now: float) -> None:
        condition = ready_condition(found)
        was = ready_condition(self._seen.get(name, {})).get("status")
        self._seen[name] = found
        if is_ready(found):
            self.ready_at.setdefault(name, now)
        elif was == "True" and condition.get("status") != "True":
            self.losses.append(f"{name}: {condition}")

    async def until_ready(self, names: Collection[str], seconds: float) -> float:
        """Wait until all of these are ready; return when the last of them was. Raises:
        AssertionError with conditions of those that are not."""
        await self._until(lambda: all(each in self.ready_at for each in names), seconds)
        left = [each for each in names if each not in self.ready_at]
        shown = {each: ready_condition(self._seen.get(each, {})) for each in left[:5]}
        assert not left, f"{len(left)} of {len(names)} are not ready after {seconds:.0f} s: {shown}"
        return max(self.ready_at[each] for each in names)

    async def until_gone(self, name: str, seconds: float) -> float:
        """Wait until one is gone; return when it was. Raises: AssertionError with its status."""
        await self._until(lambda: name in self.gone_at, seconds)
        assert name in self.gone_at, f"{name} is still there: {self._seen[name].get('status')}"
        return self.gone_at[name]

    async def _until(self, claim: Any, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not claim():
                    self._changed.clear()
                    await self._changed.wait()


@asynccontextmanager
async def watching(
    api: ApiServer, namespace: str, kind: Kind = MAIL_QUEUE
) -> AsyncIterator[ReadyWatch]:
    """Yield a watch that runs."""
    watch = ReadyWatch(api, namespace, kind)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
