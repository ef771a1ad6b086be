"""Logs in at a next hop: AUTH, never where the password could be read on the way.

A login that fails defers mail, and is not tried again for a while: a next hop locks a user out
after a few wrong passwords. Source: RFC 4954."""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Mapping
from datetime import timedelta

from postroad.domain.smtp.next_hops import HopLogin, NextHop
from postroad.domain.smtp.replies import Reply
from postroad.domain.smtp.sasl_client import LoginRefused, SaslDialogue, chosen, dialogue
from postroad.errors import CredentialsMissing
from postroad.logins import Login, LoginFolder
from postroad.smtp.client.client import Exchange, SessionRefused
from postroad.smtp.client.connecting import Timeouts
from postroad.telemetry.logs import logger

_log = logger("worker")

NO_LOGIN = "451 4.7.0 the files of the login at the next hop cannot be read"

REFUSED_FOR = timedelta(minutes=5)
"""Time for which a login that was refused is not tried again; a renewed one is tried at once."""

MAX_INITIAL = 480
"""Octets of an initial response that stand behind AUTH, whose line has 512 at most. Source:
RFC 4954 4."""

MAX_CHALLENGES = 10


class Authentication:
    """The login at one next hop, for all connections to it. Needs a running event loop."""

    def __init__(self, login: HopLogin) -> None:
        self._terms = login
        self._folder = LoginFolder(login.folder)
        self._one = asyncio.Lock()
        """Held for a login that has not succeeded yet, so that many connections try it once."""
        self._good: Login | None = None
        self._refused: tuple[Login, float, str] | None = None
        """The login that was refused, the loop's time until which it is not tried, and the text."""

    def check(self) -> None:
        """Raise SessionRefused where a connection would not get beyond the login."""
        self._read()

    async def run(
        self,
        exchange: Exchange,
        extensions: Mapping[str, str],
        timeouts: Timeouts,
        *,
        is_verified: bool,
    ) -> None:
        """Log in. `is_verified`: the connection is encrypted, to a server whose certificate was
        verified. Raises: SessionRefused, WireError."""
        if not (is_verified or self._terms.is_sent_unverified):
            raise SessionRefused(
                "451 4.7.0 no login is sent to this next hop: its certificate was not verified"
            )
        if self._read() == self._good:
            await self._log_in(exchange, extensions, timeouts, self._good)
            return
        async with self._one:
            login = self._read()
            await self._log_in(exchange, extensions, timeouts, login)
            self._good, self._refused = login, None

    def _read(self) -> Login:
        try:
            login = self._folder.read()
        except CredentialsMissing as error:
            _log.warning("a login cannot be read", error=error.explain())
            raise SessionRefused(NO_LOGIN) from error  # senders read it, who learn no path
        if self._refused is not None:
            refused, until, text = self._refused
            if login == refused and asyncio.get_running_loop().time() < until:
                raise SessionRefused(text)
        return login

    async def _log_in(
        self, exchange: Exchange, extensions: Mapping[str, str], timeouts: Timeouts, login: Login
    ) -> None:
        offered = extensions.get("AUTH", "").split()
        mechanism = chosen(offered, self._terms.mechanism)
        if mechanism is None:
            wanted = self._terms.mechanism or "a login that is known here"
            raise SessionRefused(
                f"451 4.7.0 the next hop offers {' '.join(offered) or 'no login'}, not {wanted}"
            )
        try:
            steps = dialogue(mechanism, login.username, login.password, secrets.token_bytes)
        except LoginRefused as error:
            raise SessionRefused(f"451 4.7.0 {error}") from error
        try:
            await _carry_out(exchange, timeouts.command, mechanism, steps)
        except _Refused as error:
            self._good = None
            text = f"451 4.7.8 the next hop refused the login: {error}"
            if error.is_final:
                now = asyncio.get_running_loop().time()
                self._refused = login, now + REFUSED_FOR.total_seconds(), text
            raise SessionRefused(text) from None


def authentication_at(next_hop: NextHop) -> Authentication | None:
    """Return the login at a next hop, None where it needs none."""
    return None if next_hop.login is None else Authentication(next_hop.login)


class _Refused(Exception):
    """The login did not succeed. `is_final`: the same one will not, either."""

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


async def _carry_out(
    exchange: Exchange, timeout: timedelta, mechanism: str, steps: SaslDialogue
) -> None:
    """Send AUTH and the responses to its challenges. Raises: _Refused, WireError."""
    initial = steps.initial
    command = f"AUTH {mechanism}".encode()
    encoded = base64.b64encode(initial or b"")
    is_sent_at_once = initial is not None and len(encoded) <= MAX_INITIAL
    reply = await exchange.ask(
        command + (b" " + encoded if is_sent_at_once else b"") + b"\r\n", timeout
    )
    is_begun = initial is None or is_sent_at_once
    for _ in range(MAX_CHALLENGES):
        if reply.code != 334:
            break
        try:
            # In a thread: SCRAM's hash takes up to a second.
            answer = await asyncio.to_thread(steps.respond, _challenge(reply)) if is_begun else None
        except LoginRefused as error:
            await exchange.ask(b"*\r\n", timeout)
            raise _Refused(str(error), is_final=True) from None
        is_begun = True
        response = encoded if answer is None else base64.b64encode(answer)
        reply = await exchange.ask(response + b"\r\n", timeout)
    if not reply.is_positive:
        raise _Refused(str(reply), is_final=reply.is_permanent)
    try:
        steps.check_success()
    except LoginRefused as error:
        raise _Refused(str(error), is_final=True) from None


def _challenge(reply: Reply) -> bytes:
    """Raises: LoginRefused."""
    try:
        return base64.b64decode(reply.lines[0].strip(), validate=True)
    except (binascii.Error, ValueError):
        raise LoginRefused("the server's challenge is not in base64") from None
