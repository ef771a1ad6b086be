"""Reverse-paths that name the recipient, so that a report that comes back tells whom it is about;
with a token that only this side can make, so that a report shows that its author had the mail.

The form is that of Postfix with its usual delimiters, `+` and `=`. A signed one ends in `=` and the
token; where the recipient makes it too long, the token has a digest of the recipient in place of
it. What signs is in lower case, since servers fold the case of addresses.
Source: Bernstein, Variable Envelope Return Paths; Postfix documentation, VERP_README; RFC 5321
4.1.2, 4.5.3.1; RFC 2104; ADR 0071, 0091."""

import base64
import binascii
import hmac
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from hashlib import sha256

from postroad.domain.mail.seven_bits import ascii_address, ascii_domain
from postroad.domain.values.text import is_same_mailbox
from postroad.errors import InvalidInput

MAX_LOCAL_PART, MAX_PATH = 64, 254
"""Octets; a path has 256 with its angle brackets. Source: RFC 5321 4.5.3.1.1, 4.5.3.1.3."""

MAX_AGE = timedelta(days=30)
"""Time for which a token is accepted: servers try for five days, and who complains about a mail
does so in the weeks in which it is read."""

_MAC, _DIGEST = 6, 5
"""Octets. A guess of a token costs a command at the intake, so that 2^46 of them take centuries."""

_MAX_TENANT = 32
"""Octets of a tenant in a token."""

_MAX_FOLDED = 2 * MAX_LOCAL_PART
"""Characters of the local part of a path as it is compared: folding can lengthen it."""

_DAYS = 256
"""Days after which the octet of the day is the same again; what signs has the whole day."""

_ATOM = r"[^\s\"()<>\[\]\\,;:@.\x00-\x20\x7f]+"
_DOT_STRING = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_SIGNED = re.compile(r"(.+)=([a-z2-7]{12,72})")


def return_path(sender: str, recipient: str) -> str | None:
    """Return the reverse-path of a mail from a sender to one recipient; None: it would be too long,
    or one of the two has quotes or an address literal that cannot stand there.

    >>> return_path("bounces@list.example", "user@example.net")
    'bounces+user=example.net@list.example'
    """
    return _path(sender, f"+{_named(recipient)}")


def plain_path(sender: str, recipient: str, _: str | None) -> str | None:
    """Return `return_path`, whatever the tenant."""
    return return_path(sender, recipient)


def _named(recipient: str) -> str:
    user, _, host = ascii_address(recipient).rpartition("@")
    return f"{user}={host}" if user else host  # postmaster has no domain


def _path(sender: str, addition: str) -> str | None:
    local, at, domain = sender.rpartition("@")
    extended = f"{local}{addition}"
    path = f"{extended}{at}{domain}"
    if not (local and _DOT_STRING.fullmatch(extended)):
        return None
    if len(extended.encode()) > MAX_LOCAL_PART or len(path.encode()) > MAX_PATH:
        return None
    return path


@dataclass(frozen=True, slots=True)
class NamedReturn:
    """Mail that a signed reverse-path was of: its sender, its recipient and its tenant, in lower
    case. `recipient`: None where the path has a digest of it. `token`: tells one path from all
    others."""

    sender: str
    recipient: str | None
    tenant: str | None
    token: str
    _digest: bytes = b""
    _key: bytes = field(default=b"", repr=False)

    def about(self, addresses: Sequence[str]) -> str | None:
        """Return the recipient, which is one of these where the path does not name it; None: none
        of them is."""
        if self.recipient is not None:
            return self.recipient
        for each in addresses:
            folded = _folded(each)
            if folded and hmac.compare_digest(_digest_of(self._key, folded), self._digest):
                return folded
        return None


class ReturnPaths:
    """Signed reverse-paths. `secrets`: the first one signs, and each is accepted, so that one takes
    the place of another while reports about older mail come back."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    def path(self, sender: str, recipient: str, tenant: str | None, day: date) -> str | None:
        """Return the reverse-path of a mail; None: as `return_path`, or the tenant has too many
        octets, or the recipient, as it is signed, may be another mailbox."""
        its_sender, its_recipient = _folded(sender), _folded(recipient)
        its_tenant = (tenant or "").encode()
        if its_sender is None or its_recipient is None or len(its_tenant) > _MAX_TENANT:
            return None
        if not is_same_mailbox(recipient, its_recipient):
            return None
        key = self._secrets[0]
        number = day.toordinal()
        mac = _mac(key, number, its_tenant, its_sender, its_recipient.encode())
        token = _written(number, mac, b"", _masked(key, mac, its_tenant))
        path = _path(sender, f"+{_named(recipient)}={token}")
        if path is not None:
            return path
        digest = _digest_of(key, its_recipient)
        mac = _mac(key, number, its_tenant, its_sender, b"\0" + digest)
        token = _written(number, mac, digest, _masked(key, mac, its_tenant))
        return _path(sender, f"+={token}")

    def open(self, path: str, day: date) -> NamedReturn | None:
        """Return the mail of a signed reverse-path that is younger than MAX_AGE; None: the path is
        not signed, or by others."""
        # Each `+` costs a MAC, and strangers write paths into complaints.
        folded = None if len(path) > MAX_PATH else _folded(path)
        local = "" if folded is None else folded.rpartition("@")[0]
        found = None if len(local) > _MAX_FOLDED else _SIGNED.fullmatch(local)
        octets = None if found is None else _read(found[2])
        if folded is None or found is None or octets is None:
            return None
        domain, rest, token = folded.rpartition("@")[2], found[1], found[2]
        number = _day_of(octets[0], day)
        if number is None:
            return None
        mac, behind = octets[1 : _MAC + 1], octets[_MAC + 1 :]
        for key in self._secrets:
            if rest.endswith("+"):
                digest, sender = behind[:_DIGEST], f"{rest[:-1]}@{domain}"
                tenant = _masked(key, mac, behind[_DIGEST:])
                if _fits(mac, _mac(key, number, tenant, sender, b"\0" + digest)):
                    return NamedReturn(sender, None, _tenant(tenant), token, digest, key)
                continue
            tenant = _masked(key, mac, behind)
            for at in (each.start() for each in re.finditer(r"\+", rest)):
                user, _, host = rest[at + 1 :].rpartition("=")
                sender, recipient = f"{rest[:at]}@{domain}", f"{user}@{host}"
                if _fits(mac, _mac(key, number, tenant, sender, recipient.encode())):
                    return NamedReturn(sender, recipient, _tenant(tenant), token)
        return None


def is_signed(path: str) -> bool:
    """Return whether an address has the form of a signed reverse-path, right or forged."""
    local = path.rpartition("@")[0].lower()
    return "+" in local and _SIGNED.fullmatch(local) is not None


def _folded(address: str) -> str | None:
    """Return an address as it is compared; None: it has no domain."""
    local, _, domain = address.rpartition("@")
    if not local:
        return None
    try:
        host = domain.lower() if domain.startswith("[") else ascii_domain(domain)
    except InvalidInput:
        return None
    return f"{unicodedata.normalize('NFC', unicodedata.normalize('NFC', local).casefold())}@{host}"


def _mac(key: bytes, day: int, tenant: bytes, sender: str, recipient: bytes) -> bytes:
    parts = (str(day).encode(), tenant, sender.encode(), recipient)
    written = b"".join(len(each).to_bytes(2, "big") + each for each in parts)
    return hmac.digest(key, b"postroad return path" + written, sha256)[:_MAC]


def _fits(mac: bytes, other: bytes) -> bool:
    return hmac.compare_digest(mac, other)


def _digest_of(key: bytes, recipient: str) -> bytes:
    return hmac.digest(key, b"postroad recipient" + recipient.encode(), sha256)[:_DIGEST]


def _masked(key: bytes, mac: bytes, tenant: bytes) -> bytes:
    """Return a tenant as a token has it, or the tenant of what a token has, so that a recipient
    cannot read whose mail it was."""
    mask = hmac.digest(key, b"postroad tenant" + mac, sha256)
    return bytes(a ^ b for a, b in zip(tenant, mask, strict=False))


def _tenant(octets: bytes) -> str | None:
    return octets.decode() or None  # what was signed is UTF-8


def _written(day: int, mac: bytes, digest: bytes, tenant: bytes) -> str:
    return _base32(bytes((day % _DAYS,)) + mac + digest + tenant)


def _base32(octets: bytes) -> str:
    return base64.b32encode(octets).decode().rstrip("=").lower()


def _read(token: str) -> bytes | None:
    try:
        octets = base64.b32decode(token.upper() + "=" * (-len(token) % 8))
    except binascii.Error:
        return None
    return octets if _base32(octets) == token else None  # one spelling: it makes ids


def _day_of(octet: int, today: date) -> int | None:
    """Return the day that an octet means, which is tomorrow at the latest, since clocks differ;
    None: it is too long ago."""
    tomorrow = today.toordinal() + 1
    age = (tomorrow - octet) % _DAYS
    return None if age > MAX_AGE.days + 1 else tomorrow - age
