"""The header of a mail from a client that has logged in: who its author is, and what it lacks.

The header is held back until it has arrived whole, up to MAX_HEADER octets.
Source: RFC 6409 6, 8 (what a submission server checks and completes); RFC 5322 3.6."""

from datetime import datetime
from email.utils import format_datetime

from postroad.domain.mail.address_lists import HeaderField, addresses_in, fields_of
from postroad.domain.mail.mail import MAX_ADDRESS
from postroad.domain.mail.shapes import MAX_HEADER
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput
from postroad.intake.reply_texts import LARGE_HEADER, MALFORMED_HEADER
from postroad.routing.tables import SenderPatterns

WRONG_AUTHOR = Reply(550, ("5.7.1 the user may not send with this address in From",))

_END = b"\r\n\r\n"
_DROPPED = frozenset(("bcc", "resent-bcc", "return-path"))
"""Bcc names recipients whom the others must not see; Return-Path is of the last server."""


class SubmittedHeader:
    """Takes the content of a mail in chunks, and returns what goes on. `senders`: addresses that
    may stand in From and Sender; None: any. With `message_id`, Date and Message-ID are added where
    they lack, and Bcc and Return-Path removed."""

    def __init__(
        self, senders: SenderPatterns | None, message_id: str | None, moment: datetime
    ) -> None:
        self._senders, self._message_id, self._moment = senders, message_id, moment
        self._header: bytearray | None = bytearray()
        self.refusal: Reply | None = None
        """Reply that refuses the mail, once the header has been read."""

    def feed(self, content: bytes, *, is_end: bool) -> bytes:
        """Return the octets that go on: none while the header has not arrived whole."""
        header = self._header
        if header is None:
            return content
        searched = max(0, len(header) - len(_END) + 1)
        header += content
        end = 0 if header.startswith(b"\r\n") else header.find(_END, searched)
        if end < 0 and len(header) > MAX_HEADER:
            self.refusal, self._header = LARGE_HEADER, None
            return b""
        if end < 0 and not is_end:
            return b""
        self._header = None
        end = len(header) if end < 0 else end + (2 if end else 0)
        rest = bytes(header[end:]) or b"\r\n"  # a mail of a header alone
        return self._checked(bytes(header[:end])) + rest

    def _checked(self, header: bytes) -> bytes:
        try:
            fields = fields_of(header)
        except InvalidInput:
            self.refusal = MALFORMED_HEADER
            return header
        if self._senders is not None and not self._is_allowed(fields, self._senders):
            self.refusal = WRONG_AUTHOR
        return header if self._message_id is None else self._completed(fields)

    def _is_allowed(self, fields: list[HeaderField], senders: SenderPatterns) -> bool:
        authors = [each.value for each in fields if each.name == "from"]
        others = [each.value for each in fields if each.name == "sender"]
        if len(authors) != 1:  # readers differ about which of several they show
            return False
        try:
            addresses = [address for text in authors + others for address in addresses_in(text)]
        except InvalidInput:
            return False
        # The length first: a domain of many labels takes as many comparisons.
        return bool(addresses) and all(
            len(each) <= MAX_ADDRESS and senders.match(each) is not None for each in addresses
        )

    def _completed(self, fields: list[HeaderField]) -> bytes:
        names = {each.name for each in fields}
        kept = [each.octets.removesuffix(b"\r\n") for each in fields if each.name not in _DROPPED]
        if "date" not in names:
            kept.append(b"Date: " + format_datetime(self._moment.replace(microsecond=0)).encode())
        if "message-id" not in names:
            kept.append(f"Message-ID: <{self._message_id}>".encode())
        return b"".join(each + b"\r\n" for each in kept)
