"""Checks logins, in the place that knows the users, and slows those who guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from postroad.intake.clients import Submission
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

Permit = Callable[[LoggedInUser], Submission]
"""Returns the rights of a user. Raises: LoginFailed, where it may not log in from its address."""


class _Login(NamedTuple):
    """One login, as a client begins it."""

    mechanism: LoginMechanism
    initial: bytes | None
    ask: Ask
    client: LoginClient
    permit: Permit


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
        self, name: str, initial: bytes | None, ask: Ask, client: LoginClient, permit: Permit
    ) -> Submission:
        """Carry a login out, by one of `mechanisms`; return what `permit` gives the user. Raises:
        LoginFailed, and what `ask` raises."""
        login = _Login(LoginMechanism(name), initial, ask, client, permit)
        try:
            submission = await self._log_in(login)
        except LoginFailed as error:
            self._failed(login, error)
            raise
        LOGINS.labels(login.mechanism, "accepted").inc()
        return submission

    def user_called(self, name: str) -> LoggedInUser:
        """Return a user that has logged in elsewhere."""
        found = None if self._known is None else self._known().users.get(name)
        return LoggedInUser(name, None if found is None else found.tenant)

    async def by_password(
        self, name: str, password: str, client: LoginClient, permit: Permit
    ) -> Submission:
        """As `log_in`, of a client that has sent both at once."""
        message = b"\0".join((b"", name.encode(), password.encode()))
        return await self.log_in(LoginMechanism.PLAIN, message, _nothing_more, client, permit)

    async def by_token(self, token: str, client: LoginClient, permit: Permit) -> Submission:
        """As `log_in`, of a client that has sent a token."""
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        return await self.log_in(LoginMechanism.OAUTHBEARER, message, _nothing_more, client, permit)

    async def _log_in(self, login: _Login) -> Submission:
        mechanism, initial, ask, client, permit = login
        if mechanism in OF_TOKENS and self._tokens is not None:
            return await self._by_token(login, self._tokens)
        if self._dovecot is not None:
            async with self._attempt(client, ""):
                name = await self._dovecot.log_in(mechanism, initial, ask, client.address)
                return permit(LoggedInUser(name))
        if self._known is None:
            raise LoginFailed
        known = self._known()
        if mechanism in OF_SCRAM:
            return await self._by_scram(login, known)
        read = exchanges.plain if mechanism is LoginMechanism.PLAIN else exchanges.login
        name, password = await read(initial, ask)
        async with self._attempt(client, name):
            found, submission = _permitted(known.users.get(name), permit)
            if not await self._passwords.fits(found, password) or submission is None:
                raise LoginFailed
            return submission

    async def _by_scram(self, login: _Login, known: KnownUsers) -> Submission:
        mechanism, initial, ask, client, permit = login
        if mechanism is LoginMechanism.SCRAM_SHA_256_PLUS and client.channel_binding is None:
            raise LoginFailed
        submission: Submission | None = None

        def find(name: str) -> UserRecord | None:
            nonlocal submission
            found, submission = _permitted(known.users.get(name), permit)
            return found

        usual = exchanges.usual_parameters(known.users)
        scram = exchanges.Scram(mechanism, find, usual, known.secret, client.channel_binding)
        await scram.first(initial, ask)
        async with self._attempt(client, scram.name):
            await scram.prove(ask)
            assert submission is not None
            return submission

    async def _by_token(self, login: _Login, tokens: Tokens) -> Submission:
        mechanism, initial, ask, client, permit = login
        read = await exchanges.token(mechanism, initial, ask)
        async with self._attempt(client, ""):
            try:
                name = await tokens.user_of(read.token)
                if read.name not in (None, name):
                    raise LoginFailed
                return permit(LoggedInUser(name))
            except UsersUnavailable:
                raise
            except LoginFailed:
                await ask(exchanges.token_refusal(mechanism))
                raise

    @asynccontextmanager
    async def _attempt(self, client: LoginClient, name: str) -> AsyncIterator[None]:
        """Slow those who guess; without a name, by the address alone. A client that leaves has
        failed. Raises: TooManyWait."""
        attempt = self._guesses.begins(client.address, name, self._now())
        has_failed = True
        try:
            if attempt.wait:
                await asyncio.sleep(attempt.wait)
            yield
            has_failed = False
        except UsersUnavailable:
            has_failed = False
            raise
        finally:
            self._guesses.ended(attempt, self._now(), has_failed=has_failed)

    def _failed(self, login: _Login, error: LoginFailed) -> None:
        mechanism = login.mechanism
        is_ours = isinstance(error, UsersUnavailable)
        LOGINS.labels(mechanism, "unavailable" if is_ours else "refused").inc()
        if isinstance(error, UsersUnavailable):
            _log.error("logins cannot be checked", mechanism=mechanism.value, error=error.reason)
        else:
            _log.info(
                "login refused",
                client=login.client.address,
                mechanism=mechanism.value,
                reply=str(error.reply),
            )


def _permitted(
    found: UserRecord | None, permit: Permit
) -> tuple[UserRecord | None, Submission | None]:
    """Return a user with its rights; none for a user who may not log in from its address, before
    the password is looked at: the reply would else show that it is the right one."""
    if found is None:
        return None, None
    try:
        return found, permit(LoggedInUser(found.name, found.tenant))
    except LoginFailed:
        return None, None


async def _nothing_more(challenge: bytes) -> bytes:
    if challenge.startswith(b"{"):  # the reason for which a token is refused
        return b""
    raise LoginFailed(MALFORMED)
