"""Requests to a webhook, and the meaning of its answers. Pure.

A request is signed as Standard Webhooks has it, so that its receivers need no code of ours: HMAC
over id, time and body. The body is multipart/form-data, and has all that the mail is about, so that
the signature covers the envelope too.
Source: RFC 7578; RFC 9110 10.2.3, 15; ADR 0060."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import urlsplit
from uuid import UUID

from postroad.domain.mail.envelope_documents import handing_key
from postroad.domain.mail.mail import (
    TRACEPARENT,
    WELL_FORMED_TRACEPARENT,
    Envelope,
    Outcome,
    Responder,
)
from postroad.errors import InvalidInput

SECRET_PREFIX = "whsec_"  # noqa: S105 - of secrets, and none itself
MIN_SECRET, MAX_SECRETS = 24, 4
"""Octets of a secret; secrets that are valid at the same time."""

MAX_BACKOFF = timedelta(hours=1)
"""That `Retry-After` can ask for."""

_UNPROVEN = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
)
_ELSEWHERE = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.MISDIRECTED_REQUEST,
)
"""A proxy answers so while the program behind it is replaced."""

_LATER = {
    HTTPStatus.REQUEST_TIMEOUT: "4.4.2",
    HTTPStatus.TOO_EARLY: "4.3.0",
    HTTPStatus.TOO_MANY_REQUESTS: "4.5.3",
    **dict.fromkeys((*_UNPROVEN, *_ELSEWHERE), "4.3.5"),
}
"""Refusals that are about the moment, the secret that both sides share, or the URL: not about the
mail."""


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Address to which requests go. Its repr and `origin` have no path and no query, which may be
    secret. Raises: InvalidInput."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.text)
            is_sound = (
                self.text.isascii()
                and self.text.isprintable()
                and " " not in self.text
                and parts.scheme in ("http", "https")
                and bool(parts.hostname)
                and parts.port != 0
            )
        except ValueError:
            is_sound = False
        if not is_sound:
            raise InvalidInput("a webhook has a URL such as https://app.example.org/mail")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise InvalidInput(
                "the URL of a webhook has no login and no fragment: requests are signed instead"
            )

    @property
    def host(self) -> str:
        return urlsplit(self.text).hostname or ""

    @property
    def name(self) -> str:
        """The name of what mail is handed to."""
        return f"webhook {self.host}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.text)
        return f"{parts.scheme}://{parts.netloc}"


def read_secrets(text: str) -> tuple[bytes, ...]:
    """Read secrets, one a line, the one that is used first at the top: `whsec_` and base64, or any
    text. Raises: InvalidInput, without a secret in its text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MAX_SECRETS:
        raise InvalidInput(f"there are {len(lines)} secrets: write 1 to {MAX_SECRETS}, one a line")
    return tuple(map(_secret, lines))


def _secret(line: str) -> bytes:
    try:
        given = line.removeprefix(SECRET_PREFIX)
        octets = line.encode() if given == line else base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"a secret that begins with {SECRET_PREFIX} goes on in base64") from None
    if len(octets) < MIN_SECRET:
        raise InvalidInput(f"a secret has {MIN_SECRET} octets at least")
    return octets


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One request: its headers, and its body in pieces."""

    headers: dict[str, str]
    body: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        mail_id: UUID,
        envelope: Envelope,
        content: Sequence[bytes],
        secrets: Sequence[bytes],
        now: datetime,
    ) -> WebhookRequest:
        """Return the request for a mail. The same mail and recipients have the same id, so that a
        receiver can pass over what it has."""
        key = handing_key(mail_id, envelope.recipients)
        made = cls.signed(key, _envelope(mail_id, envelope), content, secrets, now)
        headers = {"Idempotency-Key": f'"{key}"', **made.headers}
        parent = envelope.attributes.get(TRACEPARENT, "")
        if WELL_FORMED_TRACEPARENT.fullmatch(parent):
            headers["traceparent"] = parent
        return cls(headers, made.body)

    @classmethod
    def signed(
        cls,
        key: str,
        envelope: str,
        content: Sequence[bytes],
        secrets: Sequence[bytes],
        now: datetime,
    ) -> WebhookRequest:
        """Return the request with an id, an envelope in JSON, and a mail."""
        boundary = hmac.new(secrets[0], key.encode(), sha256).hexdigest()  # in no mail, then
        head = (
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="envelope"\r\n'
            "Content-Type: application/json\r\n\r\n"
            f"{envelope}\r\n"
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="message"; filename="message.eml"\r\n'
            "Content-Type: message/rfc822\r\n\r\n"
        )
        body = (head.encode(), *content, f"\r\n--{boundary}--\r\n".encode())
        timestamp = str(int(now.timestamp()))
        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(sum(map(len, body))),
            "webhook-id": key,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(signed(key, timestamp, body, each) for each in secrets),
        }
        return cls(headers, body)


def signed(key: str, timestamp: str, body: Iterable[bytes], secret: bytes) -> str:
    """Return a signature.

    >>> signed("a", "1", [b"{}"], b"k" * 24)
    'v1,A4Z0Dxwi88o6+BU5VBkwkhIro8S4CTGiNo1lWHvGV7c='
    """
    found = hmac.new(secret, f"{key}.{timestamp}.".encode(), sha256)
    for piece in body:
        found.update(piece)
    return f"v1,{base64.b64encode(found.digest()).decode()}"


def _envelope(mail_id: UUID, envelope: Envelope) -> str:
    return json.dumps(
        {
            "mail_id": str(mail_id),
            "sender": envelope.sender,
            "recipients": envelope.recipients,
            "priority": envelope.priority,
            "tenant": envelope.tenant,
        }
    )


def outcome_of_status(status: int, host: str) -> Outcome:
    """Return what the status of an answer means for all recipients of a request."""
    responder = Responder(host, is_final=True)
    words = f"the webhook answered {status}{_phrase(status)}"
    if 200 <= status < 300:
        outcome = Outcome.delivered(f"250 2.0.0 {words}")
    elif status in _LATER:
        outcome = Outcome.deferred(f"451 {_LATER[HTTPStatus(status)]} {words}")
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        outcome = Outcome.failed(f"552 5.3.4 {words}")
    elif 400 <= status < 500:
        outcome = Outcome.failed(f"554 5.0.0 {words}")
    elif 300 <= status < 400:
        outcome = Outcome.deferred(f"451 4.3.5 {words}; no redirection is followed")
    else:
        outcome = Outcome.deferred(f"451 4.3.0 {words}")
    return Outcome(outcome.kind, outcome.text, responder=responder)


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""


def backoff_of(retry_after: str | None, now: datetime) -> timedelta:
    """Return the rest that a header `Retry-After` asks for: none where it cannot be read.

    >>> backoff_of("120", datetime(2026, 1, 1, tzinfo=UTC))
    datetime.timedelta(seconds=120)
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        asked = timedelta(seconds=int(text[:9]))
    else:
        try:
            until = parsedate_to_datetime(text)
            asked = (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
        except (TypeError, ValueError, OverflowError):
            return timedelta(0)
    return max(timedelta(0), min(asked, MAX_BACKOFF))
