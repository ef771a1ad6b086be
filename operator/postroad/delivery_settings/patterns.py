"""Base of all sections of the schema; syntax of names, patterns and addresses in routing."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from postroad.domain.mail.seven_bits import ascii_address, ascii_domain
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.domain_patterns import server_name
from postroad.domain.values.instants import DURATION_PATTERN, format_duration, parse_duration
from postroad.domain.values.networks import Networks, has_port_in_range, is_secured
from postroad.errors import InvalidInput
from postroad.routing.answers import DNS_PORT, is_address
from postroad.routing.tables import NULL_SENDER
from postroad.settings.documents import parsed


def domain_name(text: str) -> str:
    """Return a domain in A-labels and lower case. Raises: ValueError."""
    try:
        return ascii_domain(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


DomainName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(domain_name)]


class DeliverySection(BaseModel):
    """A part of what an administrator decides about delivery; names as in resources."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # as `controller.spec.parts.Model`; files are read with "forbid"
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )


OBJECT_NAME_PATTERN = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""Names of objects in Kubernetes. Source: RFC 1123 2.1."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]


HOST_PATTERN = r"^([^\x00-/:-@\[-^`{-\x7F][^\x00-,/:-@\[-^`{-\x7F]*|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$"
"""A host name (also in U-labels), an IPv4 or an IPv6 address."""


def _domain_pattern(text: str) -> str:
    if text.startswith("["):
        return text.lower()
    if text == "*":
        return text
    if text.startswith("*."):
        return f"*.{domain_name(text[2:])}"
    if "*" in text:
        raise ValueError("write a domain (example.org), all below it (*.example.org), or *")
    return domain_name(text)


def _server_pattern(text: str) -> str:
    if text.startswith("["):
        raise ValueError("write an address without brackets: 192.0.2.1 or 2001:db8::1")
    return server_name(text) if is_address(text) else _domain_pattern(text)


def _sender_pattern(text: str) -> str:
    if text in ("", NULL_SENDER):
        return NULL_SENDER
    if text.startswith("@"):
        return f"@{_domain_pattern(text[1:])}"
    if "@" not in text or "*" in text:
        raise ValueError("write a mailbox (a@example.org), a domain (@example.org), or <>")
    return ascii_address(text.lower())


def _hop_host(text: str) -> str:
    return text if is_address(text) or text.isascii() else domain_name(text)


def full_name(text: str) -> str:
    """Return the name of a server in A-labels, or its address. Raises: ValueError for a name that
    only search domains make a full one."""
    if is_address(text):
        return text
    name = domain_name(text)
    if "." not in name:
        raise ValueError(
            f"write a full name, such as {name}.mail.svc.cluster.local, or an address: search"
            " domains are not appended"
        )
    return name


def _server_address(text: str) -> str:
    try:
        host, _ = parse_host_port(text, DNS_PORT)
    except InvalidInput as error:
        if not is_address(text):
            raise ValueError(str(error)) from error
        host = text
    if not is_address(host):
        raise ValueError("write the address of a name server: 192.0.2.53 or [2001:db8::53]:53")
    return text


def _network(text: str) -> str:
    try:
        Networks.of((text,))
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


NETWORK_PATTERN = "^([0-9]{1,3}([.][0-9]{1,3}){3}|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)(/[0-9]{1,3})?$"
"""The form of a network or an address, of IPv4 or IPv6, for the API server;
`domain.values.networks` checks the rest."""


def _without_nul(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("write a path without NUL")
    return path


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("write the whole path, from / on")
    return path


def _address(text: str) -> str:
    if not is_address(text):
        raise ValueError("write an address of this machine: 192.0.2.1 or 2001:db8::1")
    return text


_HOST = r"([-A-Za-z0-9_.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
WITH_QUERY = rf"{_HOST}([/?]([!\$&-~]|%[0-9A-Fa-f]{{2}})*)?$"
WITHOUT_QUERY = rf"{_HOST}(/([!\$&->@-~]|%[0-9A-Fa-f]{{2}})*)?$"
"""A URL behind `://`, without a login and a fragment: printable ASCII, so that every program that
reads it sees the same one."""


def _port_in_range(url: str) -> str:
    if not has_port_in_range(url):
        raise ValueError("the port must be between 1 and 65535")
    return url


def _secured(text: str) -> str:
    if not is_secured(text):
        raise ValueError("write https://: mails and events in clear are for loopback alone")
    return text


AddressText = Annotated[str, Field(max_length=45), AfterValidator(_address)]
AbsolutePath = Annotated[
    Path,
    AfterValidator(_absolute),
    WithJsonSchema({"type": "string", "maxLength": 1024, "pattern": "^/"}),
]
DomainPattern = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_domain_pattern)]
ServerPattern = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_server_pattern)]
SenderPattern = Annotated[str, Field(max_length=320), AfterValidator(_sender_pattern)]
ServerName = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(full_name)]
HopHost = Annotated[
    str, Field(min_length=1, max_length=253, pattern=HOST_PATTERN), AfterValidator(_hop_host)
]
NetworkText = Annotated[
    str,
    Field(max_length=49),
    AfterValidator(_network),
    WithJsonSchema({"type": "string", "maxLength": 49, "pattern": NETWORK_PATTERN}),
]
FilePath = Annotated[
    Path,
    AfterValidator(_without_nul),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1024}),
]
NameServerAddress = Annotated[str, Field(max_length=53), AfterValidator(_server_address)]
PortInRange = AfterValidator(_port_in_range)
ServerUrl = Annotated[str, Field(max_length=512, pattern=f"^https?://{WITH_QUERY}"), PortInRange]
WebhookUrl = Annotated[
    str,
    Field(min_length=1, max_length=2048, pattern=f"^[a-z]+://{WITH_QUERY}"),
    PortInRange,
    AfterValidator(_secured),  # which schemes there are
]
TenantName = Annotated[str, Field(min_length=1, max_length=255)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Duration = Annotated[
    timedelta,
    parsed(timedelta, parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema(
        {"type": "string", "minLength": 2, "maxLength": 16, "pattern": DURATION_PATTERN}
    ),
]
