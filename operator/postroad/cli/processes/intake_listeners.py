"""The listeners of an intake, with what their sessions share: from a file of intake, or from
variables alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from postroad.bootstrap.followed_file import FollowedFile, read_return_paths
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.domain.mail.return_paths import ReturnPaths
from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidInput, InvalidSettings
from postroad.intake.call_ahead import CallAhead, server_that_knows
from postroad.intake.clients import CertifiedClients, ClientLimits, Clients, Rules
from postroad.intake.context import IntakeContext
from postroad.intake.filters.opening import FilterDocument, OpenFilters
from postroad.intake.logins.results import KnownUsers, UsersUnavailable
from postroad.intake.own_domains import DomainFlushes, OwnDomains
from postroad.intake.server import SmtpServer, listening_on
from postroad.intake.submission import Permissions, UserRates
from postroad.intake_settings.intake_file import IntakeFile, OwnDomain, read_intake
from postroad.intake_settings.listeners import (
    FileListener,
    Listener,
    ListenerCertificate,
    ListenerRole,
    ListenerTls,
)
from postroad.intake_settings.recipients import local_parts
from postroad.intake_settings.user_file import read_users
from postroad.ports.delivery import SuppressionList
from postroad.settings.intake import Intake
from postroad.smtp.server import ServerCertificate
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import INTAKE_READS, INTAKE_REFUSED
from postroad.tls import ClientAuthorities

if TYPE_CHECKING:
    from postroad.intake.logins.authenticator import Authenticator
    from postroad.intake.returns.handling import ReturnedMails
    from postroad.intake.web.server import HttpServer
    from postroad.ports.mail_queue import MailQueue

_log = logger("intake")


class ListenerAddress(NamedTuple):
    """Address of a listener. `tls`: connections begin with TLS; `is_http`: it is of role http."""

    name: str
    host: str
    port: int
    tls: bool = False
    is_http: bool = False


class Suppression(NamedTuple):
    """The suppression list that reports are written to, and its rules as they are now; None: the
    queue has no list, or workers do not look at it."""

    addresses: SuppressionList | None
    rules: Callable[[], SuppressionRules | None]


@dataclass(frozen=True, slots=True)
class IntakeDocument:
    """Content that a file of intake has, with that of the files it names."""

    settings: IntakeFile
    users: KnownUsers = field(repr=False)
    recipients: Mapping[str, frozenset[str] | None]
    """Of the domains whose files list them; None: every one, or those that a server knows."""

    certificates: Mapping[str, ServerCertificate]
    """By the names of listeners."""

    filters: tuple[FilterDocument, ...] = ()
    return_paths: ReturnPaths | None = None
    """Of mail whose reports come back here."""


class FollowedIntake(FollowedFile[IntakeDocument]):
    """A file of intake."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, "intake", INTAKE_REFUSED, INTAKE_READS)

    def _read(self) -> IntakeDocument:
        self._watch({*self._watched, self.file})
        settings = read_intake(self.file)
        folder = self.file.parent
        self._watch((folder / each for each in settings.files()), anew=True)
        domains = {each.name: _recipients(each, folder) for each in settings.domains}
        return IntakeDocument(
            settings,
            _users(settings, folder),
            domains,
            {each.name: _certificate(each.tls, folder) for each in settings.listeners if each.tls},
            tuple(FilterDocument.read(each, folder) for each in settings.filters),
            _return_paths(settings, folder),
        )


def _users(settings: IntakeFile, folder: Path) -> KnownUsers:
    if settings.users is None or settings.users.file is None:
        return KnownUsers()
    found = read_users(folder / settings.users.file)
    return KnownUsers({each.name: each for each in found.users}, found.secret.encode())


def _return_paths(settings: IntakeFile, folder: Path) -> ReturnPaths | None:
    bounces = settings.bounces
    if bounces is None or bounces.verp_secret.file is None:
        return None
    return read_return_paths(folder / bounces.verp_secret.file)


def _recipients(domain: OwnDomain, folder: Path) -> frozenset[str] | None:
    if domain.recipients is None or domain.recipients.file is None:
        return None
    file = folder / domain.recipients.file
    try:
        return local_parts(file.read_text().splitlines(), domain.name)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the recipients {file} cannot be read: {error}") from error
    except InvalidInput as error:
        raise InvalidSettings(f"the recipients {file}: {error}") from error


def _certificate(tls: ListenerTls, folder: Path) -> ServerCertificate:
    first, *others = tls.certificates
    clients, authorities = tls.clients, None
    if clients is not None:
        assert clients.ca_file is not None  # a file of intake names no Secret
        authorities = ClientAuthorities(folder / clients.ca_file, clients.required)
    by_name = {
        name: ServerCertificate(*_paths(each, folder), clients=authorities)
        for each in others
        for name in each.names
    }
    return ServerCertificate(*_paths(first, folder), by_name, authorities)


def _certified(listener: Listener) -> CertifiedClients | None:
    clients = None if listener.role.logs_in else listener.clients
    return None if clients is None else CertifiedClients(frozenset(clients.names))


def _paths(certificate: ListenerCertificate, folder: Path) -> tuple[Path, Path | None]:
    assert certificate.cert is not None  # a file of intake names no Secret
    return folder / certificate.cert, certificate.key and folder / certificate.key


class FileListeners:
    """The listeners of a file of intake. Needs a running event loop."""

    def __init__(
        self,
        file: FollowedIntake,
        base: IntakeContext,
        ca_file: Path | None,
        suppression: Suppression,
    ) -> None:
        self.file, self._base, self._ca_file = file, base, ca_file
        self._suppression = suppression
        self._rates = UserRates()
        queue = cast("MailQueue", base.queue)  # with an outbox, no client asks for a flush
        self._flushes = DomainFlushes(queue, asyncio.get_running_loop().time)
        self._filters = OpenFilters(base.queue.name, ca_file, base.clock.now)
        self._asked: dict[OwnDomain, CallAhead] = {}
        self._authenticator: Authenticator | None = None

    async def open(self) -> None:
        """Find out how clients can log in."""
        users = self.file.current.settings.users
        if users is None:
            return
        from postroad.intake.logins.authenticator import Authenticator
        from postroad.intake.logins.dovecot import DovecotClient
        from postroad.intake.logins.tokens import Tokens

        dovecot, offered = None, frozenset[str]()
        if users.dovecot is not None:
            dovecot = DovecotClient(self.file.file.parent / users.dovecot.socket)
            try:
                offered = await dovecot.mechanisms()
            except UsersUnavailable as error:
                _log.warning("Dovecot does not answer yet", error=error.reason)
                offered = frozenset(("PLAIN", "LOGIN"))
        self._authenticator = Authenticator(
            None if users.file is None else lambda: self.file.current.users,
            None if users.oidc is None else Tokens(users.oidc, self._ca_file),
            dovecot,
            offered,
        )

    def check(self, document: IntakeDocument) -> None:
        """Raises: InvalidSettings for a change that needs a restart."""
        if document.settings.fixed != self.file.current.settings.fixed:
            raise InvalidSettings(
                "the ports of listeners, the places that know users, or the outbox are others",
                hint="restart the process",
            )

    @staticmethod
    def ports(listeners: Sequence[FileListener]) -> list[ListenerAddress]:
        """Return where to listen."""
        return [
            ListenerAddress(
                each.name,
                each.address,
                each.port,
                each.is_implicit,
                each.role is ListenerRole.HTTP,
            )
            for each in listeners
        ]

    def contexts(self, document: IntakeDocument) -> dict[str, IntakeContext]:
        """Return by the names of listeners what their sessions share that begin now."""
        permissions = Permissions(
            document.settings.rules, self._rates, asyncio.get_running_loop().time
        )
        domains = self._own_domains(document)
        returned = self._returned(document, domains)
        return {
            each.name: self._context(document, each, permissions, domains, returned)
            for each in document.settings.listeners
        }

    def _own_domains(self, document: IntakeDocument) -> OwnDomains:
        """Return the own domains; what servers replied about recipients is kept."""
        found = {}
        for each in document.settings.domains:
            if each.recipients is not None and each.recipients.call_ahead is not None:
                hop = each.recipients.call_ahead.next_hop()
                found[each] = self._asked.get(each) or self._call_ahead(hop, each.backup)
        self._asked = found  # only now: a file that is refused loses no replies
        asked = {each.name: its for each, its in found.items()}
        return OwnDomains({**document.recipients, **asked})

    def _returned(self, document: IntakeDocument, domains: OwnDomains) -> ReturnedMails | None:
        """Return what takes reports that come back. Raises: InvalidSettings."""
        bounces, paths = document.settings.bounces, document.return_paths
        addresses, suppression = self._suppression
        if bounces is None or paths is None:
            return None
        if addresses is None or (bounces.suppress and suppression() is None):
            raise InvalidSettings(
                "bounces.suppress puts addresses on the suppression list, which no worker looks at",
                hint="add `suppression: {}` to the file of delivery, and name it (--delivery)",
            )
        from postroad.intake.returns.handling import ReturnedMails, ReturnRules

        complaints = frozenset(bounces.complaints)
        rules = ReturnRules(paths, bounces.classes, bounces.by_complaints, complaints)
        return ReturnedMails(
            self._base.queue.name,
            rules,
            domains,
            addresses,
            suppression,
            self._base.clock,
            self._base.events,
        )

    def _call_ahead(self, hop: NextHop, is_backup: bool) -> CallAhead:
        ask = server_that_knows(hop, self._base.offer.hostname, self._ca_file)
        return CallAhead(ask, asyncio.get_running_loop().time, is_backup=is_backup)

    def _context(
        self,
        document: IntakeDocument,
        listener: Listener,
        permissions: Permissions,
        domains: OwnDomains,
        returned: ReturnedMails | None,
    ) -> IntakeContext:
        logs_in = listener.role.logs_in
        certificate = document.certificates.get(listener.name)
        rules, is_mx = self._base.rules, listener.role is ListenerRole.MX
        own = Rules(
            listener.relays_for,
            rules.early_input_from,
            rules.normalise_from,
            must_log_in=logs_in,
            recipients=(returned or domains) if is_mx else None,
        )
        hostname = document.settings.hostname
        is_asked = listener.role is not ListenerRole.MX and document.settings.outbox is None
        offer = replace(self._base.offer, flush=self._flushes.begin if is_asked else None)
        return replace(
            self._base,
            offer=offer if hostname is None else replace(offer, hostname=hostname),
            tls=None if certificate is None else certificate.context,
            rules=own,
            authenticator=self._authenticator if logs_in else None,
            permissions=permissions if logs_in else None,
            proxies=listener.proxies,
            xclient_from=Networks.of(listener.xclient_from),
            certified=_certified(listener),
            filters=self._filters.chain(document.filters, listener.name),
            returned=returned if is_mx else None,
        )


def client_limits(section: Intake, most: int) -> ClientLimits:
    """Return the limits of a client of servers that each have `most` sessions."""
    return ClientLimits(
        section.client_sessions or -(-most // 2),
        section.client_connections_per_minute,
        section.client_mails_per_minute,
    )


class IntakeServers:
    """The servers of all listeners: of SMTP and, where a listener has that role, of HTTP.
    `by_file`: listeners of a file of intake; None: of variables. `inherited`: sockets to use
    instead of those of `ports`, each with its listener. Needs a running event loop."""

    def __init__(
        self,
        base: IntakeContext,
        section: Intake,
        ports: Sequence[ListenerAddress],
        by_file: FileListeners | None,
        inherited: Sequence[tuple[str, socket.socket]],
    ) -> None:
        self._ports, self._by_file = ports, by_file
        has_http = any(each.is_http for each in ports)
        # Both kinds of connections have half of the descriptors that the sessions may take.
        most = max(1, section.max_sessions // 2) if has_http else section.max_sessions
        clients = Clients(client_limits(section, most))  # of both: a limit holds for all listeners
        self._smtp = SmtpServer(base, max_sessions=most, clients=clients)
        self._http: HttpServer | None = None
        if has_http:  # an intake without them imports no aiohttp
            from postroad.intake.web.server import HttpServer

            self._http = HttpServer(max_connections=most, clients=clients)
        self.sockets = list(inherited) or [
            (each.name, bound) for each in ports for bound in listening_on(each.host, each.port)
        ]

    def use(self, document: IntakeDocument) -> None:
        """Listen as a file has it now. Raises: InvalidSettings; nothing is changed then."""
        assert self._by_file is not None
        self._by_file.check(document)
        self.listen(document)

    def listen(self, document: IntakeDocument | None) -> None:
        """Let sessions that begin later have what a file, or none, decides."""
        by_file = self._by_file
        contexts = {} if by_file is None or document is None else by_file.contexts(document)
        for each in self._ports:
            own = [bound for name, bound in self.sockets if name == each.name]
            if self._http is not None and each.is_http:
                self._http.listen_on(*own, context=contexts[each.name])
            else:
                self._smtp.listen_on(*own, tls=each.tls, context=contexts.get(each.name))

    async def drain(self, within: timedelta) -> None:
        """Let sessions end, for so long at most."""
        others = [] if self._http is None else [self._http.drain(within)]
        await asyncio.gather(self._smtp.drain(within), *others)
