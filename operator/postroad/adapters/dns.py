"""The port `Resolver` over dnspython: a stub resolver that asks recursive name servers.

dnspython reads and writes messages and changes to TCP where an answer is truncated. Which answers
count is decided here: the library's own resolver takes a referral for the absence of a record, by
which mail would fail for good, and appends search domains.

Keeps answers for as long as they hold, and asks each question once at a time."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import dns.rrset

from postroad.domain.values.networks import LOOPBACK
from postroad.errors import InvalidSettings
from postroad.ports.clock import Clock
from postroad.ports.delivery import Resolver
from postroad.routing.answers import (
    DNS_PORT,
    NOT_KEPT,
    Answer,
    AnswerKind,
    MxRecord,
    Question,
    RecordType,
    TlsaRecord,
)

RESOLV_CONF = Path("/etc/resolv.conf")

ROUNDS = 2
"""Number of times that each name server is asked; a message can be lost on its way."""

PAYLOAD_OCTETS = 1232
"""The largest answer over UDP that is asked for, so that none is fragmented. Source: RFC 6891
6.2.5; RFC 8085 3.2."""

MAX_QUERIES = 200
"""Queries under way at once; each has a socket of its own."""

MAX_ALIASES = 8
"""Messages for one question, where a server leaves it to its client to follow CNAME records."""

MAX_RECORDS = 100
"""Records of an answer that are kept, the preferred ones: a message has thousands of them, and
a sender of mail chooses the domains whose answers a cache holds."""

KEPT_WITHOUT_SOA = timedelta(seconds=30)
"""Time for which it is known that there are no records, where the server did not add for how long:
short, as RFC 2308 5 has it, but not asked anew for each mail."""

KEPT_FAILURE = timedelta(seconds=30)
"""Time for which a question that no server answered is not asked again. Source: RFC 9520 3.2."""


class NameServer(NamedTuple):
    """Address where a recursive name server listens."""

    address: str
    port: int = DNS_PORT

    def __str__(self) -> str:
        return f"{self.address} port {self.port}"


class _NoAnswer(Exception):
    """A server gave no usable answer; the text gives the reason."""


class DnsResolver:
    """Asks name servers in order, beginning with the one that answered last. Needs a running event
    loop. `timeout` is for one question, all servers and repetitions together."""

    def __init__(self, servers: Sequence[NameServer], timeout: timedelta) -> None:
        self._servers = tuple(servers)
        self._seconds = timeout.total_seconds()
        self._first = 0
        self._queries = asyncio.Semaphore(MAX_QUERIES)

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return what DNS answers (see the port)."""
        return tuple(await asyncio.gather(*map(self._look_up, questions)))

    async def _look_up(self, question: Question) -> Answer:
        async with self._queries:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._followed(question)
            except TimeoutError:
                reason = f"no name server answered within {self._seconds:g} s"
            except _NoAnswer as error:
                reason = str(error)
            except dns.exception.DNSException:  # too long, as a name before another may become
                return Answer(AnswerKind.NO_NAME, NOT_KEPT)
        return Answer(AnswerKind.UNAVAILABLE, KEPT_FAILURE, reason=reason)

    async def _followed(self, question: Question) -> Answer:
        """Ask, and ask on where a chain of CNAME records ends without an answer."""
        name = dns.name.from_text(question.name)
        aliases: tuple[str, ...] = ()
        longest = timedelta.max
        is_validated = True
        for _ in range(MAX_ALIASES):
            response, is_trusted = await self._response(name, question.type)
            is_validated &= is_trusted and bool(response.flags & dns.flags.AD)
            chain = _chain(response)
            aliases += tuple(_text(each[0].target) for each in chain.cnames)
            longest = min([longest, *(timedelta(seconds=each.ttl) for each in chain.cnames)])
            if chain.answer is None and chain.cnames and not _has(response, dns.rdatatype.SOA):
                name = chain.canonical_name
                continue
            found = _answer(response, chain, aliases, longest)
            return replace(found, is_validated=is_validated)
        raise _NoAnswer(f"more than {MAX_ALIASES} messages of CNAME records")

    async def _response(
        self, name: dns.name.Name, type_: RecordType
    ) -> tuple[dns.message.Message, bool]:
        """Return the first response that counts, and whether its server is on this machine, so that
        its flags were not set on the way. Raises: _NoAnswer with the last reason."""
        order = [*self._servers[self._first :], *self._servers[: self._first]] * ROUNDS
        reason = ""
        for server in order:
            try:
                response = await self._query(name, type_, server, self._seconds / len(order))
            except _NoAnswer as error:
                reason = f"{error} from {server}"
            else:
                self._first = self._servers.index(server)
                return response, server.address in LOOPBACK
        raise _NoAnswer(reason)

    async def _query(
        self, name: dns.name.Name, type_: RecordType, server: NameServer, seconds: float
    ) -> dns.message.Message:
        for edns in (0, False):  # a server that does not know EDNS refuses it. Source: RFC 6891 7
            query = dns.message.make_query(
                name, type_, use_edns=edns, payload=PAYLOAD_OCTETS if edns is not False else None
            )
            query.flags |= dns.flags.AD  # asks for the flag in the answer. Source: RFC 6840 5.7
            try:
                response, _ = await dns.asyncquery.udp_with_fallback(
                    query,
                    server.address,
                    timeout=seconds,
                    port=server.port,
                    ignore_unexpected=True,
                    ignore_errors=True,
                )
            except dns.exception.Timeout:
                raise _NoAnswer("no answer") from None
            except (OSError, EOFError, dns.exception.DNSException) as error:
                raise _NoAnswer(f"no answer ({type(error).__name__})") from error
            if response.rcode() not in _WITHOUT_EDNS:
                break
        if failure := _failure(response):
            raise _NoAnswer(failure)
        return response


_WITHOUT_EDNS = {dns.rcode.FORMERR, dns.rcode.NOTIMP, dns.rcode.BADVERS}


def name_servers(
    addresses: Iterable[tuple[str, int]], file: Path = RESOLV_CONF
) -> list[NameServer]:
    """Return the name servers of these addresses; without any, those of a file in the format of
    resolv.conf, of which nothing else is used. Raises: InvalidSettings where it names none."""
    given = [NameServer(*each) for each in addresses]
    if given:
        return given
    found = dns.resolver.Resolver(configure=False)
    try:
        found.read_resolv_conf(file)
    except (dns.exception.DNSException, ValueError) as error:
        raise InvalidSettings(
            f"{file} names no name server: {error}", hint="name one as resolver.servers"
        ) from error
    return [NameServer(str(each)) for each in found.nameservers]


def _failure(response: dns.message.Message) -> str:
    """Return why a response does not count; empty when it does. A referral, and a negative answer
    of a server that is neither authoritative nor recursive, say nothing about the name.
    Source: RFC 2308 2.2; RFC 1034 4.3.1 (lame servers)."""
    if response.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return dns.rcode.to_text(response.rcode())
    if response.answer:
        return ""
    knows = response.flags & (dns.flags.AA | dns.flags.RA)
    is_referral = _has(response, dns.rdatatype.NS) and not _has(response, dns.rdatatype.SOA)
    return "a referral" if is_referral or not knows else ""


def _chain(response: dns.message.Message) -> dns.message.ChainingResult:
    assert isinstance(response, dns.message.QueryMessage)
    try:
        return response.resolve_chaining()
    except dns.exception.DNSException as error:  # a loop of CNAME records, records for NXDOMAIN
        raise _NoAnswer(f"a broken answer ({type(error).__name__})") from error


def _answer(
    response: dns.message.Message,
    chain: dns.message.ChainingResult,
    aliases: tuple[str, ...],
    longest: timedelta,
) -> Answer:
    ttl = min(timedelta(seconds=chain.minimum_ttl), longest)
    if chain.answer is None:
        is_missing = response.rcode() == dns.rcode.NXDOMAIN
        kind = AnswerKind.NO_NAME if is_missing else AnswerKind.NO_DATA
        kept = ttl if _has(response, dns.rdatatype.SOA) else KEPT_WITHOUT_SOA
        return Answer(kind, kept, aliases=aliases)
    records = list(chain.answer)
    if chain.answer.rdtype == dns.rdatatype.MX:
        named = sorted((each.preference, _text(each.exchange)) for each in records)
        found = tuple(MxRecord(*each) for each in named[:MAX_RECORDS])
        return Answer(AnswerKind.RECORDS, ttl, exchanges=found, aliases=aliases)
    if chain.answer.rdtype == dns.rdatatype.TXT:
        texts = sorted(b"".join(each.strings).decode("utf-8", "replace") for each in records)
        return Answer(AnswerKind.RECORDS, ttl, texts=tuple(texts[:MAX_RECORDS]), aliases=aliases)
    if chain.answer.rdtype == dns.rdatatype.TLSA:
        certificates = sorted(
            (TlsaRecord(each.usage, each.selector, each.mtype, each.cert) for each in records),
            key=astuple,
        )
        kept_records = tuple(certificates[:MAX_RECORDS])
        return Answer(AnswerKind.RECORDS, ttl, certificates=kept_records, aliases=aliases)
    addresses = tuple(sorted(each.address for each in records)[:MAX_RECORDS])
    return Answer(AnswerKind.RECORDS, ttl, addresses=addresses, aliases=aliases)


def _has(response: dns.message.Message, type_: dns.rdatatype.RdataType) -> bool:
    return any(each.rdtype == type_ for each in response.authority)


def _text(name: dns.name.Name) -> str:
    """Return a name as routing has it; empty for the root."""
    return name.to_text(omit_final_dot=True).lower().removesuffix(".")


MAX_TTL = {
    AnswerKind.RECORDS: timedelta(days=1),
    AnswerKind.NO_NAME: timedelta(hours=3),
    AnswerKind.NO_DATA: timedelta(hours=3),
    AnswerKind.UNAVAILABLE: timedelta(minutes=5),
}
"""Time that an answer is kept at most. Source: RFC 2308 5, 7; RFC 9520 3.2."""

MAX_ANSWERS = 100_000
"""Answers that are kept; those go first that were read longest ago."""


class CachingResolver:
    """A resolver with a cache. Needs a running event loop."""

    def __init__(self, resolver: Resolver, clock: Clock, most_answers: int = MAX_ANSWERS) -> None:
        self._resolver = resolver
        self._clock = clock
        self._most = most_answers
        self._kept: OrderedDict[Question, tuple[timedelta, Answer]] = OrderedDict()
        """Question → when its answer ends, by the clock's elapsed time, and the answer."""
        self._asked: dict[Question, asyncio.Task[Answer]] = {}

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return the answers (see the port), each with the time that is left of it."""
        kept = [self._read(each) for each in questions]
        missing = [each for each, answer in zip(questions, kept, strict=True) if answer is None]
        if not missing:
            return tuple(answer for answer in kept if answer is not None)
        # A caller that is cancelled leaves the others the answers for which they wait too.
        asked = iter(await asyncio.gather(*(asyncio.shield(self._ask(each)) for each in missing)))
        return tuple(next(asked) if answer is None else answer for answer in kept)

    def _read(self, question: Question) -> Answer | None:
        kept = self._kept.get(question)
        if kept is None:
            return None
        left = kept[0] - self._clock.elapsed()
        if left <= NOT_KEPT:
            del self._kept[question]
            return None
        self._kept.move_to_end(question)
        return replace(kept[1], ttl=left)

    def _ask(self, question: Question) -> asyncio.Task[Answer]:
        """Return the task that asks a question, the same for all that wait for it."""
        task = self._asked.get(question)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._answer(question))
            self._asked[question] = task
        return task

    async def _answer(self, question: Question) -> Answer:
        try:
            (answer,) = await self._resolver.look_up(question)
        finally:
            del self._asked[question]
        answer = replace(answer, ttl=min(answer.ttl, MAX_TTL[answer.kind]))
        if answer.ttl > NOT_KEPT:
            self._kept[question] = (self._clock.elapsed() + answer.ttl, answer)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return answer
