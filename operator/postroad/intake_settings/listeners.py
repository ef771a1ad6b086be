"""The schema of an intake's listeners: their roles, ports and certificates."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from postroad.delivery_settings.patterns import DeliverySection, DomainName, NetworkText
from postroad.domain.values.networks import LOOPBACK, Networks

NetworkTexts = Annotated[tuple[NetworkText, ...], Field(min_length=1, max_length=1000)]


class IntakeSection(DeliverySection):
    """A part of what an administrator decides about mail that comes in."""


class ListenerRole(StrEnum):
    """Purpose of a listener: whose mail it takes, and to which recipients."""

    RELAY = "relay"
    """Of clients in named networks, to any recipient."""

    SUBMISSION = "submission"
    """Of clients that log in, to any recipient. Source: RFC 6409."""

    MX = "mx"
    """Of all clients, to recipients in this intake's own domains."""

    HTTP = "http"
    """Of programs that log in, by requests of HTTP, to any recipient."""

    @property
    def logs_in(self) -> bool:
        """True if its clients log in."""
        return self in (ListenerRole.SUBMISSION, ListenerRole.HTTP)


class CertificateFiles(IntakeSection):
    """A certificate of the intake."""

    cert: Path
    """PEM file of the certificate and its chain; read again when it changes."""

    key: Path | None = None
    """PEM file of its key, not encrypted. Absent: it is in the file of the certificate."""

    names: Annotated[tuple[DomainName, ...], Field(max_length=100)] = ()
    """Names of servers by which a client chooses this certificate (RFC 6066 3); `*.example.org`
    stands for one label. The first certificate is for all other names, too."""


class ListenerTls(IntakeSection):
    """TLS of a listener."""

    mode: Literal["StartTLS", "Implicit"] = "StartTLS"
    """StartTLS: connections begin in clear (RFC 3207). Implicit: they begin with TLS (RFC 8314)."""

    certificates: Annotated[tuple[CertificateFiles, ...], Field(min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _has_names_to_choose_by(self) -> ListenerTls:
        if any(not each.names for each in self.certificates[1:]):
            raise ValueError("give each certificate after the first one the names it is for")
        return self


class Listener(IntakeSection):
    """A port on which the intake takes mail."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Stands in logs and metrics. No two listeners have the same."""

    role: ListenerRole

    host: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The address to listen on; `*`: all of both families. Absent: all, but loopback for a relay
    without `from` and for http without tls."""

    port: Annotated[StrictInt, Field(ge=0, le=65535)]
    """0: any free one."""

    tls: ListenerTls | None = None

    from_: NetworkTexts | None = Field(None, alias="from")
    """Networks whose clients a relay takes mail of. Absent: loopback."""

    proxy_from: Annotated[tuple[NetworkText, ...], Field(max_length=1000)] = ()
    """Networks of proxies, whose connections begin with the client's address (PROXY protocol,
    version 1 or 2). All other clients' connections begin with SMTP."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Listener:
        if self.from_ is not None and self.role is not ListenerRole.RELAY:
            raise ValueError(
                f"`from` is of the role relay; a listener of role {self.role} has none"
            )
        if self.role is ListenerRole.SUBMISSION and self.tls is None:
            raise ValueError("the role submission needs tls: clients log in under TLS alone")
        if self.role is ListenerRole.HTTP:
            self._fits_http()
        return self

    def _fits_http(self) -> None:
        if self.tls is not None and self.tls.mode != "Implicit":
            raise ValueError("write `mode: Implicit` for the role http: HTTPS begins with TLS")
        if self.proxy_from:
            raise ValueError("`proxyFrom` is of SMTP; a listener of role http has none")
        if self.tls is None and self.address != "localhost" and self.address not in LOOPBACK:
            raise ValueError(
                "the role http needs tls, or a loopback address as host: clients log in, and"
                " passwords in clear are for this machine alone"
            )

    @property
    def address(self) -> str:
        """The host to listen on; `*`: all addresses."""
        if self.host is not None:
            return self.host
        is_open = self.from_ if self.role is ListenerRole.RELAY else self.tls
        is_local = self.role in (ListenerRole.RELAY, ListenerRole.HTTP) and is_open is None
        return "127.0.0.1" if is_local else "*"

    @property
    def is_implicit(self) -> bool:
        """True if connections begin with TLS."""
        return self.tls is not None and self.tls.mode == "Implicit"

    @property
    def relays_for(self) -> Networks | None:
        """The networks of a relay's clients; None: loopback."""
        return None if self.from_ is None else Networks.of(self.from_)

    @property
    def proxies(self) -> Networks:
        return Networks.of(self.proxy_from)
