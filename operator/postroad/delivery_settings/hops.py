"""The schema of next hops: smart hosts, servers of MX records, and connections to them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator
from pydantic.alias_generators import to_camel

from postroad.delivery_settings import patterns
from postroad.delivery_settings.patterns import DeliverySection
from postroad.delivery_settings.secret_references import (
    AuthoritiesReference,
    SecretReference,
    one_place,
)
from postroad.domain.smtp import next_hops
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.domain.values.text import BY_API_NAME
from postroad.errors import InvalidInput
from postroad.routing.answers import is_address
from postroad.routing.securing import MxSecurity, PublishedSecurity
from postroad.routing.tables import SmartHost
from postroad.settings.documents import repeated


class HostLookUp(StrEnum):
    """Way that leads from the host of a next hop to its servers."""

    ADDRESSES = "addresses"
    MX = "mx"


class HostLogin(DeliverySection):
    """The login at a smart host."""

    secret_ref: SecretReference | None = None
    """Secret with `username` and `password`. Connections that open later use a renewed one once the
    kubelet has written it into the pod, within about a minute."""

    folder: patterns.AbsolutePath | None = None
    """Folder with the files `username` and `password`, which are read again for each connection: in
    place of secretRef, in a volume that workers.template mounts."""

    mechanism: Mechanism | None = None
    """SASL mechanism. Absent: SCRAM-SHA-256, PLAIN or LOGIN, the first that the smart host offers.
    XOAUTH2: the password is an access token."""

    unverified: StrictBool = False
    """Log in also in clear, and where the certificate of the smart host is not verified."""

    _one_place = one_place("secret_ref", "folder")

    def value(self) -> next_hops.HopLogin:
        """Return the value that connections use; of a login in files alone."""
        assert self.folder is not None
        return next_hops.HopLogin(self.folder, self.mechanism, self.unverified)


class SourceAddressSettings(DeliverySection):
    """Addresses of which connections come from one."""

    addresses: Annotated[tuple[patterns.AddressText, ...], Field(min_length=1, max_length=2)]
    """Addresses of the machine or pod, one of a family at most. Servers with addresses of another
    family alone are not reached."""

    ehlo_name: Annotated[str, Field(max_length=253, pattern=next_hops.HOSTNAME_PATTERN)] | None = (
        None
    )
    """The name in EHLO, which leads to these addresses. Absent: that of the queue or the process
    (`hostname`, POSTROAD_HOSTNAME)."""

    weight: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    """Part of the mail that goes from here: with 9 here and 1 at the only other, nine of ten."""

    @model_validator(mode="after")
    def _has_one_of_a_family(self) -> SourceAddressSettings:
        if len({":" in each for each in self.addresses}) < len(self.addresses):
            raise ValueError("name one address of IPv4 and one of IPv6 at most")
        return self

    def value(self) -> next_hops.SourceAddresses:
        return next_hops.SourceAddresses(self.addresses, self.ehlo_name, self.weight)


class SourceSettings(SourceAddressSettings):
    """From where connections come."""

    others: Annotated[tuple[SourceAddressSettings, ...], Field(max_length=15)] = ()
    """The rest of a pool: a mail goes from one source, at each attempt from the same."""

    def value(self) -> next_hops.SourceAddresses:
        others = tuple(each.value() for each in self.others)
        return replace(super().value(), others=others)

    @model_validator(mode="after")
    def _has_each_once(self) -> SourceSettings:
        if self.weight > 1 and not self.others:
            raise ValueError("a weight is one beside others: name these, or leave it out")
        if twice := repeated(a for each in (self, *self.others) for a in each.addresses):
            raise ValueError(f"{twice[0]} stands twice: give one of them the sum of the weights")
        return self


class SmtpTls(DeliverySection):
    """TLS of connections that carry mail."""

    mode: Annotated[next_hops.TlsMode, BY_API_NAME] = next_hops.TlsMode.OPPORTUNISTIC
    """None: never encrypt. Opportunistic: encrypt where it can be, verify nothing. Encrypted:
    transmit only over TLS, verify nothing. Required: transmit only over TLS with a certificate that
    verifies. Implicit: the same, with TLS from the first octet on (RFC 8314)."""

    min_version: Annotated[next_hops.OldestTls, BY_API_NAME] = next_hops.OldestTls.TLS_1_2
    """The oldest version of TLS."""


class HopTls(SmtpTls):
    """TLS with a smart host."""

    ca_ref: AuthoritiesReference | None = None
    """The authorities that vouch for the host with mode Required or Implicit, in the namespace of
    the MailQueue. Absent: the system's."""

    ca_file: patterns.AbsolutePath | None = None
    """PEM file of these authorities, in place of caRef. It is read again where it has changed."""

    @model_validator(mode="after")
    def _verifies(self) -> HopTls:
        if self.ca_ref and self.ca_file:
            raise ValueError("give either caRef (in a MailQueue) or caFile")
        if (self.ca_ref or self.ca_file) and not self.mode.is_verified:
            raise ValueError(
                "caRef goes with mode Required or Implicit: others verify nothing; so does caFile"
            )
        return self


class MxTls(SmtpTls):
    """TLS with the servers of MX records: security that is required in any case, and what may
    raise it."""

    honours: Annotated[
        tuple[Annotated[PublishedSecurity, BY_API_NAME], ...], Field(max_length=2)
    ] = ()
    """Records of the domain that raise it. STS: its MTA-STS policy. DANE: the TLSA records of its
    servers, which need a name server that validates in the same pod or machine."""

    @model_validator(mode="after")
    def _is_encrypted_at_all(self) -> MxTls:
        if self.honours and self.mode is next_hops.TlsMode.NONE:
            raise ValueError("mode None never encrypts: leave out honours, or name another mode")
        return self


class ConnectionSection(DeliverySection):
    """Fields that connections to a server have, whichever way leads to it."""

    chunking: StrictBool | None = None
    """True if content goes by CHUNKING (RFC 3030) where the server offers it, so that mails follow
    one another without waiting for replies. false: always by DATA. Absent: as true; with a relay as
    false, so that fewer mails are in doubt where a connection is lost."""

    verp: StrictBool = False
    """True if the reverse-path names the recipient (VERP): `bounces+user=example.net@list.example`
    for bounces@list.example, so that reports tell whom they are about. Each recipient then gets a
    transmission of its own."""

    source: SourceSettings | None = None
    """From where connections come. Absent: as the system chooses."""

    def source_value(self) -> next_hops.SourceAddresses | None:
        """Return from where connections come; None: as the system chooses."""
        return None if self.source is None else self.source.value()


class Hop(ConnectionSection):
    """A smart host."""

    host: patterns.HopHost | None = None
    """Its name or address. Without a dot, the handler relay finds a Service in the MailQueue's
    namespace; rules of routing need the full name: relay.mail.svc.cluster.local."""

    socket: patterns.AbsolutePath | None = None
    """Path of the Unix socket of an LMTP server on the same machine, in place of a host: in a pod,
    one in a further container, with a volume that both mount (workers.template)."""

    port: patterns.Port | None = None
    """Port of the host. Absent: 25, or 465 where TLS is implicit."""

    tls: HopTls = HopTls()
    """TLS with the host."""

    protocol: Annotated[next_hops.Protocol, BY_API_NAME] = next_hops.Protocol.SMTP
    """Protocol that the host takes: SMTP, or LMTP (RFC 2033) of a server that delivers."""

    login: HostLogin | None = None
    """The login (AUTH). It goes with tls.mode Required or Implicit. Absent: none."""

    look_up: Annotated[HostLookUp, BY_API_NAME] = HostLookUp.ADDRESSES
    """Addresses: the host is a server. MX: it is a domain, whose MX records name the servers."""

    @model_validator(mode="after")
    def _is_one_server(self) -> Hop:
        if (self.host is None) == (self.socket is None):
            raise ValueError("give either host or socket, the path of a Unix socket")
        if self.socket is None:
            return self
        # Compared with defaults, because an API server fills these in.
        fields = {name: each.default for name, each in type(self).model_fields.items()}
        more = {name for name, usual in fields.items() if getattr(self, name) != usual}
        more -= {"socket", "tier"}
        if self.tls == HopTls(mode=next_hops.TlsMode.NONE):
            more -= {"tls"}
        if more:
            names = ", ".join(sorted(map(to_camel, more)))
            raise ValueError(f"a Unix socket has no port, no TLS and no login: leave out {names}")
        try:
            next_hops.NextHop.at_socket(self.socket)
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _is_a_name_with_mx(self) -> Hop:
        if self.look_up is HostLookUp.MX and self.host is not None:
            if is_address(self.host):
                raise ValueError("an address has no MX records: leave out lookUp, or name a domain")
            patterns.full_name(self.host)
        return self

    @model_validator(mode="after")
    def _has_implicit_tls(self) -> Hop:
        if self.tls.mode is next_hops.TlsMode.IMPLICIT and self.port == 25:
            raise ValueError("port 25 has no implicit TLS: name a port that has, such as 465")
        return self

    @model_validator(mode="after")
    def _login_is_safe(self) -> Hop:
        if self.login and not (self.login.unverified or self.tls.mode.is_verified):
            raise ValueError(
                "a login goes with tls.mode Required or Implicit: else it could be read on its way"
                " (unverified: true permits it)"
            )
        return self

    def smart_host(self) -> SmartHost:
        """Return the value that routing uses."""
        return SmartHost(self.next_hop(), by_mx=self.look_up is HostLookUp.MX)

    @property
    def port_of_host(self) -> int:
        """Port that connections go to, unless to a socket."""
        return self.tls.mode.default_port if self.port is None else self.port

    def next_hop(self, *, usually_chunks: bool = True) -> next_hops.NextHop:
        """Return the value that connections use, of one whose login is in files."""
        if self.host is None:
            assert self.socket is not None
            return next_hops.NextHop.at_socket(self.socket)
        login = None if self.login is None else self.login.value()
        return next_hops.NextHop(
            self.host,
            self.port_of_host,
            self.tls.mode,
            self.protocol,
            login,
            self.tls.min_version,
            self.source_value(),
            chunking=usually_chunks if self.chunking is None else self.chunking,
            verp=self.verp,
            authorities=self.tls.ca_file,
        )


class TieredHop(Hop):
    """A smart host of a rule."""

    _is_full_name = field_validator("host")(patterns.full_name)

    tier: Annotated[StrictInt, Field(ge=1, le=3)] = 1
    """1: it is tried first, in random order with the others of its tier. 2, 3: where no smart host
    of a lower tier can be."""


class ByMx(ConnectionSection):
    """Delivery to the servers that the MX records of the recipient's domain name."""

    tls: MxTls = MxTls()
    """TLS with the servers."""

    def value(self) -> MxSecurity:
        return MxSecurity(
            self.tls.mode,
            frozenset(self.tls.honours),
            self.tls.min_version,
            self.source_value(),
            self.chunking is not False,
            self.verp,
        )
