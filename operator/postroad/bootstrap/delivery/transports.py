"""Builds what transmits mail from settings, and the names of this process in SMTP."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from postroad.adapters.disk.attempt_log import FileAttemptLog, LogLimits
from postroad.adapters.machine.clocks import MachineClock
from postroad.adapters.programs.function import HandlerFunction
from postroad.bootstrap.delivery.programs import open_function, open_webhook
from postroad.bootstrap.delivery.targets import DeliveryTarget
from postroad.delivery_settings.hops import Hop
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.ports.delivery import Connector, Signer
from postroad.settings import Settings
from postroad.smtp.client.connections import SmtpConnector

if TYPE_CHECKING:
    from postroad.bootstrap.delivery.file import DeliveryFile


def open_connector(
    settings: Settings, target: DeliveryTarget, signer: Signer | None = None
) -> Connector:
    """Return what opens connections to next hops, or to a program. Needs a running event loop.
    Raises: InvalidSettings."""
    if isinstance(target, WebhookAddress):
        return open_webhook(settings, target)
    if isinstance(target, HandlerFunction):
        return open_function(settings, target)
    return SmtpConnector(
        ehlo_name=ehlo_name_of(settings),
        ca_file=settings.ca_file,
        signer=signer,
    )


def open_delivery(settings: Settings, relay: Hop | None) -> DeliveryFile | None:
    """Return the file of delivery, with the relay of the command line; None where there is none.
    Raises: InvalidSettings."""
    if settings.worker.delivery_file is None:
        return None
    from postroad.bootstrap.delivery.file import DeliveryFile  # nor cryptography for nothing

    return DeliveryFile(settings.worker.delivery_file, relay)


def open_signer(delivery: DeliveryFile | None) -> Signer | None:
    """Return what signs mail by a file of delivery; None where there is none."""
    if delivery is None:
        return None
    from postroad.bootstrap.delivery.signing import FileSigner

    return FileSigner(lambda: delivery.current.signing, MachineClock())


def open_attempt_log(settings: Settings) -> FileAttemptLog | None:
    """Return the attempt log of this process; None where no folder is set. Raises:
    InvalidSettings."""
    section = settings.worker
    if section.attempt_log is None:
        return None
    limits = LogLimits(
        section.attempt_log_lifetime, section.attempt_log_bytes, section.attempt_log_addresses
    )
    return FileAttemptLog(section.attempt_log, limits, MachineClock().now)


def hostname_of(settings: Settings) -> str:
    """Return the name of this process in greetings and trace fields."""
    return settings.hostname or socket.getfqdn()


def ehlo_name_of(settings: Settings) -> str | None:
    """Return the name for EHLO to a next hop. None: the machine's name has no dot (as a pod's), and
    servers refuse such names. Source: RFC 5321 4.1.1.1."""
    name = hostname_of(settings)
    if settings.hostname or ("." in name and not name.lower().endswith(".localdomain")):
        return name
    return None
