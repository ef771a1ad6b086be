"""The shared state of a queue in a directory: a file for each entry, for all processes that may
write there.

Nothing is synced: an entry survives the kill of its process, and a power cut may take the last
ones."""

import asyncio
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from postroad.adapters.disk.files import PRIVATE_DIRECTORY, PRIVATE_FILE, Translated
from postroad.ports.clock import Clock
from postroad.ports.delivery import Topic

DRAFT = ".new"
"""The end of the name of a file that is being written."""


class DirectorySharedState:
    """The shared state of one queue (see the port), in a folder that the first entry makes."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock

    async def publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        await asyncio.to_thread(self._publish, topic, name, text, lifetime)

    async def take_down(self, topic: Topic, name: str) -> None:
        await asyncio.to_thread(self._take_down, topic, name)

    async def published(self, topic: Topic) -> Mapping[str, str]:
        return await asyncio.to_thread(self._published, topic)

    async def published_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        return await asyncio.to_thread(lambda: {each: self._published(each) for each in topics})

    def _publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        until = (self._clock.now() + lifetime).timestamp()
        file = self._file(topic, name)
        with Translated("write", file):
            self._folder.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            file.parent.mkdir(PRIVATE_DIRECTORY, exist_ok=True)  # of parents, mkdir sets no mode
            draft = file.with_name(f"{uuid4().hex}{DRAFT}")
            draft.touch(PRIVATE_FILE)
            try:
                draft.write_text(json.dumps({"name": name, "text": text, "until": until}))
                draft.replace(file)
            except BaseException:  # of a full disk, say: it is tried again every few seconds
                draft.unlink(missing_ok=True)
                raise

    def _take_down(self, topic: Topic, name: str) -> None:
        file = self._file(topic, name)
        with Translated("remove", file):
            file.unlink(missing_ok=True)

    def _published(self, topic: Topic) -> Mapping[str, str]:
        found, now = {}, self._clock.now().timestamp()
        folder = self._folder / topic.value
        with Translated("read", folder):
            files = list(folder.iterdir()) if folder.is_dir() else []
        for file in files:
            with suppress(OSError, ValueError, KeyError, TypeError):  # taken down, or half of one
                entry = json.loads(file.read_text())
                if entry["until"] > now and not file.name.endswith(DRAFT):
                    found[str(entry["name"])] = str(entry["text"])
                elif entry["until"] <= now:
                    file.unlink()
        return found

    def _file(self, topic: Topic, name: str) -> Path:
        return self._folder / topic.value / f"{sha256(name.encode()).hexdigest()[:40]}.json"
