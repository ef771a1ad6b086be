"""Logins that a Dovecot checks, by the protocol of its authentication service for clients.

SASL is between the client and Dovecot: the intake hands on what each sends. So all places that
Dovecot asks (LDAP, SQL, PAM, passwd) can know the users. A connection serves one login.
Source: Dovecot, Authentication Protocol."""

import asyncio
import os
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from postroad.intake.logins.exchanges import MAX_NAME
from postroad.intake.logins.results import Ask, LoginFailed, UsersUnavailable

MAJOR = 1
ANSWER_SECONDS = 30.0
"""Dovecot itself delays the answer to a wrong password, by 2 s at first and up to 15."""

MAX_LINE = 64 * 1024


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    mechanisms: frozenset[str]


class DovecotClient:
    """The authentication service behind one socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def mechanisms(self) -> frozenset[str]:
        """Return the mechanisms that it offers. Raises: UsersUnavailable."""
        async with self._service() as service:
            return service.mechanisms

    async def log_in(self, mechanism: str, initial: bytes | None, ask: Ask, address: str) -> str:
        """Return the user who has logged in, by the name that Dovecot gives. Raises: LoginFailed,
        UsersUnavailable."""
        async with self._service() as service:
            words = ["AUTH", "1", mechanism, "service=smtp", "secured", f"rip={address}"]
            if initial is not None:  # last of all (its documentation)
                words.append(f"resp={_text(initial)}")
            _send(service, *words)
            while True:
                verb, number, *rest = await _line(service)
                if number != "1":
                    continue
                if verb == "OK":
                    return _user(rest)
                if verb == "FAIL":
                    raise UsersUnavailable("a lookup failed") if "temp" in rest else LoginFailed
                if verb != "CONT":
                    raise UsersUnavailable(f"an unknown answer: {verb[:20]}")
                # Outside the time that Dovecot has: the client takes its own.
                response = await ask(_octets(rest[0] if rest else ""))
                _send(service, "CONT", "1", _text(response))

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[_Connection]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE)
        except OSError as error:
            raise UsersUnavailable(f"Dovecot's socket: {error.strerror}") from error
        try:
            service = _Connection(reader, writer, frozenset())
            _send(service, "VERSION", str(MAJOR), "2")
            _send(service, "CPID", str(os.getpid()))
            yield service._replace(mechanisms=await _greeting(service))
        except OSError as error:
            raise UsersUnavailable("Dovecot closed the connection") from error
        finally:
            writer.transport.abort()


async def _greeting(service: _Connection) -> frozenset[str]:
    found = set[str]()
    while True:
        verb, *rest = await _line(service)
        if verb == "VERSION" and rest[:1] != [str(MAJOR)]:
            raise UsersUnavailable("Dovecot has another version of the protocol")
        if verb == "MECH" and rest:
            found.add(rest[0].upper())
        if verb == "DONE":
            return frozenset(found)


def _send(service: _Connection, *words: str) -> None:
    service.writer.write("\t".join(words).encode() + b"\n")


async def _line(service: _Connection) -> list[str]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await service.reader.readuntil(b"\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise UsersUnavailable(f"Dovecot does not answer: {type(error).__name__}") from error
    words = line[:-1].decode("utf-8", "replace").split("\t")
    return words if len(words) > 1 else [*words, ""]


def _user(parameters: list[str]) -> str:
    for each in parameters:
        name, _, value = each.partition("=")
        if name == "user" and 0 < len(value) <= MAX_NAME and value.isprintable():
            return value
    raise UsersUnavailable("Dovecot names no user")


def _text(octets: bytes) -> str:
    return b64encode(octets).decode()


def _octets(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NoBase64:
        raise UsersUnavailable("Dovecot's challenge is no base64") from None
