"""Reads spool files in threads, for a caller that may be cancelled at any time."""

import asyncio
from collections.abc import AsyncGenerator

from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.frames import extended
from postroad.embedded.log.spool_files import CHUNK, SpoolHeader, content_at
from postroad.embedded.store.engine import Engine
from postroad.errors import BlobMissing
from postroad.ports.files import File


async def open_spool_file(engine: Engine, record: EnvelopeRecord) -> tuple[File, SpoolHeader]:
    """Open the spool file of a mail. Raises: BlobMissing."""
    run = engine.mail_threads.run
    opening = asyncio.ensure_future(run(engine.spool_files.open, record.slot, record.mail_id))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:  # the thread goes on, and nothing else closes what it opens
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[tuple[File, SpoolHeader]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


async def in_chunks(engine: Engine, record: EnvelopeRecord) -> AsyncGenerator[bytes, None]:
    """Yield a content in chunks. Raises: BlobMissing."""
    run = engine.mail_threads.run
    file, header = await open_spool_file(engine, record)
    try:
        crc, length = 0, header.content_length
        for offset in range(0, length, CHUNK):
            wanted = min(CHUNK, length - offset)
            chunk = await run(file.pread, content_at(record.slot) + offset, wanted)
            crc = extended(crc, chunk)
            is_last = offset + wanted == length
            if len(chunk) < wanted or (is_last and crc != header.content_crc):
                raise BlobMissing(f"spool file {record.slot} is damaged")
            yield chunk  # the last one behind the check: a next hop must not accept damaged mail
    finally:
        file.close()
