"""The bytes of mails: one object per mail, written once, never changed."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from postroad.domain.mail.mail import Content
from postroad.domain.mail.shapes import Shape

OBJECTS_EXPIRE = "ObjectsExpire"
"""The word for a bucket that deletes objects by age."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The size of a stored content, and its shape, found while it was stored."""

    size_bytes: int
    shape: Shape


class Blobs(Protocol):
    """The objects of one bucket. Safe to use concurrently from one event loop."""

    async def put(self, key: str, content: Content, limit_bytes: int | None = None) -> Stored:
        """Store the content under a new key. Durable when it returns; a stream is never held whole
        in memory. On an error nothing is visible under the key (an incomplete upload may remain
        until the bucket's lifecycle aborts it). Repeating it overwrites with the same bytes.
        Raises: MailTooLarge past `limit_bytes`, BlobsUnavailable, BlobsRefused,
        CredentialsRefused."""

    async def put_new(self, key: str, body: bytes) -> None:
        """Store a small object unless the key exists. Which of several that were put at once won,
        only reading it shows. A store without conditional requests may overwrite. Raises: as
        `put`."""

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises: BlobMissing, BlobsUnavailable, BlobsRefused."""

    def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield the object in chunks of at most 1 MiB. Errors as `get`."""

    async def delete(self, key: str) -> None:
        """Delete the object. Idempotent: a missing one is fine."""

    async def delete_together(self, keys: Sequence[str]) -> None:
        """Delete many objects with few requests. Idempotent; after an error some may be left."""

    def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Yield the keys with this prefix that come after `after`, in lexical order, page by page.
        Objects that are stored or deleted meanwhile may or may not be among them."""

    async def create(self, prefix: str = "", *, first: bool = False) -> tuple[str, ...]:
        """Create the bucket if it is missing and set its lifecycle. Idempotent. `first`: no mail
        was stored in it yet, so that a bucket of another account is refused, even if it is open
        to this one, as far as the store lists the account's own. Raises: BlobsRefused for the
        bucket of another account.

        Returns what the store lacks (`LifecycleUnsupported`), and OBJECTS_EXPIRE for a bucket that
        deletes objects with this prefix by age, as words for a condition."""

    async def exists(self) -> bool:
        """Return whether the bucket is there."""

    def empty(self, prefix: str) -> AsyncIterator[int]:
        """Delete all objects with this prefix, and as far as the account may their former versions,
        a thousand a step; yield after each how many. Idempotent. Raises: the error of the first
        object that was refused, after others were deleted."""

    async def drop(self, prefix: str = "", *, bucket: bool = True) -> int:
        """Empty a prefix, then (with `bucket`) delete the bucket if nothing else is in it.
        Idempotent. Returns how many objects were deleted. Raises: as `empty`; BlobsRefused for
        versions that stay, or may."""

    async def close(self) -> None:
        """Release connections. Idempotent."""
