"""Types and checks that the models of both specs share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from postroad.delivery_settings.patterns import OBJECT_NAME_PATTERN
from postroad.domain.mail.mail import MAILBOX_PATTERN
from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN, LONGEST_SOCKET
from postroad.domain.values.instants import format_duration

HOST_PATTERN = "^([A-Za-z0-9_][-A-Za-z0-9_.]*|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$"
"""A host name (A-labels), an IPv4 or an IPv6 address."""

NETWORK_PATTERN = "^([0-9]{1,3}([.][0-9]{1,3}){3}|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)(/[0-9]{1,3})?$"
"""The form of a network or an address, of IPv4 or IPv6; `domain.networks` checks the rest."""


def _alias(name: str) -> str:
    return to_camel(name).replace("Url", "URL")


def at_least(shortest: timedelta) -> AfterValidator:
    """Refuse shorter durations."""

    def check(value: timedelta) -> timedelta:
        if value < shortest:
            raise ValueError(f"must be at least {format_duration(shortest)}")
        return value

    return AfterValidator(check)


def holds(condition: Callable[[Any], bool], message: str) -> AfterValidator:
    """Refuse a value for which a condition does not hold. A rule of the CRD has the same
    message."""

    def check(value: Any) -> Any:
        if not condition(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def has_port_in_range(url: str) -> bool:
    """Whether a URL has no port, or one from 1 to 65535."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


Name = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
Host = Annotated[str, Field(min_length=1, max_length=253, pattern=HOST_PATTERN)]
NetworkText = Annotated[str, Field(min_length=2, max_length=49, pattern=NETWORK_PATTERN)]
Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=HOSTNAME_PATTERN)]
MailboxText = Annotated[str, Field(min_length=3, max_length=254, pattern=MAILBOX_PATTERN)]
PortInRange = holds(has_port_in_range, "the port must be between 1 and 65535")
SocketPath = Annotated[
    str, Field(min_length=2, max_length=LONGEST_SOCKET, pattern="^/[A-Za-z0-9_./-]+$")
]
Replicas = Annotated[int, Field(ge=0, le=1000)]
Schedule = Annotated[str, Field(min_length=1, max_length=100)]
Anything = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class Model(BaseModel):
    """A part of a spec: immutable, with the API's names as aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # the API server prunes; a newer CRD may have more fields than this release
        alias_generator=_alias,
        populate_by_name=True,
        use_attribute_docstrings=True,
        ser_json_timedelta="iso8601",
    )
