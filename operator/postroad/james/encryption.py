"""Decrypts James' blobs: Tink's streaming AES-GCM over segments of 4 KiB, with a key from PBKDF2.

No wheel of Tink for Python offers this streaming primitive by a bare key; `cryptography` has its
parts. Source: Tink, AES-GCM-HKDF Streaming; Apache James, PBKDF2StreamingAeadFactory."""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from postroad.errors import InvalidInput
from postroad.james.properties import Cipher

ROUNDS, KEY_BYTES, SEGMENT, TAG, PREFIX = 65536, 32, 4096, 16, 7
HEADER = 1 + KEY_BYTES + PREFIX


class Decryption:
    """The key of all blobs: its derivation takes tens of milliseconds, once."""

    def __init__(self, cipher: Cipher) -> None:
        password = cipher.password.encode()
        self._key = hashlib.pbkdf2_hmac(cipher.digest, password, cipher.salt, ROUNDS, KEY_BYTES)

    def decrypted(self, blob: bytes) -> bytes:
        """Raises: InvalidInput, for a blob of another key, a damaged one and a plain one."""
        if len(blob) < HEADER + TAG or blob[0] != HEADER:
            raise InvalidInput("a blob is not encrypted as encryption.aes.enable has it")
        salt, prefix = blob[1 : 1 + KEY_BYTES], blob[1 + KEY_BYTES : HEADER]
        aead = AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"").derive(self._key))
        # The header takes its place in the first segment.
        ends = [*range(SEGMENT, len(blob), SEGMENT), len(blob)]
        begins = [HEADER, *ends[:-1]]
        parts = []
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            is_last = number == len(ends) - 1
            nonce = prefix + number.to_bytes(4, "big") + bytes([is_last])
            try:
                parts.append(aead.decrypt(nonce, blob[begin:end], b""))
            except (InvalidTag, ValueError):
                raise InvalidInput(
                    "a blob cannot be decrypted: compare encryption.aes.password and .salt in"
                    " blob.properties"
                ) from None
        return b"".join(parts)
