"""Prepares contents for their next hop: converted to 7 bits where it takes no more, then signed.

Signing comes last, because a signature covers the octets that are sent; only leading dots are
doubled behind it, which the next hop undoes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from postroad.domain.mail.mail import Envelope
from postroad.domain.smtp.next_hops import NextHop
from postroad.octet_room import OctetRoom
from postroad.ports.delivery import Signer, Signing
from postroad.smtp.client.transaction.content import LARGEST_CHANGED, OpenContent
from postroad.telemetry.metrics import UNSIGNED

ROOM = LARGEST_CHANGED + LARGEST_CHANGED // 2
"""Octets of contents that are prepared at the same time: beside the largest, some more."""


class Preparation:
    """What the connections of a process share. Needs a running event loop."""

    def __init__(self, signer: Signer | None = None) -> None:
        self._signer = signer
        self._room = OctetRoom(ROOM)

    def leaves(self, content: OpenContent, *, takes_8bit: bool) -> bool:
        """Return whether a content goes as it is to every next hop like this one."""
        return self._signer is None and (takes_8bit or not content.may_have_8bit)

    def of(
        self, content: OpenContent, envelope: Envelope, hop: NextHop, *, takes_8bit: bool
    ) -> AbstractAsyncContextManager[OpenContent] | None:
        """Return the content as a next hop gets it, which stays in memory until the context ends;
        None where it goes as it is. A large one waits until there is room for it; where its next
        hop is slow, its further ones do, and those of others do not. Entering raises what reading
        the content raises."""
        is_converted = not takes_8bit and content.may_have_8bit
        signing = None if self._signer is None else self._signer.begin(content.header, envelope)
        if signing is None and not is_converted:
            return None
        if content.size_bytes > LARGEST_CHANGED:
            if signing is not None:
                UNSIGNED.labels("size").inc()
            return None
        return self._prepared(content, signing, hop, is_converted=is_converted)

    @asynccontextmanager
    async def _prepared(
        self, content: OpenContent, signing: Signing | None, hop: NextHop, *, is_converted: bool
    ) -> AsyncIterator[OpenContent]:
        async with self._room.taken(0 if content.is_held else content.size_bytes, hop):
            if is_converted:
                content = await content.in_seven_bits()
            yield content if signing is None else await content.signed(signing)
