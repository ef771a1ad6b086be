"""Options of a store, and what it refuses by them before any write: mails that are too large, or
for which too little space is free."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from postroad.domain.delivery.retries import DEFAULT_LANES
from postroad.domain.queues.lifetimes import DEAD_LETTER_LIFETIME
from postroad.embedded.log.layout import NEW, Lane, Layout
from postroad.errors import InvalidMail, MailTooLarge, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace, Files
from postroad.telemetry.logs import logger

MIB = 1024 * 1024
TOLERANCE = timedelta(milliseconds=100)

KEPT_OPEN = 256
"""Idle spool files that stay open, at most."""

MAX_MAIL_LEASE = timedelta(minutes=25)
"""Time that an item may be in flight, as in the distributed engine: recovery reads the log from the
START of the oldest one."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Parameters by which the owner runs a store. The store file keeps `segment_bytes` and
    `segment_envelopes`."""

    segment_bytes: int = 16 * MIB
    """Size at which a segment is full."""

    segment_envelopes: int = 65_536
    """ENVELOPEs in a segment at most; the format allows 65,536."""

    steps: tuple[timedelta, ...] = DEFAULT_LANES
    """The retry steps, a lane each. Empty: lane `new` takes all mail that is not held. The store
    file does not keep them: a lane whose step is gone drains, and gets no more records."""

    checkpoint_every: timedelta = timedelta(seconds=15)
    """Less makes recovery shorter, more saves syncs. Every retry step should be longer, because a
    checkpoint makes a retried mail durable before it is due."""

    sync_wait: timedelta = timedelta(milliseconds=2)
    """Time that a record waits for others to share its sync, while mail is arriving."""

    free_wait: timedelta = timedelta(milliseconds=20)
    """Time that the slot of a finished mail waits for others that are freed with it."""

    least_free_bytes: int = 64 * MIB
    """Below this free space the store refuses new mail, because the log needs some to end mails. On
    a small volume it is a quarter of the volume."""

    least_free_inodes: int = 1000

    kept_open: int = KEPT_OPEN
    """Idle spool files that stay open."""

    pool_files: int = 2048
    """Free spool files kept at most."""

    pool_file_bytes: int = 256 * 1024
    """The pool removes larger files, so that its space is bounded."""

    largest_mail: int | None = None
    """Bytes of content; None: no limit but the disk's."""

    largest_envelope: int = 4 * MIB
    """Bytes of one ENVELOPE; it must fit into a segment."""

    dead_letter_lifetime: timedelta = DEAD_LETTER_LIFETIME
    """From the death of a mail until maintenance discards it."""

    compact_below: float = 0.25
    """Compaction rewrites the oldest segment of a lane when a smaller share of it is live."""

    def lane_for(self, delay: timedelta) -> Lane:
        """Return the lane of a delay: the longest step that is not longer (AMB-9). TOLERANCE covers
        the time that passes between the consumer's call and the write."""
        fitting = [step for step in self.steps if step <= delay + TOLERANCE]
        return int(max(fitting).total_seconds()) if fitting else NEW


log = logger("embedded")

FRESH_SECONDS = 1.0
"""The file system is asked this often, because that costs as much as all else for a small mail
(45 us on ext4); between, the stored bytes are counted."""


SMALL_VOLUME_SHARE = 4
"""A store keeps at most this part of its volume free, so that one on a small volume takes mail."""


class FreeSpace:
    """The free space for the log or for the mails, whichever is less."""

    def __init__(self, files: Files, layout: Layout, elapsed: Callable[[], float]) -> None:
        self._files, self._layout, self._elapsed = files, layout, elapsed
        self._room = DiskSpace(0, None)
        self._asked_at = float("-inf")
        self._used = 0

    def after(self, size: int) -> DiskSpace:
        """Return the free space behind `size` more bytes, which count from now on. Raises:
        StoreFailed."""
        now = self._elapsed()
        if now - self._asked_at >= FRESH_SECONDS:
            self._room, self._asked_at, self._used = self._ask(), now, 0
        self._used += size
        return self._left(self._used)

    def if_stored(self, size: int) -> DiskSpace:
        """Return the free space behind `size` more bytes, without counting them. Raises:
        StoreFailed."""
        self.after(0)
        return self._left(self._used + size)

    def _left(self, used: int) -> DiskSpace:
        room = self._room
        return DiskSpace(room.bytes - used, room.inodes, room.total_bytes)

    def renew(self) -> None:
        """Ask the file system the next time: files were removed."""
        self._asked_at = float("-inf")

    def _ask(self) -> DiskSpace:
        try:
            rooms = [self._files.room(path) for path in (self._layout.mail, self._layout.log)]
        except FileNotFoundError as error:
            raise gone(self._layout) from error
        inodes = [room.inodes for room in rooms if room.inodes is not None]
        return replace(min(rooms, key=lambda room: room.bytes), inodes=min(inodes, default=None))


def gone(layout: Layout) -> StoreFailed:
    """Return the error for a directory that does not hold the open store any more."""
    return StoreFailed(
        f"{layout.root} does not hold the store any more: it was renamed, removed or replaced",
        hint="put it back in its place, or start the process with the directory's new name",
    )


class StoreLimits:
    """Checks the size of mails and the free space; logs once that mail is refused, and that it is
    taken again."""

    def __init__(self, options: StoreOptions, free_space: FreeSpace) -> None:
        self._options, self._free_space = options, free_space
        self._refuses = False

    def renew(self) -> None:
        """As `FreeSpace.renew`."""
        self._free_space.renew()

    def check(self, envelope: bytes, size: int) -> None:
        """Check a mail by its encoded envelope and the known size of its content. Raises:
        InvalidMail, MailTooLarge, StoreFull."""
        if len(envelope) > self._options.largest_envelope:
            raise InvalidMail("the envelope is too large for one record")
        self.check_size(size)
        self.check_room(size)

    def check_size(self, size: int) -> None:
        """Raises: MailTooLarge."""
        limit = self._options.largest_mail
        if limit is not None and size > limit:
            raise MailTooLarge(f"the mail is larger than {limit} octets")

    def check_room(self, size: int) -> None:
        """Check that enough stays free behind `size` more octets. Raises: StoreFull,
        StoreFailed."""
        try:
            self._compare(self._free_space.after(size))
        except (StoreFull, StoreFailed) as error:
            if not self._refuses:
                self._refuses = True
                log.warning("the store takes no mail", error=error.explain())
            raise
        if self._refuses:
            self._refuses = False
            log.warning("the store takes mail again")

    def has_room(self, size: int, *, is_taken: bool = False) -> bool:
        """True if `check_room` would pass; counts `size` as used if it `is_taken`."""
        space = self._free_space
        try:
            self._compare(space.after(size) if is_taken else space.if_stored(size))
        except StoreFull:
            with suppress(StoreFull):  # logged there, where no mail at all finds room
                self.check_room(0)
            return False
        except StoreFailed:
            pass  # the mail itself gets this error
        return True

    def _compare(self, room: DiskSpace) -> None:
        options, kept = self._options, self._options.least_free_bytes
        if room.total_bytes is not None:
            kept = min(kept, room.total_bytes // SMALL_VOLUME_SHARE)
        if room.bytes < kept:
            raise StoreFull(f"less than {kept} octets would be free")
        if room.inodes is not None and room.inodes < options.least_free_inodes:
            raise StoreFull(f"less than {options.least_free_inodes} inodes are free")


def reason_of(error: BaseException) -> str:
    """Return the metric label for the reason of a refused mail."""
    return "full" if isinstance(error, StoreFull) else "other"
