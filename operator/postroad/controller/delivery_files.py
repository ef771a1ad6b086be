"""What decides about delivery in the pods of workers: a file of delivery, as `--delivery` reads it.

It is in a ConfigMap of its own, which pods mount: workers read it again when it changes, so that no
pod is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroad.controller.queue_resource import Queue
from postroad.controller.server_tls import FOLDER
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.files import written
from postroad.delivery_settings.routing import RoutingSettings

FILE = "delivery.yaml"
_NAME = "delivery"
_FOLDER = f"{FOLDER}/{_NAME}"


@dataclass(frozen=True, slots=True)
class DeliveryFiles:
    """The ConfigMap of a queue with the file of delivery, and how workers have it."""

    config_map: str
    settings: DeliverySettings

    @classmethod
    def of(cls, queue: Queue) -> DeliveryFiles | None:
        """Return those of a queue; None where its workers need none."""
        workers = queue.spec.workers
        if workers is None or workers.handler.mx is None:
            return None
        return cls(f"{queue.name.name}-delivery", DeliverySettings(routing=RoutingSettings()))

    def data(self) -> dict[str, str]:
        """Return what the ConfigMap has."""
        return {FILE: written(self.settings)}

    def volumes(self) -> list[dict[str, Any]]:
        """Return the volumes of a pod."""
        return [{"name": _NAME, "configMap": {"name": self.config_map}}]

    def mounts(self) -> list[dict[str, Any]]:
        """Return the mounts of a container."""
        return [{"name": _NAME, "mountPath": _FOLDER, "readOnly": True}]

    def environment(self) -> Mapping[str, str]:
        """Return the setting that names the file, without its prefix."""
        return {"WORKER_DELIVERY_FILE": f"{_FOLDER}/{FILE}"}
