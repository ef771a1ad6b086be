"""SASL mechanisms at the server's side: challenges out, responses in.

Source: RFC 4422; RFC 4616 (PLAIN); RFC 5802, 7677 (SCRAM-SHA-256); RFC 5929 4
(channel binding); RFC 7628 (OAUTHBEARER). LOGIN and XOAUTH2 are in no standard, and are as clients
have them."""

import hashlib
import hmac
import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from scramp import ScramException, ScramMechanism
from scramp.utils import ServerError

from postroad.intake.logins.results import BINDING_WRONG, MALFORMED, WRONG, Ask, LoginFailed
from postroad.intake_settings.user_file import UserRecord


class LoginMechanism(StrEnum):
    """Way in which a client shows who it is."""

    SCRAM_SHA_256_PLUS = "SCRAM-SHA-256-PLUS"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    OAUTHBEARER = "OAUTHBEARER"
    XOAUTH2 = "XOAUTH2"
    PLAIN = "PLAIN"
    LOGIN = "LOGIN"


OF_PASSWORDS = (LoginMechanism.PLAIN, LoginMechanism.LOGIN)
OF_SCRAM = (LoginMechanism.SCRAM_SHA_256_PLUS, LoginMechanism.SCRAM_SHA_256)
OF_TOKENS = (LoginMechanism.OAUTHBEARER, LoginMechanism.XOAUTH2)

MIN_ROUNDS = 4096
"""Of SCRAM's hash. Source: RFC 7677 4."""

MAX_NAME = 256
"""Characters of a user's name."""


class Password(NamedTuple):
    """A user's name with the password that a client sent."""

    name: str
    password: str


class Token(NamedTuple):
    """An access token, with the user's name beside it; None: the token alone names the user."""

    name: str | None
    token: str


async def plain(initial: bytes | None, ask: Ask) -> Password:
    """Read PLAIN. Raises: LoginFailed; so for a login on behalf of another user."""
    response = await ask(b"") if initial is None else initial
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise LoginFailed(MALFORMED)
    behalf, name, password = map(_text, parts)
    if behalf not in ("", name):
        raise LoginFailed
    return Password(_name(name), password)


async def login(initial: bytes | None, ask: Ask) -> Password:
    """Read LOGIN. Raises: LoginFailed."""
    name = await ask(b"Username:") if initial is None else initial
    password = await ask(b"Password:")
    return Password(_name(_text(name)), _text(password))


_FIELDS = re.compile(r"(?:n,(?:a=(?P<name>[^,\x01]*))?,)?\x01(?P<pairs>(?:[^\x01]*\x01)*)\x01?")
_XOAUTH2 = re.compile(r"user=(?P<name>[^\x01]*)\x01(?P<pairs>(?:[^\x01]*\x01)*)\x01?")


async def token(mechanism: LoginMechanism, initial: bytes | None, ask: Ask) -> Token:
    """Read OAUTHBEARER or XOAUTH2. Raises: LoginFailed."""
    response = _text(await ask(b"") if initial is None else initial)
    form = _XOAUTH2 if mechanism is LoginMechanism.XOAUTH2 else _FIELDS
    found = form.fullmatch(response)
    if found is None:
        raise LoginFailed(MALFORMED)
    pairs = dict(each.partition("=")[::2] for each in found["pairs"].split("\x01") if each)
    scheme, _, value = pairs.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise LoginFailed(MALFORMED)
    name = (found["name"] or "").replace("=2C", ",").replace("=3D", "=")
    return Token(_name(name) if name else None, value.strip())


def token_refusal(mechanism: LoginMechanism) -> bytes:
    """Return the challenge that says why a token is refused; the client answers it before it gets
    the reply. Source: RFC 7628 3.2.2."""
    status = "401" if mechanism is LoginMechanism.XOAUTH2 else "invalid_token"
    return json.dumps({"status": status, "schemes": "bearer"}).encode()


_REPLIES = {
    ServerError.INVALID_PROOF: WRONG,
    ServerError.CHANNEL_BINDINGS_DONT_MATCH: BINDING_WRONG,
    ServerError.SERVER_DOES_SUPPORT_CHANNEL_BINDING: BINDING_WRONG,
    ServerError.UNSUPPORTED_CHANNEL_BINDING_TYPE: BINDING_WRONG,
    ServerError.CHANNEL_BINDING_NOT_SUPPORTED: BINDING_WRONG,
}


class ScramParameters(NamedTuple):
    """Values that the server tells a client before the client has shown anything."""

    rounds: int
    salt_octets: int


class Scram:
    """One login by SCRAM-SHA-256. `usual` and `secret` are for names without a user."""

    def __init__(
        self,
        mechanism: LoginMechanism,
        find: Callable[[str], UserRecord | None],
        usual: ScramParameters,
        secret: bytes,
        channel_binding: str | None,
    ) -> None:
        binding = None if channel_binding is None else ("tls-server-end-point", channel_binding)
        self._find, self._usual, self._secret = find, usual, secret
        self._user: UserRecord | None = None
        self._server = ScramMechanism(mechanism.value).make_server(self._verifier, binding)
        self.name = ""
        """The user's name, once the client has sent it."""

    async def first(self, initial: bytes | None, ask: Ask) -> None:
        """Read the client's first message. Raises: LoginFailed."""
        self._take(self._server.set_client_first, await ask(b"") if initial is None else initial)

    async def prove(self, ask: Ask) -> UserRecord:
        """Return the user, once the client has shown that it knows the password, and was shown that
        this server knows it, too. Raises: LoginFailed."""
        final = await ask(self._server.get_server_first().encode())
        self._take(self._server.set_client_final, final)
        user = self._user
        if user is None:
            raise LoginFailed
        # RFC 4954 4: data that ends a login goes in a challenge, which the client answers empty.
        if await ask(self._server.get_server_final().encode()):
            raise LoginFailed(MALFORMED)
        return user

    def _take(self, step: Callable[[str], None], message: bytes) -> None:
        try:
            step(_text(message))
        except ScramException as error:
            raise LoginFailed(_REPLIES.get(error.server_error, MALFORMED)) from None

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.name = _name(str(name))
        user = self._user = self._find(self.name)
        if user is None:
            made = hmac.digest(self._secret, self.name.encode(), hashlib.sha512)
            return made[: self._usual.salt_octets], made, made, self._usual.rounds
        rounds, salt, keys = re.split(r"[$:]", user.scram, maxsplit=3)[1:]
        stored, _, server = keys.partition(":")
        return b64decode(salt), b64decode(stored), b64decode(server), int(rounds)


def usual_parameters(users: Mapping[str, UserRecord]) -> ScramParameters:
    """Return the parameters of some user: those of a name without a user must not differ, else they
    would tell which names have one."""
    for each in users.values():
        rounds, salt, _ = re.split(r"[$:]", each.scram, maxsplit=3)[1:]
        return ScramParameters(int(rounds), len(b64decode(salt)))
    return ScramParameters(MIN_ROUNDS, 32)


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise LoginFailed(MALFORMED) from None


def _name(text: str) -> str:
    """Return a user's name. Raises: LoginFailed for one that no user can have: a line end in it
    would stand in logs."""
    if not text or len(text) > MAX_NAME or re.search(r"[\x00-\x20\x7f]", text):
        raise LoginFailed
    return text
