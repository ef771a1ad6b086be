"""Writes a resource's status when it differs, and Events about the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.actions import log_action
from postroad.controller.api import EVENT
from postroad.controller.events import Announcement, announcements, event_object
from postroad.controller.status import Status, changed_conditions
from postroad.errors import KubernetesConflict, KubernetesError, KubernetesUnavailable
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object
from postroad.telemetry import logs

_log = logs.logger("controller")


SHORTENED_AGAIN = timedelta(hours=1)
"""After so long a status that was shortened is written again, because the CRD may be newer."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """What the API server dropped of a status, whose CRD is older than the operator: fields, with
    what was written and what was kept (None: nothing)."""

    fields: Mapping[str, tuple[Any, Any]]
    at: timedelta

    def expected(self, after: Status) -> Status:
        """Return what the API server would keep of a status."""
        result = dict(after)
        for field, (written, kept) in self.fields.items():
            if kept is None:
                result.pop(field, None)
            elif result.get(field) == written:
                result[field] = kept
        return result


class Reporter:
    """Writes statuses and Events of resources."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._shortened: dict[str, Shortened] = {}

    def forget(self, uid: str) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._shortened.pop(uid, None)

    async def write(self, kind: Kind, found: Object, after: Status) -> Object:
        """Write the status if it differs, to the version that was read; post its Events; return the
        resource as it is then. Raises: KubernetesConflict, KubernetesError."""
        before, uid = found.get("status") or {}, found["metadata"]["uid"]
        now = self._clock.elapsed()
        shortened = self._shortened.get(uid)
        expected = shortened.expected(after) if shortened else after
        if after == before or (
            shortened and expected == before and now - shortened.at < SHORTENED_AGAIN
        ):
            return found
        written = await self._api.replace_status(kind, {**found, "status": after})
        if written is None:
            return found
        for condition, was, is_now in changed_conditions(before, after):
            log_action("changed a condition", condition=condition, was=was, now=is_now)
        kept = written.get("status") or {}
        if kept != after:
            lost = {
                field: (value, kept.get(field))
                for field, value in after.items()
                if kept.get(field) != value
            }
            self._shortened[uid] = Shortened(lost, now)
            if kept != expected:
                _log.warning("the CRD dropped a part of the status", kind=kind.name, fields=[*lost])
        await self.announce(written, announcements(before, after))
        return written

    async def announce(self, about: Object, found: Iterable[Announcement]) -> None:
        """Post Events; log those that the API server refuses, as it does in a namespace that is
        being deleted."""
        for each in found:
            try:
                await self._api.create(EVENT, event_object(about, each, self._clock.now()))
            except KubernetesError as error:
                _log.info("the API server refused an Event", reason=each.reason, error=str(error))

    async def require_announced(self, about: Object, found: Iterable[Announcement]) -> None:
        """Post Events whose names are fixed; one that is there already was posted before. Raises:
        KubernetesUnavailable, after which the call is repeated."""
        for each in found:
            try:
                await self._api.create(EVENT, event_object(about, each, self._clock.now()))
            except KubernetesConflict:
                continue
            except KubernetesUnavailable:
                raise
            except KubernetesError as error:
                _log.info("the API server refused an Event", reason=each.reason, error=str(error))
