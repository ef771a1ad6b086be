"""A milter as a filter: an MTA's side of the protocol. Source: ADR 0088.

All steps of one mail follow each other once it has arrived whole. A connection serves several
mails, one after the other, where the milter has protocol 6 (SMFIC_QUIT_NC)."""

from __future__ import annotations

import asyncio
import struct

from postroad.domain.smtp.next_hops import parse_host_port
from postroad.intake.filters.chain import most_octets
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    fields_and_body,
)
from postroad.intake.filters.milter_packets import (
    MAX_DATA,
    OFFER,
    SKIP,
    VERSION,
    Changes,
    Negotiated,
    end_of,
    ending,
    packet,
    steps_of,
)

MAX_IDLE = 8
"""Connections that wait for a mail."""

SKIPPED = FilterDecision()
"""The milter wants no more of a body."""


class MilterFilter:
    """A milter at an address of the settings."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._idle: list[_Connection] = []
        self._keeps = True

    async def decide(self, mail: FilteredMail) -> FilterDecision:
        """Return its decision. Raises: FilterFailed, OSError."""
        while True:  # one that was kept may be closed by now
            kept = self._idle.pop() if self._idle else None
            connection = kept or await _Connection.open(self._address)
            try:
                decision = await connection.ask(mail)
            except (OSError, asyncio.IncompleteReadError) as error:
                connection.close()
                if kept is None:
                    raise FilterFailed("it breaks off") from error
            except BaseException:
                connection.close()
                raise
            else:
                self._leave(connection)
                return decision

    def _leave(self, connection: _Connection) -> None:
        if self._keeps and connection.may_be_kept and len(self._idle) < MAX_IDLE:
            connection.send(packet(b"K"))
            self._idle.append(connection)
        else:
            connection.send(packet(b"A") + packet(b"Q"))
            connection.close()

    def close(self) -> None:
        """Keep no connection."""
        self._keeps = False
        for each in self._idle:
            each.close()
        self._idle.clear()


class _Connection:
    """One connection, negotiated."""

    _negotiated: Negotiated

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._left = MAX_DATA
        """Octets that the milter may send for this mail."""

        self.may_be_kept = False
        """True once a mail ended as the protocol has it: only then libmilter begins anew."""

    @classmethod
    async def open(cls, address: str) -> _Connection:
        kind, _, place = address.partition(":")
        if kind == "unix":
            streams = await asyncio.open_unix_connection(place)
        else:
            streams = await asyncio.open_connection(*parse_host_port(place, 0))
        self = cls(*streams)
        try:
            self.send(OFFER)
            self._negotiated = Negotiated(*await self._read())
        except BaseException:
            self.close()
            raise
        return self

    def send(self, octets: bytes) -> None:
        self._writer.write(octets)

    def close(self) -> None:
        """Close it at once. What a milter does not read is lost, else it would stay in memory."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()

    async def ask(self, mail: FilteredMail) -> FilterDecision:
        """Carry a mail through all steps. Raises: FilterFailed, OSError, IncompleteReadError."""
        self._left, self.may_be_kept = most_octets(mail.content), False
        fields, body = fields_and_body(mail.content)
        for command, octets in steps_of(mail, fields, self._negotiated):
            decision = await self._step(command, octets)
            if decision is not None:
                return decision
        if self._negotiated.has_step(b"B"):
            for at in range(0, len(body), MAX_DATA):
                decision = await self._step(b"B", packet(b"B", body[at : at + MAX_DATA]))
                if decision is SKIPPED:
                    break
                if decision is not None:
                    return decision
        self.send(end_of(mail))
        decision = await self._end()
        self.may_be_kept = self._negotiated.version >= VERSION
        return decision

    async def _step(self, command: bytes, octets: bytes) -> FilterDecision | None:
        """Return a decision that ends the mail; None: it goes on."""
        self.send(octets)
        await self._writer.drain()
        if not self._negotiated.has_reply(command):
            return None
        reply, data = await self._read()
        if reply == b"c" and not data:
            return None
        if reply == b"s" and command == b"B" and self._negotiated.steps & SKIP:
            return SKIPPED
        return ending(reply, data)

    async def _end(self) -> FilterDecision:
        await self._writer.drain()
        changes = Changes(self._negotiated.actions)
        while True:
            reply, data = await self._read()
            if not changes.add(reply, data):
                found = ending(reply, data)
                return changes.decision() if found.verdict == "accept" else found

    async def _read(self) -> tuple[bytes, bytes]:
        """Return the next packet that is not a sign of life. Raises: FilterFailed, where the milter
        sends too much; OSError, IncompleteReadError."""
        while True:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            self._left -= length + 4
            if self._left < 0 or not length:
                raise FilterFailed("it sends more than it may, or what is no packet")
            octets = await self._reader.readexactly(length)
            if octets != b"p":
                return octets[:1], octets[1:]
