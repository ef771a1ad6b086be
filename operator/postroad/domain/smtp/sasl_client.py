"""The client's side of SASL mechanisms: challenges in, responses out, without any line of SMTP.

LOGIN and XOAUTH2 are in no standard, and are as servers have them.
Source: RFC 4422; RFC 4616 (PLAIN); RFC 5802, 7677 (SCRAM-SHA-256)."""

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Protocol

from postroad.errors import InvalidInput

MIN_ROUNDS, MAX_ROUNDS = 4096, 1_000_000
"""Of SCRAM's hash. A server that asks for fewer would have a hash of the password that is soon
guessed; more would keep a processor busy. Source: RFC 7677 4."""


class Mechanism(StrEnum):
    """Way in which a client shows who it is. XOAUTH2: the password is an access token."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    PLAIN = "PLAIN"
    LOGIN = "LOGIN"
    XOAUTH2 = "XOAUTH2"


PREFERRED = (Mechanism.SCRAM_SHA_256, Mechanism.PLAIN, Mechanism.LOGIN)
"""Those that a client chooses by itself, the best one first."""


class LoginRefused(InvalidInput):
    """The login cannot go on: a server's challenge is wrong, or it did not show that it knows the
    password. The text has nothing secret."""


class SaslDialogue(Protocol):
    """One login."""

    initial: bytes | None
    """Response that a client says first; None: the server begins."""

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to the server's next challenge. Raises: LoginRefused."""

    def check_success(self) -> None:
        """Raise LoginRefused where the server calls the login successful too early."""


def chosen(offered: Collection[str], wanted: Mechanism | None) -> Mechanism | None:
    """Return the mechanism to log in by, None where the server offers none that may be used.

    >>> chosen({"LOGIN", "PLAIN", "CRAM-MD5"}, None)
    <Mechanism.PLAIN: 'PLAIN'>
    """
    names = {each.upper() for each in offered}
    return next((each for each in ((wanted,) if wanted else PREFERRED) if each in names), None)


def dialogue(
    mechanism: Mechanism, username: str, password: str, random: Callable[[int], bytes]
) -> SaslDialogue:
    """Begin a login. `random` returns so many octets that cannot be foreseen. Raises:
    LoginRefused for a name or a password that the mechanism cannot carry."""
    if "\0" in username + password or not (username and password):
        raise LoginRefused("user name and password must not be empty, or hold NUL")
    if mechanism is Mechanism.SCRAM_SHA_256:
        return _Scram(username, password, base64.b64encode(random(24)))
    if mechanism is Mechanism.LOGIN:
        return _InTurn(None, (username.encode(), password.encode()))
    if mechanism is Mechanism.XOAUTH2:
        if "\1" in username + password:
            raise LoginRefused("a user name or a token of XOAUTH2 has no octet 1")
        # A refusal is a challenge with the reason, which an empty response ends.
        return _InTurn(f"user={username}\1auth=Bearer {password}\1\1".encode(), (b"",))
    return _InTurn(f"\0{username}\0{password}".encode())


class _InTurn:
    """Answers that depend on no challenge."""

    def __init__(self, initial: bytes | None, responses: tuple[bytes, ...] = ()) -> None:
        self.initial = initial
        self._responses = list(responses)

    def respond(self, challenge: bytes) -> bytes:
        if not self._responses:
            raise LoginRefused("the server asks for more than the mechanism has")
        return self._responses.pop(0)

    def check_success(self) -> None:
        """Nothing is to be shown by the server."""


_SERVER_FIRST = re.compile(rb"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?")


class _Scram:
    """SCRAM-SHA-256 without channel binding. The second response takes up to a second of a
    processor, without the interpreter's lock."""

    def __init__(self, username: str, password: str, nonce: bytes) -> None:
        name = _prepared(username).replace("=", "=3D").replace(",", "=2C")
        self._password = _prepared(password).encode()
        self._nonce = nonce
        self._first = f"n={name},r=".encode() + nonce
        self.initial: bytes | None = b"n,," + self._first
        self._signature: bytes | None = None
        self._is_proven = False

    def respond(self, challenge: bytes) -> bytes:
        if self._signature is None:
            return self._prove(challenge)
        if self._is_proven:
            raise LoginRefused("the server asks for more than the mechanism has")
        self._check(challenge)
        return b""

    def check_success(self) -> None:
        if not self._is_proven:
            raise LoginRefused("the server did not show that it knows the password")

    def _prove(self, challenge: bytes) -> bytes:
        found = _SERVER_FIRST.fullmatch(challenge)
        if found is None or not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise LoginRefused("the server's first message of SCRAM is wrong")
        rounds = int(found[3])
        if not MIN_ROUNDS <= rounds <= MAX_ROUNDS:
            raise LoginRefused(
                f"the server asks for {rounds} rounds, not {MIN_ROUNDS} to {MAX_ROUNDS}"
            )
        try:
            salt = base64.b64decode(found[2], validate=True)
        except binascii.Error:
            raise LoginRefused("the server's salt of SCRAM is wrong") from None
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, rounds)
        final = b"c=biws,r=" + found[1]
        signed = b",".join((self._first, challenge, final))
        key = _hmac(salted, b"Client Key")
        client = _hmac(hashlib.sha256(key).digest(), signed)
        self._signature = _hmac(_hmac(salted, b"Server Key"), signed)
        proof = bytes(one ^ other for one, other in zip(key, client, strict=True))
        return final + b",p=" + base64.b64encode(proof)

    def _check(self, challenge: bytes) -> None:
        assert self._signature is not None
        if challenge.startswith(b"e="):
            raise LoginRefused("the server refuses the login by SCRAM")
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(challenge.partition(b",")[0], expected):
            raise LoginRefused("the server's signature of SCRAM is wrong")
        self._is_proven = True


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _prepared(text: str) -> str:
    """Return a name or a password by SASLprep. Raises: LoginRefused. Source: RFC 4013 2."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared or any(table(char) for char in prepared for table in _PROHIBITED):
        raise LoginRefused("the user name or the password has a character that SCRAM forbids")
    return prepared


_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
