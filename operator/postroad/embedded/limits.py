"""What a store refuses before anything is written."""

from __future__ import annotations

from postroad.embedded.free_space import FreeSpace
from postroad.embedded.layout import Options
from postroad.errors import InvalidMail, MailTooLarge, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace


class Limits:
    """How large a mail may be, and how much must stay free."""

    def __init__(self, options: Options, free_space: FreeSpace) -> None:
        self._options, self._free_space = options, free_space

    def check(self, envelope: bytes, size: int) -> None:
        """Check a mail by its envelope as it will be written, and the size of what is known of its
        content. Raises: InvalidMail, MailTooLarge, StoreFull."""
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
        """Check that enough stays free when `size` more octets are written. Raises: StoreFull."""
        self._compare(self._free_space.after(size))

    def has_room(self, size: int) -> bool:
        """Whether `check_room` would pass now. Nothing is counted as used."""
        try:
            self._compare(self._free_space.if_stored(size))
        except StoreFull:
            return False
        except StoreFailed:
            pass  # what fails is for the mail itself to meet
        return True

    def _compare(self, room: DiskSpace) -> None:
        options = self._options
        if room.bytes < options.least_free_bytes:
            raise StoreFull(f"less than {options.least_free_bytes} octets would be free")
        if room.inodes is not None and room.inodes < options.least_free_inodes:
            raise StoreFull(f"less than {options.least_free_inodes} inodes are free")


def reason_of(error: BaseException) -> str:
    """Return what metrics call the reason for which a mail was refused."""
    return "full" if isinstance(error, StoreFull) else "other"
