"""Limits per client: sessions, connections a minute, mails a minute.

Pure bookkeeping: `now` is passed in, in seconds of a monotonic clock. `client_of` says what one
client is.

The rights of a client, by the network of its address. Pure. Source: ADR 0026."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from postroad.domain.smtp.replies import Reply
from postroad.domain.values.networks import LOOPBACK, NO_ADDRESS, Networks, client_of
from postroad.routing.tables import SenderPatterns

TOO_MANY_SESSIONS = Reply(421, ("4.7.0 too many sessions from your address, come again",))
TOO_MANY_CONNECTIONS = Reply(421, ("4.7.0 too many connections from your address, come again",))
TOO_MANY_MAILS = Reply(421, ("4.7.0 too many mails from your address, come again",))

MINUTE = 60.0

MIN_KEPT = 1000
"""Clients in the table before it is searched for idle ones."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for each client; None: no limit. A client may use up a rate at once, and gets it back
    evenly over a minute."""

    sessions: int | None = None
    connections_per_minute: int | None = None
    mails_per_minute: int | None = None


class _Client:
    """`connections` and `mails`: when the client has the whole rate again."""

    __slots__ = ("connections", "mails", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.connections = self.mails = 0.0

    def is_idle(self, now: float) -> bool:
        return not self.sessions and self.connections <= now and self.mails <= now


class Clients:
    """The clients with open sessions, and those that have not got back all of a rate. Memory is
    bounded by their number: when the table has doubled, idle clients are removed."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._clients: dict[str, _Client] = {}
        self._search_at = MIN_KEPT

    def __len__(self) -> int:
        return len(self._clients)

    def connected(self, address: str, now: float) -> Reply | None:
        """Count a connection. Return the reply that refuses it; None: it is a session, which the
        caller ends with `left`. A refused connection uses up nothing."""
        client, limits = self._client(address, now), self._limits
        if limits.sessions is not None and client.sessions >= limits.sessions:
            return TOO_MANY_SESSIONS
        renewed = used(client.connections, limits.connections_per_minute, now)
        if renewed is None:
            return TOO_MANY_CONNECTIONS
        client.connections = renewed
        client.sessions += 1
        return None

    def left(self, address: str, now: float) -> None:
        """A session has ended."""
        key = client_of(address)
        client = self._clients[key]
        client.sessions -= 1
        if client.is_idle(now):
            del self._clients[key]

    def begins_mail(self, address: str, now: float) -> Reply | None:
        """Count a mail of a client, also of one whose connection of HTTP is lost while its mails
        are taken. Return the reply that refuses it, or None."""
        client = self._client(address, now)
        renewed = used(client.mails, self._limits.mails_per_minute, now)
        if renewed is None:
            return TOO_MANY_MAILS
        client.mails = renewed
        return None

    def _client(self, address: str, now: float) -> _Client:
        key = client_of(address)
        if (known := self._clients.get(key)) is not None:
            return known
        if len(self._clients) >= self._search_at:
            kept = {each: its for each, its in self._clients.items() if not its.is_idle(now)}
            self._clients, self._search_at = kept, max(MIN_KEPT, 2 * len(kept))
        client = self._clients[key] = _Client()
        return client


def used(full_at: float, rate: int | None, now: float, period: float = MINUTE) -> float | None:
    """Use one of a rate in a period. Return when the whole rate is there again; None: nothing of it
    is left. The generic cell rate algorithm (ITU-T I.371): one number for each client and rate."""
    if rate is None:
        return full_at
    then = max(full_at, now) + period / rate
    return None if then - now > period * (1 + 1e-9) else then


class RecipientRule(Protocol):
    """The recipients that a client may send to."""

    def refusal(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, or None; UNVERIFIED, where `look_up` has to
        find out."""

    async def look_up(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, or None."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Rights of a client that has logged in, and changes of its mail. `senders`: addresses in
    MAIL and in From; None: any. `max_size_bytes`: None: as the intake."""

    user: str
    tenant: str | None
    senders: SenderPatterns | None
    max_size_bytes: int | None
    fixes_up: bool
    """True if what its header lacks is added."""

    begins_mail: Callable[[], Reply | None]
    """Counts a mail; returns the reply that refuses it, or None."""


@dataclass(frozen=True, slots=True)
class Rights:
    may_relay: bool
    """True if the intake accepts its mail, for any recipient."""

    may_talk_early: bool = False
    """True if it may send more after EHLO, HELO and DATA before their replies."""

    normalises_line_ends: bool = False
    """True if a bare CR or LF in its mail becomes CRLF, and a NUL is left out; else the intake
    refuses the mail."""

    must_log_in: bool = False
    """True if it may send only once it has logged in."""

    recipients: RecipientRule | None = None
    """Of a client that may not relay: those it may send to all the same."""

    submission: Submission | None = None
    """Of a client that has logged in."""

    def largest_mail(self, most: int) -> int:
        """Return the octets of its largest mail, where the intake takes `most`."""
        its = self.submission
        return most if its is None or its.max_size_bytes is None else min(its.max_size_bytes, most)


@dataclass(frozen=True, slots=True)
class CertifiedClients:
    """Clients that may relay because of their certificate. `names`: it has one of these
    (`*.example.org`: one label); none: any."""

    names: frozenset[str]

    def rights_of(self, names: Sequence[str] | None, rights: Rights) -> Rights:
        """Return the rights of a client with these names in its certificate; None: it has none."""
        is_one = names is not None and (not self.names or not self.names.isdisjoint(_forms(names)))
        return replace(rights, may_relay=True) if is_one else rights


def _forms(names: Sequence[str]) -> Iterator[str]:
    for name in map(str.lower, names):
        yield name
        yield f"*.{name.partition('.')[2]}"


@dataclass(frozen=True, slots=True)
class Rules:
    """Rights of networks."""

    relay_from: Networks = LOOPBACK
    early_input_from: Networks = NO_ADDRESS
    normalise_from: Networks = NO_ADDRESS
    must_log_in: bool = False
    recipients: RecipientRule | None = None

    def rights_of(self, address: str) -> Rights:
        return Rights(
            may_relay=address in self.relay_from,
            may_talk_early=address in self.early_input_from,
            normalises_line_ends=address in self.normalise_from,
            must_log_in=self.must_log_in,
            recipients=self.recipients,
        )
