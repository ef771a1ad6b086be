"""Checks logins, in the place that knows the users, and slows those who guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroad.intake.logins import exchanges
from postroad.intake.logins.dovecot import DovecotClient
from postroad.intake.logins.exchanges import OF_PASSWORDS, OF_SCRAM, OF_TOKENS, LoginMechanism
from postroad.intake.logins.guessing import Guesses
from postroad.intake.logins.passwords import PasswordChecker
from postroad.intake.logins.results import (
    MALFORMED,
    Ask,
    KnownUsers,
    LoggedInUser,
    LoginClient,
    LoginFailed,
    UsersUnavailable,
)
from postroad.intake.logins.tokens import Tokens
from postroad.intake_settings.user_file import UserRecord
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import LOGINS

_log = logger("intake")


class Authenticator:
    """Checks logins. `known` returns the users of a file, as they are now; None: no file."""

    def __init__(
        self,
        known: Callable[[], KnownUsers] | None = None,
        tokens: Tokens | None = None,
        dovecot: DovecotClient | None = None,
        offered_by_dovecot: frozenset[str] = frozenset(),
    ) -> None:
        self._known, self._tokens, self._dovecot = known, tokens, dovecot
        self._passwords = PasswordChecker()
        self._guesses = Guesses()
        self._now = asyncio.get_running_loop().time
        offered = set[str](OF_TOKENS if tokens else ())
        offered |= set(OF_SCRAM + OF_PASSWORDS) if known else offered_by_dovecot
        self.mechanisms = tuple(each for each in LoginMechanism if each in offered)
        """Those that are offered, the best one first."""

    async def log_in(
        self, name: str, initial: bytes | None, ask: Ask, client: LoginClient
    ) -> LoggedInUser:
        """Carry a login out, by one of `mechanisms`. Raises: LoginFailed, and what `ask` raises."""
        mechanism = LoginMechanism(name)
        try:
            user = await self._log_in(mechanism, initial, ask, client)
        except LoginFailed as error:
            self._failed(mechanism, error, client)
            raise
        LOGINS.labels(mechanism, "accepted").inc()
        return user

    async def by_password(self, name: str, password: str, client: LoginClient) -> LoggedInUser:
        """As `log_in`, of a client that has sent both at once."""
        message = b"\0".join((b"", name.encode(), password.encode()))
        return await self.log_in(LoginMechanism.PLAIN, message, _nothing_more, client)

    async def by_token(self, token: str, client: LoginClient) -> LoggedInUser:
        """As `log_in`, of a client that has sent a token."""
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        return await self.log_in(LoginMechanism.OAUTHBEARER, message, _nothing_more, client)

    async def _log_in(
        self, mechanism: LoginMechanism, initial: bytes | None, ask: Ask, client: LoginClient
    ) -> LoggedInUser:
        if mechanism in OF_TOKENS and self._tokens is not None:
            return await self._by_token(mechanism, initial, ask, client)
        if self._dovecot is not None:
            await self._wait(client, "")
            name = await self._dovecot.log_in(mechanism, initial, ask, client.address)
            self._guesses.succeeded(client.address, "", self._now())
            return LoggedInUser(name)
        if self._known is None:
            raise LoginFailed
        known = self._known()
        if mechanism in OF_SCRAM:
            return await self._by_scram(known, mechanism, initial, ask, client)
        read = exchanges.plain if mechanism is LoginMechanism.PLAIN else exchanges.login
        name, password = await read(initial, ask)
        await self._wait(client, name)
        found = known.users.get(name)
        if not await self._passwords.fits(found, password) or found is None:
            raise LoginFailed
        return self._accepted(client, found)

    async def _by_scram(
        self,
        known: KnownUsers,
        mechanism: LoginMechanism,
        initial: bytes | None,
        ask: Ask,
        client: LoginClient,
    ) -> LoggedInUser:
        if mechanism is LoginMechanism.SCRAM_SHA_256_PLUS and client.channel_binding is None:
            raise LoginFailed
        scram = exchanges.Scram(mechanism, known.users, known.secret, client.channel_binding)
        await scram.first(initial, ask)
        await self._wait(client, scram.name)
        return self._accepted(client, await scram.prove(ask))

    async def _by_token(
        self, mechanism: LoginMechanism, initial: bytes | None, ask: Ask, client: LoginClient
    ) -> LoggedInUser:
        assert self._tokens is not None
        read = await exchanges.token(mechanism, initial, ask)
        await self._wait(client, "")
        try:
            name = await self._tokens.user_of(read.token)
            if read.name not in (None, name):
                raise LoginFailed
        except UsersUnavailable:
            raise
        except LoginFailed:
            await ask(exchanges.token_refusal(mechanism))
            raise
        self._guesses.succeeded(client.address, "", self._now())
        return LoggedInUser(name)

    async def _wait(self, client: LoginClient, name: str) -> None:
        """Slow those who guess; without a name, by the address alone."""
        wait = self._guesses.begins(client.address, name, self._now())
        if wait:
            await asyncio.sleep(wait)

    def _accepted(self, client: LoginClient, found: UserRecord) -> LoggedInUser:
        self._guesses.succeeded(client.address, found.name, self._now())
        return LoggedInUser(found.name, found.tenant)

    def _failed(self, mechanism: LoginMechanism, error: LoginFailed, client: LoginClient) -> None:
        is_ours = isinstance(error, UsersUnavailable)
        LOGINS.labels(mechanism, "unavailable" if is_ours else "refused").inc()
        if isinstance(error, UsersUnavailable):
            _log.error("logins cannot be checked", mechanism=mechanism.value, error=error.reason)
        else:
            _log.info(
                "login refused",
                client=client.address,
                mechanism=mechanism.value,
                reply=str(error.reply),
            )


async def _nothing_more(challenge: bytes) -> bytes:
    if challenge.startswith(b"{"):  # the reason for which a token is refused
        return b""
    raise LoginFailed(MALFORMED)
