"""Hashes of passwords, as a file of users has them, and their comparison with passwords.

A check by argon2id takes 20 ms and 19 MiB. A password that fitted is known again, for the same
hash, by an HMAC with a key that this process alone has: clients that log in for each mail would
else take more of a processor than their mail."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict

import argon2
from scramp import ScramMechanism
from scramp.utils import saslprep

from postroad.errors import InvalidInput
from postroad.intake_settings.user_file import UserRecord

_HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""Source: OWASP, Password Storage Cheat Sheet (argon2id: 19 MiB, two passes)."""

SCRAM_ROUNDS = 15_000
"""Source: RFC 7677 4 (4096 at least)."""

MAX_CHECKS = 2
"""Checks by argon2id at a time: each holds 19 MiB and a processor."""

MAX_REMEMBERED = 10_000
"""Passwords that fitted, known again."""

_SCRAM = ScramMechanism("SCRAM-SHA-256")


def record_of(name: str, password: str, tenant: str | None = None) -> UserRecord:
    """Return what a file of users keeps of a user. Raises: InvalidInput for a password that SCRAM
    cannot carry."""
    if not password:
        raise InvalidInput("the password is empty")
    try:
        prepared = saslprep(password)
    except Exception:  # the library's own, with the password in its text
        prepared = ""
    if not prepared:
        raise InvalidInput("the password has a character that SASL forbids (RFC 4013)")
    salt, stored, server, rounds = _SCRAM.make_auth_info(password, SCRAM_ROUNDS)
    scram = f"SCRAM-SHA-256${rounds}:{_text(salt)}${_text(stored)}:{_text(server)}"
    return UserRecord(name=name, scram=scram, password=_HASHER.hash(prepared), tenant=tenant)


def _text(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


class PasswordChecker:
    """Comparison of passwords with hashes, in threads."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._fitted: OrderedDict[bytes, None] = OrderedDict()
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._decoy = _HASHER.hash(secrets.token_hex(16))

    async def fits(self, user: UserRecord | None, password: str) -> bool:
        """Return True if it is the user's password. For a user that does not exist (None) the check
        takes the same time."""
        try:
            prepared = saslprep(password)
        except Exception:  # it has a character that no password has
            prepared = ""
        wanted = self._decoy if user is None else user.password
        tag = hmac.digest(self._key, f"{wanted}\0{prepared}".encode(), hashlib.sha256)
        if user is not None and tag in self._fitted:
            self._fitted.move_to_end(tag)
            return True
        async with self._checks:
            fits = await asyncio.to_thread(_fits, wanted, prepared)
        if user is None or not prepared or not fits:
            return False
        self._fitted[tag] = None
        if len(self._fitted) > MAX_REMEMBERED:
            self._fitted.popitem(last=False)
        return True


def _fits(wanted: str, password: str) -> bool:
    try:
        return _HASHER.verify(wanted, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
