"""What signs mails on their way out."""

from __future__ import annotations

from typing import Protocol

from postroad.domain.mail.mail import Envelope


class Signing(Protocol):
    """One mail that is being signed."""

    def feed(self, octets: bytes) -> None:
        """Take the next octets of the mail as they are sent, in chunks of any size: with CRLF at
        the end of each line, without the dots that transparency doubles."""
        ...

    def end(self) -> bytes:
        """Return the fields that go before the mail, each ended by CRLF; empty where it cannot be
        signed. Takes up to a millisecond for each signature."""
        ...


class Signer(Protocol):
    """Signs mails with the keys that an administrator chose."""

    def begin(self, header: bytes, envelope: Envelope) -> Signing | None:
        """Begin to sign a mail with this header, in any form; None where no key signs it. Never
        raises."""
        ...
