"""Hands mail to a webhook: a signed POST for each mail, over connections that stay open.

No redirection is followed, as it would take the mail to a server that the administrator did not
name. Certificates are verified."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import aiohttp

from postroad import tls
from postroad.adapters.programs.function import (
    BROKEN_OFF,
    ProgramResponse,
    SerialConnection,
)
from postroad.contents import MemoryBudget
from postroad.domain.delivery.webhooks import (
    WebhookAddress,
    WebhookRequest,
    backoff_of,
    outcome_of_status,
    read_secrets,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.errors import InvalidInput, InvalidSettings, TlsRefused
from postroad.handling import NotReached
from postroad.ports.clock import Clock
from postroad.ports.delivery import BeforeEnd, OnEvent, Transmission, at_once
from postroad.routing.routes import ResolvedHop
from postroad.telemetry.logs import logger

_log = logger("worker")

UNSIGNABLE = "451 4.3.5 the secrets of the webhook cannot be used"
TOO_EARLY = "451 4.3.0 the webhook answered before it had the whole mail"

MAX_CONNECT = timedelta(seconds=30)

KEPT_IDLE = timedelta(minutes=2)
"""Longer than the scheduler leaves a connection without a mail."""

MAX_ANSWER = 64 * 1024
"""Octets of an answer that are read, and passed over, so that its connection can be used again."""

MAX_PASSING = timedelta(seconds=2)
"""For what is passed over: the outcome is not recorded before."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. `secrets_file`: see `read_secrets`; it is read for each mail, so that a secret can
    be replaced without a restart. `timeout`: for one mail, from the connection to the answer."""

    url: WebhookAddress
    secrets_file: Path
    ca_file: Path | None
    timeout: timedelta
    largest_bytes: int

    def secrets(self) -> tuple[bytes, ...]:
        """Read the secrets. Raises: InvalidSettings."""
        try:
            return read_secrets(self.secrets_file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(
                f"the secrets of the webhook, {self.secrets_file}, cannot be read: "
                f"{type(error).__name__}"
            ) from error
        except InvalidInput as error:
            raise InvalidSettings(f"{self.secrets_file}: {error}") from error


class WebhookConnector:
    """Opens connections to one webhook, whatever the next hop. `room`: for contents in memory.
    Raises: InvalidSettings for authorities that cannot be read."""

    def __init__(self, webhook: Webhook, clock: Clock, room: MemoryBudget) -> None:
        self._webhook, self._clock, self._room = webhook, clock, room
        self._context()

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SerialConnection:
        """Begin to open a connection (see the port); it opens with its first mail."""
        posting = _Posting(self._webhook, self._context(), self._clock)
        most = self._webhook.largest_bytes
        return SerialConnection(posting, self._room, most, on_event, before_end)

    def _context(self) -> ssl.SSLContext:
        """Raises: InvalidSettings."""
        try:
            return tls.verifying_context(self._webhook.ca_file)
        except TlsRefused as error:
            raise InvalidSettings(str(error), hint=error.hint) from error


class _Posting:
    """One connection to the webhook, which is opened again where the server closed it."""

    def __init__(self, webhook: Webhook, context: ssl.SSLContext, clock: Clock) -> None:
        self._webhook, self._clock = webhook, clock
        self._context = context
        self._session: aiohttp.ClientSession | None = None
        self._opened: Callable[[], None] = lambda: None
        self._is_connected = self._is_fresh = self._is_sent = False

    async def hand_over(
        self, job: Transmission, content: Sequence[bytes], opened: Callable[[], None]
    ) -> ProgramResponse:
        """Post one mail (see `Handing`)."""
        self._opened = opened
        self._is_connected = self._is_fresh = self._is_sent = False
        try:
            secrets = self._webhook.secrets()
        except InvalidSettings as error:
            _log.warning("a webhook's secrets cannot be used", error=error.explain())
            raise NotReached(UNSIGNABLE) from error  # senders read it, who learn no path
        request = WebhookRequest.of(job.mail_id, job.envelope, content, secrets, self._clock.now())
        try:
            return await self._post(job, request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not self._is_connected:
                raise NotReached(self._why_not_reached(error)) from error
            if not self._is_fresh and isinstance(error, aiohttp.ServerDisconnectedError | OSError):
                # The server had closed what was open since the mail before. The mail goes again at
                # once, with its key.
                raise NotReached("451 4.4.2 the webhook closed the connection") from error
            text = BROKEN_OFF if self._is_sent else "451 4.4.2 the webhook broke off"
            outcome = Outcome.deferred(text)
            return ProgramResponse(dict.fromkeys(job.envelope.recipients, outcome), ending=text)

    async def _post(self, job: Transmission, request: WebhookRequest) -> ProgramResponse:
        async with self._connected().post(
            self._webhook.url.text,
            data=self._pieces(request.body),
            headers=request.headers,
            allow_redirects=False,
        ) as response:
            outcome = outcome_of_status(response.status, self._webhook.url.host)
            if outcome.kind is OutcomeKind.DELIVERED and not self._is_sent:
                outcome = Outcome.deferred(f"{TOO_EARLY}: {response.status}")
            backoff = timedelta(0)
            if response.status in (429, 503):
                backoff = backoff_of(response.headers.get("Retry-After"), self._clock.now())
            await pass_over(response)
        return ProgramResponse(
            dict.fromkeys(job.envelope.recipients, outcome),
            backoff,
            outcome.text if backoff else None,
        )

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(self._created)
            trace.on_connection_reuseconn.append(self._reused)
            total = self._webhook.timeout
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=1, ssl=self._context, keepalive_timeout=KEPT_IDLE.total_seconds()
                ),
                timeout=aiohttp.ClientTimeout(
                    total=total.total_seconds(),
                    sock_connect=min(total, MAX_CONNECT).total_seconds(),
                ),
                headers={"User-Agent": "postroad", "Accept": "*/*"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session

    async def _created(self, *_: SimpleNamespace | object) -> None:
        self._is_connected = self._is_fresh = True
        self._opened()

    async def _reused(self, *_: SimpleNamespace | object) -> None:
        self._is_connected = True

    async def _pieces(self, body: Iterable[bytes]) -> AsyncIterator[bytes]:
        *before, last = body
        for piece in before:
            yield piece
        self._is_sent = True  # before it, since the answer may come while it is being sent
        yield last

    def _why_not_reached(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"451 4.4.1 no connection to {self._webhook.url.origin} in time"
        refused = tls.refusal("the webhook", str(error))
        if refused is not None:
            return f"451 4.7.5 {refused.explain()}"
        reason = getattr(error, "os_error", error)
        return f"451 4.4.1 no connection to {self._webhook.url.origin}: {type(reason).__name__}"

    async def close(self) -> None:
        """Close the connection (see `Handing`)."""
        if self._session is not None:
            await self._session.close()


async def pass_over(response: aiohttp.ClientResponse) -> None:
    """Read an answer to its end, so that its connection can be used again; a long one, a slow one,
    or one that breaks off, ends the connection. So does a cancellation: the status has decided, and
    the mail would go again if its outcome were dropped."""
    left = MAX_ANSWER
    try:
        async with asyncio.timeout(MAX_PASSING.total_seconds()):
            async for chunk in response.content.iter_any():
                left -= len(chunk)
                if left < 0:
                    return response.close()
    except (TimeoutError, aiohttp.ClientError, OSError, asyncio.CancelledError):
        response.close()
