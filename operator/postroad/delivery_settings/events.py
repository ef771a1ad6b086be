"""Streams of events to programs outside: webhooks, files, exchanges of RabbitMQ."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field, model_validator

from postroad.delivery_settings.patterns import (
    AbsolutePath,
    DeliverySection,
    DomainName,
    TenantName,
    WebhookUrl,
)
from postroad.delivery_settings.secret_references import RequestSecret
from postroad.domain.delivery.events import EventAddresses, EventKind, EventRule
from postroad.domain.values.text import BY_API_NAME


class EventAmqp(DeliverySection):
    """An exchange of the RabbitMQ that carries the queue."""

    exchange: Annotated[str, Field(max_length=63, pattern=r"^postroad\.events(-[-a-z0-9]+)?$")]
    """Its name: postroad.events, or with a part behind it (postroad.events-crm). An administrator
    declares it, and binds queues; the routing key is NAMESPACE.NAME.TYPE."""


class EventStream(DeliverySection):
    """One stream. It has one of webhook, file and amqp."""

    name: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    ]
    """Stands in metrics, and names where events wait. No two streams have the same."""

    webhook: WebhookUrl | None = None
    """URL that gets a signed POST for each event, as Standard Webhooks has it. http is for loopback
    alone."""

    secret: RequestSecret | None = None
    """Secrets that sign the requests of a webhook."""

    file: AbsolutePath | None = None
    """File to which a line of JSON is appended for each event, by one worker at a time. At 64 MiB
    it is renamed, with .1 behind its name; who moves it away gets a new one."""

    amqp: EventAmqp | None = None
    """Exchange that gets each event, of the RabbitMQ that carries the queue."""

    kinds: (
        Annotated[tuple[Annotated[EventKind, BY_API_NAME], ...], Field(min_length=1, max_length=16)]
        | None
    ) = None
    """Types of the events that the stream gets: Accepted, Delivered, Deferred, Failed, Suppressed,
    Bounced, Complained, Held, Removed. Absent: all."""

    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Events about mail of these tenants. Absent: of all."""

    domains: Annotated[tuple[DomainName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Events about recipients in these domains. Absent: in all."""

    addresses: Annotated[EventAddresses, BY_API_NAME] = EventAddresses.NONE
    """Form of sender and recipient. Plain: themselves, with replies as they are. Hashed: their
    SHA-256, as the suppression list has it; who can guess the address can recognise it. None:
    domains alone."""

    @model_validator(mode="after")
    def _has_one_sink(self) -> EventStream:
        if [self.webhook, self.file, self.amqp].count(None) != 2:
            raise ValueError("give one of webhook, file and amqp")
        if (self.webhook is None) != (self.secret is None):
            raise ValueError("a webhook has a secret, and nothing else has one")
        return self

    def rule(self) -> EventRule:
        """Return the value that workers and intakes use."""
        return EventRule(
            self.name,
            None if self.kinds is None else frozenset(self.kinds),
            None if self.tenants is None else frozenset(self.tenants),
            None if self.domains is None else frozenset(self.domains),
            self.addresses,
        )


def with_files_apart(streams: tuple[EventStream, ...]) -> tuple[EventStream, ...]:
    """Refuse streams that would write, or rename, each other's files."""
    taken: dict[str, str] = {}
    for each in streams:
        if each.file is None:
            continue
        path = os.path.normpath(each.file)
        for own in (path, f"{path}.1"):
            if (other := taken.setdefault(own, each.name)) != each.name:
                raise ValueError(
                    f"the streams {other} and {each.name} would both write {own}: give one another"
                    " path (a full file is renamed, with .1 behind its name)"
                )
    return streams
