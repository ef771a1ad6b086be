"""Signed reverse-paths, by the secrets of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from postroad.domain.delivery.webhooks import read_secrets
from postroad.domain.mail.return_paths import ReturnPaths, plain_path
from postroad.errors import InvalidInput, InvalidSettings
from postroad.ports.clock import Clock
from postroad.smtp.client.opening import PathOf


def read_return_paths(file: Path) -> ReturnPaths:
    """Read the secrets of reverse-paths. Raises: InvalidSettings, which quotes nothing of them."""
    try:
        return ReturnPaths(read_secrets(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        name = type(error).__name__
        raise InvalidSettings(f"the verpSecret {file} cannot be read: {name}") from None
    except InvalidInput as error:
        raise InvalidSettings(f"the verpSecret {file}: {error}") from error


def path_of(paths: Callable[[], ReturnPaths | None], clock: Clock) -> PathOf:
    """Return what makes the reverse-paths of a worker, whose secrets may change meanwhile; without
    any it names recipients and signs nothing."""

    def made(sender: str, recipient: str, tenant: str | None) -> str | None:
        signed = paths()
        if signed is None:
            return plain_path(sender, recipient, tenant)
        return signed.path(sender, recipient, tenant, clock.now().date())

    return made
