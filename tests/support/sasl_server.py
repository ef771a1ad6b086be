"""The server's side of SASL, written from the RFCs and apart from the client's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Generator
from dataclasses import dataclass

Steps = Generator[bytes, bytes, bool]
"""Yields challenges, gets responses, returns whether the login is good. The first challenge stands
only where the client sent no initial response."""


@dataclass
class SaslServer:
    """One user. `rounds`, `nonce` and `forged` make the server's side of SCRAM a wrong one."""

    username: str
    password: str
    rounds: int = 4096
    nonce: str | None = None
    """What the server sends for the nonce of both; None: as it must be."""
    forged: bytes | None = None
    """The server's signature; None: the right one."""
    leaves_out_signature: bool = False
    attempts: int = 0

    def steps(self, mechanism: str) -> Steps:
        self.attempts += 1
        return {
            "PLAIN": self._plain,
            "LOGIN": self._login,
            "XOAUTH2": self._xoauth2,
            "SCRAM-SHA-256": self._scram,
        }[mechanism]()

    def _plain(self) -> Steps:
        response = yield b""
        return response == f"\0{self.username}\0{self.password}".encode()

    def _login(self) -> Steps:
        username = yield b"Username:"
        password = yield b"Password:"
        return (username, password) == (self.username.encode(), self.password.encode())

    def _xoauth2(self) -> Steps:
        response = yield b""
        if response == f"user={self.username}\x01auth=Bearer {self.password}\x01\x01".encode():
            return True
        assert (yield json.dumps({"status": "401"}).encode()) == b""
        return False

    def _scram(self) -> Steps:
        gs2, bare = (yield b"").split(b",,", 1)
        assert gs2 == b"n"
        fields = dict(each.split("=", 1) for each in bare.decode().split(","))
        nonce = f"{fields['r']}server%!" if self.nonce is None else self.nonce
        salt = b"a salt of server"
        first = f"r={nonce},s={base64.b64encode(salt).decode()},i={self.rounds}".encode()
        final = yield first
        without, _, proof = final.rpartition(b",p=")
        assert without == b"c=biws,r=" + nonce.encode()
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, self.rounds)
        message = bare + b"," + first + b"," + without
        stored = hashlib.sha256(_mac(salted, b"Client Key")).digest()
        key = _xor(base64.b64decode(proof), _mac(stored, message))
        name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if hashlib.sha256(key).digest() != stored or name != self.username:
            yield b"e=invalid-proof"
            return False
        if self.leaves_out_signature:
            return True
        signature = _mac(_mac(salted, b"Server Key"), message)
        yield b"v=" + (base64.b64encode(signature) if self.forged is None else self.forged)
        return True


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
