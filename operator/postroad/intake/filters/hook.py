"""A program behind HTTP as a filter: a signed POST for each mail, answered by a decision in JSON.

The request is that of a webhook for delivery, with another envelope. Source: ADR 0060, ADR 0088."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path

import aiohttp
from pydantic import TypeAdapter, ValidationError

from postroad import tls
from postroad.domain.delivery.webhooks import WebhookRequest
from postroad.http_responses import ResponseTooLarge, read_body
from postroad.intake.filters.chain import most_octets
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    field_name,
    fields_and_body,
)

MAX_ANSWER = 1024 * 1024
"""Octets of an answer about a large mail. JSON takes many times its size in memory."""

_DECISIONS = TypeAdapter(FilterDecision)


class HookFilter:
    """A hook at a URL. No redirection is followed, and certificates are verified. `ca_file`: None:
    by the authorities of the machine."""

    def __init__(
        self,
        url: str,
        secrets: Sequence[bytes],
        ca_file: Path | None,
        now: Callable[[], datetime],
    ) -> None:
        self._url, self._secrets, self._ca_file, self._now = url, secrets, ca_file, now

    async def decide(self, mail: FilteredMail) -> FilterDecision:
        """Return its decision. Raises: FilterFailed, aiohttp.ClientError, TlsRefused."""
        request = WebhookRequest.signed(
            mail.name, _envelope(mail), (mail.content,), self._secrets, self._now()
        )
        connector = aiohttp.TCPConnector(ssl=tls.verifying_context(self._ca_file), force_close=True)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": "postroad", "Accept": "application/json"},
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.post(
                self._url,
                data=_pieces(request.body),
                headers=request.headers,
                allow_redirects=False,
            ) as response,
        ):
            if response.status not in (200, 204):
                raise FilterFailed(f"it answers {response.status}")
            try:
                body = await read_body(response, min(MAX_ANSWER, most_octets(mail.content)))
                return _DECISIONS.validate_json(body) if body else FilterDecision()
            except ResponseTooLarge as error:
                raise FilterFailed("its answer is too large") from error
            except ValidationError as error:
                raise FilterFailed("its answer is no decision") from error


async def _pieces(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in body:
        yield piece


def _envelope(mail: FilteredMail) -> str:
    fields, _ = fields_and_body(mail.content)
    client = mail.client
    return json.dumps(
        {
            "name": mail.name,
            "hostname": mail.hostname,
            "sender": mail.sender,
            "recipients": mail.recipients,
            "client": {"host": client.host, "address": client.address, "protocol": client.protocol},
            "tls": mail.tls,
            "user": mail.user,
            "tenant": mail.tenant,
            "size": len(mail.content),
            "headers": [
                (
                    field_name(each).decode(),
                    each.partition(b":")[2].strip().decode(errors="replace"),
                )
                for each in fields
            ],
        }
    )
