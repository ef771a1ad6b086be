"""A milter as a filter: an MTA's side of the protocol. Source: ADR 0088.

All steps of a mail follow each other once it has arrived whole, over a connection of its own."""

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
    Changes,
    Negotiated,
    end_of,
    ending,
    packet,
    steps_of,
)

PACKET_COST = 64
"""Octets that a packet counts for beside its own, unless it is the reply to a step: else a million
of an octet each would keep the event loop busy."""

SKIPPED = FilterDecision()
"""The milter wants no more of a body."""


class MilterFilter:
    """A milter at an address of the settings."""

    def __init__(self, address: str) -> None:
        self._kind, _, self._place = address.partition(":")

    async def decide(self, mail: FilteredMail) -> FilterDecision:
        """Return its decision. Raises: FilterFailed, OSError."""
        if self._kind == "unix":
            reader, writer = await asyncio.open_unix_connection(self._place)
        else:
            reader, writer = await asyncio.open_connection(*parse_host_port(self._place, 0))
        try:
            decision = await _Dialogue(reader, writer, most_octets(mail.content)).run(mail)
            writer.write(packet(b"Q"))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise FilterFailed("it breaks off") from error
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # what it does not read would stay in memory
            writer.close()
        return decision


class _Dialogue:
    """One mail. `most`: octets that the milter may send in all, about few recipients and fields."""

    _negotiated: Negotiated

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int
    ) -> None:
        self._reader, self._writer, self._left = reader, writer, most
        self._unsent = bytearray()
        """Packets without replies, of which many go with one write."""

    async def run(self, mail: FilteredMail) -> FilterDecision:
        """Carry a mail through all steps. Raises: FilterFailed, OSError, IncompleteReadError."""
        self._writer.write(OFFER)
        self._negotiated = Negotiated(*await self._read())
        fields, body = fields_and_body(mail.content)
        # Of many recipients and fields, each has a reply, and may be removed.
        self._left += 2 * PACKET_COST * (len(mail.recipients) + len(fields))
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
        self._unsent += end_of(mail)
        await self._flush()
        return await self._end()

    async def _step(self, command: bytes, octets: bytes) -> FilterDecision | None:
        """Return a decision that ends the mail; None: it goes on."""
        self._unsent += octets
        has_reply = self._negotiated.has_reply(command)
        if has_reply or len(self._unsent) > MAX_DATA:
            await self._flush()
        if not has_reply:
            return None
        reply, data = await self._read()
        if reply == b"c" and not data:
            return None
        if reply == b"s" and command == b"B" and self._negotiated.steps & SKIP:
            return SKIPPED
        return ending(reply, data)

    async def _flush(self) -> None:
        self._writer.write(bytes(self._unsent))
        self._unsent.clear()
        await self._writer.drain()

    async def _end(self) -> FilterDecision:
        changes = Changes(self._negotiated.actions)
        while True:
            reply, data = await self._read()
            self._left -= PACKET_COST
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
            self._left -= PACKET_COST
