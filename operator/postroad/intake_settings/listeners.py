"""The schema of an intake's listeners: their roles, ports and certificates."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, model_validator

from postroad.delivery_settings.patterns import (
    DeliverySection,
    FilePath,
    NetworkText,
    Port,
    domain_name,
)
from postroad.delivery_settings.secret_references import (
    AuthoritiesReference,
    SecretReference,
    one_place,
)
from postroad.domain.values.networks import LOOPBACK, NO_ADDRESS, Networks, is_loopback

NetworkTexts = Annotated[tuple[NetworkText, ...], Field(min_length=1, max_length=1000)]


def _served_name(text: str) -> str:
    start, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    return f"{start}{domain_name(name)}"


ServedName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_served_name)]


class IntakeSection(DeliverySection):
    """A part of what an administrator decides about mail that comes in."""


class Authorities(IntakeSection):
    """Certificate authorities of the intake's peers."""

    ca_ref: AuthoritiesReference | None = None
    """Object with the authorities, in the namespace of the MailQueue."""

    ca_file: FilePath | None = None
    """PEM file of these authorities, in place of caRef; in a MailQueue, in a volume that
    intake.template mounts. Read again when it changes."""

    _one_place = one_place("ca_ref", "ca_file")


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


class ListenerCertificate(IntakeSection):
    """A certificate of the intake, with its key."""

    cert_ref: SecretReference | None = None
    """Secret with the certificate and its chain in `tls.crt` and the key in `tls.key` (type
    kubernetes.io/tls, as cert-manager writes it). New sessions use a renewed certificate once the
    kubelet has written it into the pod, within about a minute; no pod restarts."""

    cert: FilePath | None = None
    """PEM file of the certificate and its chain, in place of certRef; in a MailQueue, in a volume
    that intake.template mounts. Read again when it changes."""

    key: FilePath | None = None
    """PEM file of its key, not encrypted. Absent: it is in the file of the certificate."""

    names: Annotated[tuple[ServedName, ...], Field(max_length=100)] = ()
    """Names of servers by which a client chooses this certificate (RFC 6066 3); `*.example.org`
    stands for one label. The first certificate is for all other names, too."""

    @model_validator(mode="after")
    def _has_one_place(self) -> ListenerCertificate:
        if (self.cert_ref is None) == (self.cert is None):
            raise ValueError("give either certRef (in a MailQueue) or cert")
        if self.key is not None and self.cert is None:
            raise ValueError("key goes with cert: certRef has the key, too")
        return self


class ClientCertificates(Authorities):
    """Certificates of clients, which these authorities vouch for: their mail is taken to any
    recipient. A client with another certificate cannot connect."""

    names: Annotated[tuple[ServedName, ...], Field(max_length=1000)] = ()
    """Names of hosts, of which the certificate has one (subjectAltName); `*.example.org` stands for
    one label. Absent: any certificate."""

    required: StrictBool = False
    """True if no client connects without a certificate. It goes with mode Implicit: under StartTLS,
    clients may go on in clear."""


class ListenerTls(IntakeSection):
    """TLS of a listener, from version 1.2 on."""

    mode: Literal["StartTLS", "Implicit"] = "StartTLS"
    """StartTLS: connections begin in clear (RFC 3207). Implicit: they begin with TLS (RFC 8314)."""

    certificates: Annotated[tuple[ListenerCertificate, ...], Field(min_length=1, max_length=100)]
    """Certificates, of which a client gets the one for the name that it asks for."""

    clients: ClientCertificates | None = None
    """Certificates that clients are asked for. Absent: none are."""

    @model_validator(mode="after")
    def _requires_what_it_can(self) -> ListenerTls:
        if self.clients is not None and self.clients.required and self.mode != "Implicit":
            raise ValueError("required goes with `mode: Implicit`: clients may go on in clear")
        return self

    @model_validator(mode="after")
    def _has_names_to_choose_by(self) -> ListenerTls:
        if any(not each.names for each in self.certificates[1:]):
            raise ValueError("give each certificate after the first one the names it is for")
        return self


class Listener(IntakeSection):
    """A port on which the intake takes mail."""

    name: Annotated[
        str, Field(max_length=15, pattern=r"^([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$")
    ]
    """Stands in logs and metrics, and names a port in Kubernetes. No two listeners have the
    same."""

    role: ListenerRole
    """Purpose of the listener. relay: mail of clients in named networks, to any recipient.
    submission: of clients that log in under TLS, to any recipient. mx: of every client, to
    recipients in `domains`. http: of programs that log in, by requests of HTTP, to any
    recipient."""

    port: Port
    """Port of the Service, and port that the pods listen on."""

    tls: ListenerTls | None = None
    """TLS with its clients. Absent: none."""

    from_: NetworkTexts | None = Field(None, alias="from")
    """Networks whose clients a relay takes mail of, such as 10.244.0.0/16 or 2001:db8::/32. They
    are compared with the address that a pod sees: that of a node where a load balancer or a node
    port hides the client's, a loopback address for `kubectl port-forward`. Absent: clients with a
    certificate of tls.clients; without that loopback, which in a MailQueue is refused."""

    proxy_from: Annotated[tuple[NetworkText, ...], Field(max_length=1000)] = ()
    """Networks of proxies, whose connections begin with the client's address (PROXY protocol,
    version 1 or 2). All other clients' connections begin with SMTP."""

    xclient_from: Annotated[tuple[NetworkText, ...], Field(max_length=1000)] = ()
    """Networks of proxies that may describe their clients by the command XCLIENT, as nginx and
    Postfix do. It is offered to these alone."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Listener:
        if self.from_ is not None and self.role is not ListenerRole.RELAY:
            raise ValueError("`from` is of the role relay; a listener of another role has none")
        if self.role is ListenerRole.SUBMISSION and self.tls is None:
            raise ValueError("the role submission needs tls: clients log in under TLS alone")
        if self.role is ListenerRole.HTTP:
            self._fits_http()
        return self

    def _fits_http(self) -> None:
        if self.tls is not None and self.tls.mode != "Implicit":
            raise ValueError("write `mode: Implicit` for the role http: HTTPS begins with TLS")
        if self.proxy_from or self.xclient_from:
            raise ValueError(
                "`proxyFrom` is of SMTP; a listener of role http has none, and no xclientFrom"
            )
        if self.clients is not None:
            raise ValueError("tls.clients is of SMTP; clients of role http log in")

    @property
    def address(self) -> str:
        """The host to listen on; `*`: all addresses."""
        return "*"

    @property
    def is_implicit(self) -> bool:
        """True if connections begin with TLS."""
        return self.tls is not None and self.tls.mode == "Implicit"

    @property
    def clients(self) -> ClientCertificates | None:
        """The certificates that clients are asked for."""
        return None if self.tls is None else self.tls.clients

    @property
    def relays_for(self) -> Networks:
        """The networks whose clients may send to any recipient."""
        if self.from_ is None:
            is_local = self.role is ListenerRole.RELAY and self.clients is None
            return LOOPBACK if is_local else NO_ADDRESS
        return Networks.of(self.from_)

    @property
    def trusted(self) -> Networks:
        """The networks whose clients may send to any recipient, or are believed to be, or to have
        logged in as, one that may."""
        relaying, describing = self.relays_for.each, Networks.of(self.xclient_from).each
        if self.role is ListenerRole.SUBMISSION:
            return Networks(describing)
        return Networks(relaying and relaying + self.proxies.each + describing)

    @property
    def proxies(self) -> Networks:
        return Networks.of(self.proxy_from)


class FileListener(Listener):
    """A listener of a file of intake, which may be for its own machine alone."""

    host: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The address to listen on; `*`: all of both families. Absent: all, but loopback for a relay
    without `from` and for http without tls."""

    port: Annotated[StrictInt, Field(ge=0, le=65535)]
    """0: any free one."""

    @model_validator(mode="after")
    def _keeps_passwords_here(self) -> FileListener:
        if self.role is ListenerRole.HTTP and self.tls is None and not is_loopback(self.address):
            raise ValueError(
                "the role http needs tls, or a loopback address as host: clients log in, and"
                " passwords in clear are for this machine alone"
            )
        return self

    @property
    def address(self) -> str:
        """The host to listen on; `*`: all addresses."""
        if self.host is not None:
            return self.host
        is_open = (self.from_ or self.clients) if self.role is ListenerRole.RELAY else self.tls
        is_local = self.role in (ListenerRole.RELAY, ListenerRole.HTTP) and is_open is None
        return "127.0.0.1" if is_local else "*"
