"""Reads James' blobs, from S3 or from his Cassandra tables; a mail's content is two of them.

Source: Apache James, ZstdBlobStoreDAO: what is compressed is encrypted after that."""

import asyncio
from contextlib import suppress

import zstandard

from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.s3.objects import Objects
from postroad.errors import BlobMissing, InvalidInput
from postroad.james.encryption import Decryption
from postroad.james.properties import BlobPlace, as_in

BLOBS, PARTS = "blobs", "blobparts"
ZSTD = b"\x28\xb5\x2f\xfd"
"""The magic number with which a frame begins. Source: RFC 8878 3.1.1."""

MAX_DECOMPRESSED, MAX_AT_ONCE = 256 * 2**20, 16 * 2**20
"""Octets of a blob, and of one beside others in memory: a sender's body may be a frame of few
octets that stands for any number."""

FED = 1024
"""Octets of a frame that are decompressed at a time; they become 32 MiB at most."""

_CHUNKS = Statement("SELECT position FROM {keyspace}.blobs WHERE id = ?")
_PART = Statement("SELECT data FROM {keyspace}.blobparts WHERE id = ? AND chunknumber = ?")


class LargeBlob(InvalidInput):
    """A blob that `JamesBlobs.content` decompresses with `is_alone` only."""


class JamesBlobs:
    """The blobs of one server."""

    def __init__(self, place: BlobPlace, session: Session) -> None:
        """Open nothing yet. Raises: TlsRefused."""
        self._session = session
        self._buckets = [Objects(place.s3, each) for each in place.buckets] if place.s3 else []
        self._decryption = None if place.cipher is None else Decryption(place.cipher)
        self._has_frames = place.has_frames

    async def content(self, header_id: str, body_id: str, *, is_alone: bool = False) -> bytes:
        """Return the octets of a mail: its header with the empty line, and its body. Raises:
        LargeBlob; BlobMissing, InvalidInput for a blob that cannot be decoded; BlobsError,
        ViewError, CredentialsRefused."""
        most = MAX_DECOMPRESSED if is_alone else MAX_AT_ONCE
        header, body = await asyncio.gather(
            self._decoded(header_id, "header", most), self._decoded(body_id, "body", most)
        )
        return header + body

    async def _decoded(self, blob_id: str, what: str, most: int) -> bytes:
        blob = await self._stored(blob_id, what)
        if self._decryption is not None:
            blob = self._decryption.decrypted(blob)
        if not (self._has_frames and blob.startswith(ZSTD)):
            return blob
        return await asyncio.to_thread(_decompressed, blob, most)

    async def _stored(self, blob_id: str, what: str) -> bytes:
        if not self._buckets:
            return await self._of_cassandra(blob_id, what)
        for objects in self._buckets:
            with suppress(BlobMissing), as_in("blob.properties"):
                return await objects.get(blob_id)
        raise _missing(what, blob_id)

    async def _of_cassandra(self, blob_id: str, what: str) -> bytes:
        found = await self._session.execute(_CHUNKS, (blob_id,))
        if not found:
            raise _missing(what, blob_id)
        chunks = []
        for number in range(found[0]["position"]):
            part = await self._session.execute(_PART, (blob_id, number))
            if not part:
                raise _missing(f"part {number} of its {what}", blob_id)
            chunks.append(bytes(part[0]["data"]))
        return b"".join(chunks)


def _decompressed(blob: bytes, most: int) -> bytes:
    """Return what a blob stands for: itself where more than one frame is there, as behind the one
    that a sender's body was. Raises: InvalidInput, for a frame that is damaged, cut short or too
    large."""
    reader, found, size = zstandard.ZstdDecompressor().decompressobj(), list[bytes](), 0
    for first in range(0, len(blob), FED):
        try:
            found.append(reader.decompress(blob[first : first + FED]))
        except zstandard.ZstdError as error:
            raise InvalidInput(f"a blob cannot be decompressed: {error}") from error
        if reader.eof:
            is_whole = first + FED >= len(blob) and not reader.unused_data
            return b"".join(found) if is_whole else blob
        size += len(found[-1])
        if size > most:
            refused = LargeBlob if most < MAX_DECOMPRESSED else InvalidInput
            raise refused(f"a blob has more than {most} octets")
    raise InvalidInput("a blob cannot be decompressed: its frame is cut short")


def _missing(what: str, blob_id: str) -> BlobMissing:
    return BlobMissing(f"James' store has no blob {blob_id} for its {what}")
