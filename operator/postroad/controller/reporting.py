"""Writes what was found: the status, only when it differs, then the Events about the difference."""

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
        """Write the status to the very version that was read, announce what changed, and return
        the resource as it is then. Writes nothing when nothing differs.
        Raises: KubernetesConflict, KubernetesError."""
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

    async def announce(self, about: Object, said: Iterable[Announcement]) -> None:
        """Create Events. Best effort: a namespace that goes away takes none."""
        for each in said:
            try:
                await self._api.post_event(event_object(about, each, self._clock.now()))
            except KubernetesError as error:
                _log.info("an Event was not taken", reason=each.reason, error=str(error))

    async def hold(self, kind: Kind, found: Object) -> Object:
        """Return the resource with our finalizer, added where it is missing."""
        finalizers = found["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            return found
        return await self._set_finalizers(kind, found, [*finalizers, FINALIZER]) or found

    async def let_go(self, kind: Kind, found: Object) -> None:
        """Take our finalizer off, so that the API server removes the resource. Idempotent."""
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
