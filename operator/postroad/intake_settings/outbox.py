"""The schema of an outbox: a store of the intake itself, for mail that the queue does not take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from postroad.delivery_settings.patterns import AbsolutePath
from postroad.intake_settings.listeners import IntakeSection
from postroad.intake_settings.senders import StoreBytes


class OutboxUse(StrEnum):
    """Mails that go into the outbox."""

    UNAVAILABLE = "Unavailable"
    """Those that the queue does not take, since a server is away or answers slowly."""

    FIRST = "First"
    """All, so that a client waits for one disk alone."""


class OutboxSection(IntakeSection):
    """A store on the intake's own disk, from which mail goes on to the queue by itself."""

    when: OutboxUse = OutboxUse.UNAVAILABLE
    """Unavailable: what the queue does not take now; First: all mail."""

    size: StoreBytes
    """Octets of mail that it holds. Beyond it, mail is answered as without an outbox. 0: none
    goes in, and what waits goes on."""


class FileOutbox(OutboxSection):
    """The outbox of a file of intake."""

    directory: AbsolutePath = Path("/var/lib/postroad/outbox")
    """Directory of the store, which is made if it is missing; of this process alone."""
