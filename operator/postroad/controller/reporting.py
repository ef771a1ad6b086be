"""Writes a resource's status when it differs, and Events about the difference."""

from __future__ import annotations

from collections.abc import Iterable

from postroad.controller.actions import log_action
from postroad.controller.api import Kind
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.events import Announcement, announcements, event_object
from postroad.controller.status import Status, changed_conditions
from postroad.errors import KubernetesError
from postroad.ports.clock import Clock
from postroad.telemetry import logs

_log = logs.logger("controller")


class Reporter:
    """Writes statuses and Events of resources."""

    def __init__(self, api: ApiServer, clock: Clock) -> None:
        self._api = api
        self._clock = clock

    async def write(self, kind: Kind, found: Object, after: Status) -> Object:
        """Write the status if it differs, to the version that was read; post its Events; return the
        resource as it is then. Raises: KubernetesConflict, KubernetesError."""
        before = found.get("status") or {}
        if after == before:
            return found
        written = await self._api.replace_status(kind, {**found, "status": after})
        if written is None:
            return found
        for condition, was, now in changed_conditions(before, after):
            log_action("changed a condition", condition=condition, was=was, now=now)
        kept = written.get("status") or {}
        if kept != after:
            lost = sorted(field for field in after if kept.get(field) != after[field])
            _log.warning("the CRD dropped a part of the status", kind=kind.name, fields=lost)
        await self.announce(written, announcements(before, after))
        return written

    async def announce(self, about: Object, found: Iterable[Announcement]) -> None:
        """Post Events; log those that the API server refuses, as it does in a namespace that is
        being deleted."""
        for each in found:
            try:
                await self._api.post_event(event_object(about, each, self._clock.now()))
            except KubernetesError as error:
                _log.info("the API server refused an Event", reason=each.reason, error=str(error))
