"""Sends events to a webhook: a signed POST for each, as Standard Webhooks has it.

Source: ADR 0060, 0089."""

import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp

from postroad import tls
from postroad.adapters.programs.webhook import KEPT_IDLE, Webhook, pass_over
from postroad.domain.delivery.webhooks import (
    MAX_BACKOFF,
    WebhookAddress,
    backoff_of,
    outcome_of_status,
    signed,
)
from postroad.domain.mail.mail import OutcomeKind
from postroad.errors import InvalidSettings, TlsRefused
from postroad.ports.clock import Clock
from postroad.ports.events import MAX_AT_ONCE, SinkReply, SinkVerdict

TIMEOUT = timedelta(seconds=15)
"""For one event, from the connection to the answer; what Standard Webhooks recommends at least."""

GONE = 410

_VERDICTS = {
    OutcomeKind.DELIVERED: SinkVerdict.TAKEN,
    OutcomeKind.DEFERRED: SinkVerdict.LATER,
    OutcomeKind.FAILED: SinkVerdict.REFUSED,
}


class EventWebhook:
    """`ports.events.EventSink` over HTTP. No redirection is followed. Raises: InvalidSettings for
    secrets or authorities that cannot be used."""

    def __init__(self, url: str, secrets_file: Path, ca_file: Path | None, clock: Clock) -> None:
        self._webhook = Webhook(WebhookAddress(url), secrets_file, ca_file, TIMEOUT, 0)
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._webhook.secrets()
        try:
            self._context: ssl.SSLContext = tls.verifying_context(ca_file)
        except TlsRefused as error:
            raise InvalidSettings(str(error), hint=error.hint) from error

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        now = self._clock.now()
        timestamp = str(int(now.timestamp()))
        try:
            secrets = self._webhook.secrets()
        except InvalidSettings:
            return SinkReply(SinkVerdict.LATER, "its secrets cannot be read")
        headers = {
            "Content-Type": "application/json",
            "webhook-id": event_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(
                signed(event_id, timestamp, [body], each) for each in secrets
            ),
        }
        try:
            async with self._connected().post(
                self._webhook.url.text, data=body, headers=headers, allow_redirects=False
            ) as response:
                reply = self._reply_of(response)
                await pass_over(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return SinkReply(SinkVerdict.LATER, type(error).__name__)
        return reply

    def _reply_of(self, response: aiohttp.ClientResponse) -> SinkReply:
        if response.status == GONE:  # wants no more; an administrator may see to it meanwhile
            return SinkReply(SinkVerdict.LATER, "410", MAX_BACKOFF)
        outcome = outcome_of_status(response.status, self._webhook.url.host)
        verdict, pause = _VERDICTS[outcome.kind], timedelta(0)
        if verdict is SinkVerdict.LATER:
            pause = backoff_of(response.headers.get("Retry-After"), self._clock.now())
        return SinkReply(verdict, str(response.status), pause)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_AT_ONCE,
                    ssl=self._context,
                    keepalive_timeout=KEPT_IDLE.total_seconds(),
                ),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT.total_seconds()),
                headers={"User-Agent": "postroad"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
