"""Compares the versions of the servers with those that this release was tried with."""

import re
from collections.abc import Mapping

from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, Truth, advice, good, shortened
from postroad.ports.servers import Checked

TRIED: Mapping[str, tuple[str, ...]] = {"rabbitmq": ("3.10", "4.3"), "cassandra": ("5.0",)}
"""Series of versions that the tests ran with: docs/versions.md. Object stores report none."""

MAX_VERSION = 128
"""Characters of a server's version; the CRD allows no more."""

_SERIES = re.compile(r"\d+\.\d+(?!\d)")


def versions_of(checked: Mapping[str, Checked]) -> dict[str, str]:
    """Return the version of each server that reported one, as the status has it."""
    found = {server: each.version for server, each in checked.items() if each.version}
    return {server: shortened(version, MAX_VERSION) for server, version in found.items()}


def tried(checked: Mapping[str, Checked]) -> Finding:
    """Return whether the tests of this release ran with the servers' versions. A fix release within
    a series counts as tried."""
    found = versions_of(checked)
    others = [
        f"{server} {found[server]}: tried with {' and '.join(series)}"
        for server, series in TRIED.items()
        if server in found and _series(found[server]) not in series
    ]
    if others:
        message = f"this release was never tried with {'; '.join(others)}"
        return advice(condition.VERSIONS_TRIED, "NeverTried", message)
    if unknown := [server for server in TRIED if server not in found]:
        message = f"not known of {', '.join(unknown)}"
        return Finding(
            condition.VERSIONS_TRIED, Truth.UNKNOWN, "NotAllKnown", message, advisory=True
        )
    return good(condition.VERSIONS_TRIED, "this release was tried with these versions", "Tried")


def _series(version: str) -> str:
    found = _SERIES.match(version)
    return found[0] if found else ""
