"""Reads single ENVELOPEs in blocks, because entries that are due together lie together.

Source: LQ-32 (lanes keep the bytes read per started message low); SP-17 (one record suffices)."""

from collections import OrderedDict

from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.frames import HEAD, frame_at, frame_size
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.layout import Lane
from postroad.embedded.log.segments import LiveEntry, Segment, waiting_at
from postroad.ports.files import Threads

BLOCK = 64 * 1024
BLOCKS_KEPT = 64


class EnvelopeReader:
    """Reads the ENVELOPEs of live entries."""

    def __init__(self, lanes: dict[Lane, LaneLog], threads: Threads) -> None:
        self._lanes, self._threads = lanes, threads
        self._blocks: OrderedDict[tuple[Lane, int, int], bytes] = OrderedDict()
        self.bytes_read = 0

    async def read(self, entry: LiveEntry) -> EnvelopeRecord:
        """Return an entry's ENVELOPE, or what stands for one set aside. Raises: StoreDamaged."""
        lane = self._lanes[entry.segment.lane]
        payload = lane.recall(entry.position)
        if payload is None:
            payload = await self._payload(lane, entry)
        return waiting_at(entry.segment, entry.offset, payload)

    async def _payload(self, lane: LaneLog, entry: LiveEntry) -> bytes:
        segment, offset = entry.segment, entry.offset
        pending = lane.pending(segment, offset)
        if pending is not None:
            return pending[HEAD.size : HEAD.size + entry.length]
        size = frame_size(entry.length)
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        data = b"".join([await self._block(segment, number) for number in range(first, last + 1)])
        frame = frame_at(data, offset - first * BLOCK, segment.seed)
        if frame is None:
            raise segment.damaged(offset)
        return frame.payload

    async def _block(self, segment: Segment, number: int) -> bytes:
        """Return one block, and cache it when no more frames can go to it."""
        key = (segment.lane, segment.sequence, number)
        if (known := self._blocks.get(key)) is not None:
            self._blocks.move_to_end(key)
            return known
        # Asked before the read: else a flush that ends during it has half a block cached as whole,
        # and the next mail in it is taken for damage.
        is_complete = (number + 1) * BLOCK <= segment.written
        data = await self._threads.run(segment.read, number * BLOCK, BLOCK)
        self.bytes_read += len(data)
        if is_complete:
            self._blocks[key] = data
            if len(self._blocks) > BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return data
