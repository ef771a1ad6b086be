"""Keys that sign, and dkimpy, which verifies what they signed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import dkim
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from postroad.signing.keys import SigningKey
from postroad.signing.signatures import SelectedKey


def pem_of(key: RSAPrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@cache
def rsa_pem(bits: int = 2048, number: int = 0) -> bytes:
    """A key of that length, another one for each number."""
    return pem_of(generate_private_key(65537, bits))


@cache
def ed25519_pem(number: int = 0) -> bytes:
    return pem_of(Ed25519PrivateKey.generate())


@cache
def selected(selector: str = "rsa") -> SelectedKey:
    """A key under this selector: `rsa…` or `ed…`."""
    pem = rsa_pem() if selector.startswith("rsa") else ed25519_pem()
    return SelectedKey(selector, SigningKey.read(pem))


def records(domain: str, *keys: SelectedKey) -> dict[str, bytes]:
    """What is in DNS for these keys."""
    found = {}
    for each in keys:
        kind, public = each.key.public
        found[f"{each.selector}._domainkey.{domain}."] = f"v=DKIM1; k={kind}; p={public}".encode()
    return found


def verified(mail: bytes, dns: Mapping[str, bytes]) -> list[bool]:
    """Whether each of the topmost signatures of a mail verifies, one for each record in DNS."""

    def text(name: bytes, timeout: float = 5) -> bytes | None:
        return dns.get(name.decode())

    def verifies(number: int) -> bool:
        try:
            return bool(dkim.DKIM(mail).verify(number, dnsfunc=text))
        except dkim.ValidationError:  # a body of another digest, a tag that is wrong
            return False

    return [verifies(number) for number in range(len(dns))]
