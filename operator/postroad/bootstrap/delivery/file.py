"""A file of delivery with the files that it names, read again while the process runs.

The kubelet swaps the files of a mounted ConfigMap or Secret by a symlink, as an administrator does
who wants both ends of a change at once.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from postroad.bootstrap.delivery.signing import KeyFiles
from postroad.bootstrap.delivery.targets import check_files
from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.hops import Hop
from postroad.errors import InvalidSettings
from postroad.file_stamps import FileStamp, stamp_of
from postroad.logins import LOGIN
from postroad.signing.signatures import SigningPlan
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import DELIVERY_READS, DELIVERY_REFUSED

_log = logger("delivery")

LOOK_INTERVAL = timedelta(seconds=10)
"""Between two looks at the files, which cost a system call each."""

Use = Callable[[DeliveryFileSettings], None]
"""Takes up what a file of delivery has now. Raises: InvalidSettings, where the process cannot; what
it had stays then."""


@dataclass(frozen=True, slots=True)
class DeliveryDocument:
    """Content that a file of delivery has, and the keys that it names."""

    settings: DeliveryFileSettings
    signing: SigningPlan


class DeliveryFile:
    """A file of delivery. `current`: what was read last and could be used. `relay`: in place of the
    file's, if it is given. Raises: InvalidSettings where it, or a file that it names, cannot be
    used at the start. Later the error is logged once for each change of the files, and counted."""

    def __init__(self, file: Path, relay: Hop | None = None) -> None:
        self._file, self._relay = file, relay
        self._keys = KeyFiles()
        self._watched: dict[Path, FileStamp] = {}
        self.current = self._read()
        DELIVERY_REFUSED.set(0)

    async def follow(self, use: Use, asked: asyncio.Event) -> None:
        """Look at the files again and again, until cancelled; at once when `asked` is set."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL.total_seconds()):
                    await asked.wait()
            asked.clear()
            await self.look(use)

    async def look(self, use: Use) -> None:
        """Read the files again where one has changed. They are read in a thread, since a long one
        would block deliveries."""
        try:
            if await asyncio.to_thread(self._is_changed):
                self._take(await asyncio.to_thread(self._read), use)
        except InvalidSettings as error:
            self._refuse(error.explain())
        except Exception as error:  # else no later change would be seen
            _log.exception("unexpected error in the delivery file")
            self._refuse(type(error).__name__)

    def _take(self, found: DeliveryDocument, use: Use) -> None:
        use(found.settings)
        self.current = found
        DELIVERY_REFUSED.set(0)
        DELIVERY_READS.labels("used").inc()
        _log.info("delivery read again", file=str(self._file))

    def _refuse(self, problem: str) -> None:
        DELIVERY_REFUSED.set(1)
        DELIVERY_READS.labels("refused").inc()
        _log.error("delivery not changed, what was read before stays", error=problem)

    def _is_changed(self) -> bool:
        return any(stamp_of(path) != stamp for path, stamp in self._watched.items())

    def _read(self) -> DeliveryDocument:
        """Read all files that changed. Each is watched from before it is read, so that no change
        meanwhile stays unseen. Raises: InvalidSettings."""
        self._watched = {each: stamp_of(each) for each in {*self._watched, self._file}}
        settings = read_delivery(self._file)
        if self._relay is not None:
            settings = settings.model_copy(update={"relay": self._relay})
        folder, hops = self._file.parent, settings.hops()
        keys = {key.place(folder) for each in settings.signing for key in each.keys}
        logins = {each.login.folder for each in hops if each.login and each.login.folder}
        named = {*keys, *(each / name for each in logins for name in LOGIN)}
        stamps = {each: stamp_of(each) for each in named}
        self._watched = {self._file: self._watched[self._file], **stamps}
        for hop in hops:
            check_files(hop)
        return DeliveryDocument(settings, self._keys.plan(settings.signing, folder, stamps))
