"""Keeps policies in a folder, a file for each domain, so that they survive a restart.

Without that, each restart would be a moment at which an attacker on the way can hide that there is
a policy. Files are replaced whole; one that cannot be read counts as absent. Processes may share a
folder: each has read it when it started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from postroad.domain.values.instants import instant, microseconds
from postroad.errors import InvalidSettings
from postroad.routing.sts import KeptPolicy, StsMode, StsPolicy
from postroad.telemetry.logs import logger

_log = logger("mta_sts")

SUFFIX = ".sts.json"

MOST_FILES = 10_000
"""Domains whose policies are kept on disk."""


class PolicyFolder:
    """A folder of policies, which is created where it is missing. Raises: InvalidSettings where it
    cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / f".{uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InvalidSettings(
                f"the folder of MTA-STS policies {folder} cannot be used: {error.strerror}",
                hint="name a folder that this process may write to",
            ) from error

    def read(self, now: datetime) -> dict[str, KeptPolicy]:
        """Return the policies by domain, and delete those that are over. Blocks."""
        found: dict[str, KeptPolicy] = {}
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                domain, kept = _read(json.loads(path.read_text()))
                if path.name != _name_of(domain) or kept.is_over(now):
                    path.unlink(missing_ok=True)
                elif len(found) < MOST_FILES:
                    found[domain] = kept
            except (OSError, ArithmeticError, ValueError, TypeError, KeyError) as error:
                _log.warning("policy not read", path=str(path), error=type(error).__name__)
        return found

    def write(self, domain: str, kept: KeptPolicy) -> None:
        """Write a policy; it is there whole or not at all after a crash. Blocks; an error is
        logged, because mail does not depend on it."""
        path = self._folder / _name_of(domain)
        part = self._folder / f".{uuid4().hex}"
        try:
            with part.open("w") as file:
                file.write(json.dumps(_written(domain, kept)))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            _log.warning("policy not written", path=str(path), error=str(error.strerror))

    def delete(self, domains: Iterable[str]) -> None:
        """Delete the policies of domains: a stranger's names could fill the disk. Blocks; an error
        is logged."""
        for domain in domains:
            path = self._folder / _name_of(domain)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("policy not deleted", path=str(path), error=str(error.strerror))


def _name_of(domain: str) -> str:
    """The hash, because a domain may be longer than the name of a file."""
    return sha256(domain.encode()).hexdigest()[:40] + SUFFIX


def _written(domain: str, kept: KeptPolicy) -> dict[str, Any]:
    return {
        "domain": domain,
        "id": kept.id,
        "fetched_us": microseconds(kept.fetched_at),
        "mode": kept.policy.mode.value,
        "mx": list(kept.policy.exchangers),
        "max_age_s": int(kept.policy.max_age.total_seconds()),
    }


def _read(stored: dict[str, Any]) -> tuple[str, KeptPolicy]:
    policy = StsPolicy(
        StsMode(stored["mode"]),
        tuple(map(str, stored["mx"])),
        timedelta(seconds=int(stored["max_age_s"])),
    )
    return str(stored["domain"]), KeptPolicy(
        str(stored["id"]), policy, instant(int(stored["fetched_us"]))
    )
