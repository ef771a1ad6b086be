"""Enqueue keys: what tells that two enqueues are one. Pure. Source: ADR 0045."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta

from postroad.domain.mail.mail import Mail
from postroad.errors import InvalidInput, KeyReused

KEY_LIFETIME = timedelta(hours=24)
"""How long an enqueue key stands for the mail that was queued with it."""

LONGEST_KEY = 512
"""Characters of a key."""


def token_of(key: str, *scope: bytes) -> bytes:
    """Return what is stored for a key, within a scope: 32 octets, from which the key cannot be
    read. Raises: InvalidInput, for a key that is empty or longer than `LONGEST_KEY`."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise InvalidInput(f"an enqueue key has 1 to {LONGEST_KEY} characters")
    return hashlib.sha256(b"".join([*scope, key.encode(errors="surrogatepass")])).digest()


def digest_of(mail: Mail) -> bytes:
    """Return the digest of sender, recipients and content, by which two mails are the same: 32
    octets. Raises: InvalidInput, where the content is not in memory."""
    if not isinstance(mail.content, bytes):
        raise InvalidInput("the content of a mail with an enqueue key has to be bytes")
    envelope = json.dumps([mail.sender, mail.recipients]).encode()
    return hashlib.sha256(envelope + b"\n" + mail.content).digest()


def check_same(digest: bytes, queued: bytes) -> None:
    """Raises: KeyReused, where the key stands for a mail with another digest."""
    if digest != queued:
        raise KeyReused
