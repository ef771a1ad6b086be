"""Writes a resource's status when it differs, Events about the difference, and the finalizer."""

from __future__ import annotations

from collections.abc import Iterable

from postroad.controller.api import FINALIZER, Kind
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.events import Announcement, announcements, event_object
from postroad.controller.status import Status
from postroad.errors import KubernetesError
from postroad.ports.clock import Clock
from postroad.telemetry import logs

_log = logs.logger("controller")


class Reporter:
    """Writes statuses, Events and finalizers of resources."""

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

    async def add_finalizer(self, kind: Kind, found: Object) -> Object:
        """Add the operator's finalizer where it is missing; return the resource with it."""
        finalizers = found["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            return found
        return await self._set_finalizers(kind, found, [*finalizers, FINALIZER]) or found

    async def remove_finalizer(self, kind: Kind, found: Object) -> None:
        """Remove the operator's finalizer, so that the API server deletes the resource.
        Idempotent."""
        finalizers = found["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            kept = [each for each in finalizers if each != FINALIZER]
            await self._set_finalizers(kind, found, kept)

    async def _set_finalizers(
        self, kind: Kind, found: Object, finalizers: list[str]
    ) -> Object | None:
        metadata = found["metadata"]
        change = {
            "metadata": {
                "finalizers": finalizers,
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        return await self._api.patch(kind, metadata["namespace"], metadata["name"], change)
