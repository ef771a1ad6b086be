"""The part of the spec of a MailQueue that names what workers do with a mail."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from postroad.controller.spec.parts import (
    Host,
    Model,
    PortInRange,
    SocketPath,
    holds,
)
from postroad.controller.spec.tls import AuthoritiesReference
from postroad.delivery_settings.patterns import Duration, Port
from postroad.delivery_settings.secret_references import SecretReference
from postroad.domain.mail.envelope_documents import MAX_HANDED, MAX_HANDING
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.settings.programs import HandedBytes

NEVER_IN_CLEAR = tuple(each.value for each in TlsMode if each.never_in_clear)
SECOND = timedelta(seconds=1)

HandingTime = Annotated[
    Duration,
    holds(lambda each: SECOND <= each <= MAX_HANDING, "timeout must be from 1s to 10m"),
]
WebhookText = Annotated[
    str, Field(max_length=512, pattern=r"^https?://[^@\s#/?]+[^@\s#]*$"), PortInRange
]


class RelayLogin(Model):
    """The login at the next hop (AUTH)."""

    secret_ref: SecretReference
    """Secret with `username` and `password`, in the same namespace. Connections that open later use
    a renewed one once the kubelet has written it into the pod, within about a minute; no pod
    restarts."""

    mechanism: Mechanism | None = None
    """SASL mechanism. Absent: SCRAM-SHA-256, PLAIN or LOGIN, the first that the next hop offers.
    XOAUTH2: the password is an access token."""

    unverified: bool = False
    """Log in also in clear, and where the next hop's certificate is not verified."""


class Relay(Model):
    """Hands every mail to one SMTP or LMTP server."""

    host: Host | None = None
    """Host name or address of the next hop. A host without a dot is a Service in the MailQueue's
    namespace."""

    socket: SocketPath | None = None
    """Path of the Unix socket of an LMTP server, in place of a host: one that runs in the workers'
    pods as a further container, with a volume that both mount (workers.template)."""

    protocol: Literal["smtp", "lmtp"] = "smtp"
    """Protocol that the host takes: smtp, or lmtp (RFC 2033) of a server that delivers. A socket
    takes lmtp."""

    port: Port | None = None
    """Port of the next hop. Absent: 25, or 465 with implicit TLS."""

    tls: Literal["none", "opportunistic", "encrypted", "required", "implicit"] = "opportunistic"
    """none: never encrypt. opportunistic: encrypt when the next hop offers STARTTLS, verify
    nothing, and transmit in clear where TLS fails. encrypted: transmit only over TLS, verify
    nothing. required: transmit only over TLS with a certificate that verifies, by the authorities
    of caRef. implicit: the same, with TLS from the first octet on (RFC 8314)."""

    ca_ref: AuthoritiesReference | None = None
    """The authorities that vouch for the next hop with `tls: required` or `implicit`, in the same
    namespace. Absent: the system's."""

    login: RelayLogin | None = None
    """The login at the next hop (AUTH). It goes with tls required or implicit. Absent: none."""

    @model_validator(mode="after")
    def _is_one_server(self) -> Relay:
        if (self.host is None) == (self.socket is None):
            raise ValueError("give either host or socket, the path of a Unix socket")
        if self.socket and (self.port or self.ca_ref or self.login or self.tls in NEVER_IN_CLEAR):
            raise ValueError("a Unix socket has no port, no TLS and no login: leave them out")
        return self

    @model_validator(mode="after")
    def _fit_together(self) -> Relay:
        if self.login and not (self.login.unverified or self.tls in ("required", "implicit")):
            raise ValueError(
                "login goes with tls required or implicit: else it could be read on its way"
            )
        if self.tls == "implicit" and self.port == 25:
            raise ValueError("port 25 has no implicit TLS: name a port that has, such as 465")
        if self.ca_ref and self.tls not in ("required", "implicit"):
            raise ValueError("caRef goes with tls required or implicit: others verify nothing")
        return self

    @property
    def next_hop(self) -> NextHop:
        """The next hop, with its port."""
        if self.host is None:
            assert self.socket is not None
            return NextHop.at_socket(Path(self.socket))
        mode = TlsMode(self.tls)
        return NextHop(self.host, self.port or mode.default_port, mode, Protocol(self.protocol))


class WebhookSpec(Model):
    """Posts every mail to a webhook: multipart/form-data with the parts `envelope` and `message`,
    signed as Standard Webhooks has it."""

    url: WebhookText
    """URL that gets the requests, without a login. A host without a dot is a Service in the
    MailQueue's namespace. With https, the certificate is verified."""

    secret_ref: SecretReference
    """Secret with `secret`, in the same namespace: 1 to 4 secrets, one a line, that sign each
    request. A renewed one is used once the kubelet has written it into the pod, within about a
    minute; no pod restarts."""

    ca_ref: AuthoritiesReference | None = None
    """The authorities that vouch for the webhook, in the same namespace. Absent: the system's."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class FunctionSpec(Model):
    """Calls a function in Python for every mail, in the worker's own process."""

    name: Annotated[
        str,
        Field(
            max_length=253,
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
            r":[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$",
        ),
    ]
    """module:function, which the image of the queue has (spec.image)."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class ByRoutes(Model):
    """Delivery to the servers that the MX records of each recipient's domain name."""


class Handler(Model):
    """Handler of mails: one of these."""

    relay: Relay | None = None
    """Hand every mail to one SMTP or LMTP server."""

    mx: ByRoutes | None = None
    """Deliver to the servers that the MX records of each recipient's domain name, or as the rules
    of spec.delivery.routing have it. Set `hostname`, since many servers refuse a client without a
    name. Port 25 must be open towards the Internet."""

    webhook: WebhookSpec | None = None
    """Post every mail to a webhook."""

    function: FunctionSpec | None = None
    """Call a function in Python for every mail."""

    @model_validator(mode="after")
    def _is_one(self) -> Handler:
        fields = type(self).model_fields
        if sum(getattr(self, name) is not None for name in fields) != 1:
            raise ValueError(f"name one handler: {' or '.join(fields)}")
        return self
