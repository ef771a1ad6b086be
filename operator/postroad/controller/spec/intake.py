"""`spec.intake` of a MailQueue: the schema of a file of intake, and its pods and Service.

Rules of the CRD have the same words as the validators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from postroad.controller.spec import parts
from postroad.controller.spec.placement import Pod, Service
from postroad.delivery_settings.patterns import ObjectName
from postroad.intake_settings.intake_file import IntakeSettings
from postroad.intake_settings.listeners import Listener, ListenerRole
from postroad.intake_settings.outbox import OutboxSection

HEALTH = "health"
"""Name of the port for probes and metrics of every pod."""


class ServiceListener(Listener):
    """A port of the intake's Service, on which pods take mail."""

    @model_validator(mode="after")
    def _is_of_a_service(self) -> ServiceListener:
        if self.name == HEALTH:
            raise ValueError("health is the port of probes: choose another name")
        if self.role is ListenerRole.RELAY and self.from_ is None and self.clients is None:
            raise ValueError(
                "`from` is missing: list the networks whose clients may send, or name the"
                " authorities of their certificates in tls.clients"
            )
        if self.role is ListenerRole.HTTP and self.tls is None:
            raise ValueError("the role http needs tls: clients log in, and passwords go in clear")
        return self


class PodOutbox(OutboxSection):
    """A store of each intake pod, on a volume of its own, for mail that the queue does not take
    now."""

    storage_class_name: ObjectName | None = None
    """StorageClass of the volumes. Absent: the default one."""


class Intake(IntakeSettings):
    """The Deployment and the Service `<name>-intake`, which accept mail by SMTP and HTTP; with an
    outbox, a StatefulSet."""

    replicas: parts.Replicas = 1
    """Number of intake pods."""

    listeners: Annotated[tuple[ServiceListener, ...], Field(min_length=1, max_length=100)]
    """Ports on which it takes mail. Another port, or another mode of TLS, replaces the pods; what
    else is decided about mail that comes in, they follow within about two minutes."""

    pod: Pod | None = None
    """Placement of pods and what they run with. What it leaves out, the operator decides;
    `template` changes what comes of both."""

    template: parts.Anything = Field(default={})
    """A partial PodTemplateSpec that is merged into the intake's pods, over `pod`. The container is
    called `intake`."""

    outbox: PodOutbox | None = None
    """A store of each pod, on a volume of its own, for mail that the queue does not take now, as
    servers are away. The pods are those of a StatefulSet then. Absent: such mail is refused with
    451."""

    service: Service = Service()
    """The Service of the intake, with the ports of its listeners."""

    @model_validator(mode="after")
    def _has_each_port_once(self) -> Intake:
        if len(set(self.ports.values())) < len(self.listeners):
            raise ValueError("two listeners have the same port: give each one of its own")
        return self

    @property
    def ports(self) -> dict[str, int]:
        """The ports to listen on, by their names in Kubernetes."""
        return {each.name: each.port for each in self.listeners}

    @property
    def open_relays(self) -> list[str]:
        """The listeners by which every client of the Internet may send."""
        return [each.name for each in self.listeners if each.trusted.hold_the_internet]
