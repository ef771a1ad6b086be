"""Requests to a webhook, and what its answers mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.domain.delivery.webhooks import (
    MAX_BACKOFF,
    WebhookAddress,
    WebhookRequest,
    backoff_of,
    outcome_of_status,
    read_secrets,
)
from postroad.domain.mail.envelope_documents import HandedMail, handing_key
from postroad.domain.mail.mail import TRACEPARENT, Envelope, OutcomeKind
from postroad.errors import InvalidInput

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
D, F, L = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (200, D, "250 2.0.0"),
        (204, D, "250 2.0.0"),
        (299, D, "250 2.0.0"),
        (300, L, "451 4.3.5"),
        (302, L, "451 4.3.5"),
        (400, F, "554 5.0.0"),
        (401, L, "451 4.3.5"),
        (403, L, "451 4.3.5"),
        (404, L, "451 4.3.5"),
        (405, L, "451 4.3.5"),
        (407, L, "451 4.3.5"),
        (408, L, "451 4.4.2"),
        (410, F, "554 5.0.0"),
        (413, F, "552 5.3.4"),
        (421, L, "451 4.3.5"),
        (422, F, "554 5.0.0"),
        (425, L, "451 4.3.0"),
        (429, L, "451 4.5.3"),
        (499, F, "554 5.0.0"),
        (500, L, "451 4.3.0"),
        (503, L, "451 4.3.0"),
        (599, L, "451 4.3.0"),
        (199, L, "451 4.3.0"),
        (600, L, "451 4.3.0"),
    ],
)
def test_a_status_decides_the_outcome(status: int, kind: OutcomeKind, code: str) -> None:
    outcome = outcome_of_status(status, "app.example.org")

    assert outcome.kind is kind
    assert outcome.text.startswith(f"{code} the webhook answered {status}")
    assert outcome.responder is not None
    assert (outcome.responder.host, outcome.responder.is_final) == ("app.example.org", True)


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("0", timedelta(0)),
        (" 90 ", timedelta(seconds=90)),
        ("99999999999999999999", MAX_BACKOFF),
        ("Fri, 02 Jan 2026 03:05:05 GMT", timedelta(minutes=1)),
        ("Fri, 02 Jan 2026 03:05:05", timedelta(minutes=1)),
        ("Fri, 02 Jan 2025 03:05:05 GMT", timedelta(0)),
        ("Fri, 02 Jan 2027 03:05:05 GMT", MAX_BACKOFF),
        ("soon", timedelta(0)),
        ("-5", timedelta(0)),
        ("1.5", timedelta(0)),
        ("\u0663", timedelta(0)),
        ("", timedelta(0)),
        (None, timedelta(0)),
    ],
)
def test_retry_after_is_read_in_both_forms(text: str | None, backoff: timedelta) -> None:
    assert backoff_of(text, NOW) == backoff


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app.example.org/mail",
        "ftp://app.example.org/",
        "https://",
        "https://app.example.org:0/",
        "https://app.example.org:99999/",
        "https://user:hunter2@app.example.org/",
        "https://app.example.org/#part",
        "https://app.example.org/a b",
        "https://app.example.org/\r\nX: y",
        "https://bücher.example/",
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        WebhookAddress(text)

    assert "hunter2" not in str(caught.value)


def test_a_url_shows_neither_its_path_nor_its_query() -> None:
    url = WebhookAddress("https://app.example.org:8443/hunter2?token=hunter2")

    assert (url.host, url.origin) == ("app.example.org", "https://app.example.org:8443")
    assert "hunter2" not in f"{url!r} {url.name}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there are 0 secrets"),
        ("\n".join("abcd" * 8 for _ in range(5)), "there are 5 secrets"),
        ("hunter2", "24 octets at least"),
        ("whsec_aHVudGVyMg==", "24 octets at least"),
        ("whsec_hunter2!", "goes on in base64"),
    ],
)
def test_secrets_that_cannot_be_used_are_refused_without_being_shown(
    text: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        read_secrets(text)

    assert "hunter2" not in str(caught.value)


def test_secrets_are_text_or_base64() -> None:
    assert read_secrets("whsec_" + "a2tr" * 8 + "\n\n  " + "s" * 24 + "\r\n") == (
        b"k" * 24,
        b"s" * 24,
    )


def test_a_key_is_that_of_the_mail_and_its_recipients_in_any_order() -> None:
    one = handing_key(UUID(int=1), ("a@x.example", "b@x.example"))

    assert one == handing_key(UUID(int=1), ("b@x.example", "a@x.example"))
    others = {
        handing_key(UUID(int=2), ("a@x.example", "b@x.example")),
        handing_key(UUID(int=1), ("a@x.example",)),
        handing_key(UUID(int=1), ("a@x.exampleb", "@x.example")),
    }
    assert len(others | {one}) == 4
    assert "." not in one, "Standard Webhooks joins id, time and body by dots"


def test_a_content_cannot_end_its_part() -> None:
    envelope = Envelope("a@x.example", ("b@x.example",))

    def request(content: bytes) -> WebhookRequest:
        return WebhookRequest.of(UUID(int=1), envelope, [content], [b"k" * 24], NOW)

    boundary = request(b"").headers["Content-Type"].partition("boundary=")[2]
    assert boundary not in handing_key(UUID(int=1), envelope.recipients)
    other = WebhookRequest.of(UUID(int=1), envelope, [b""], [b"l" * 24], NOW)
    assert boundary not in other.headers["Content-Type"], "only the secret leads to it"
    sent = request(b"x")
    assert int(sent.headers["Content-Length"]) == len(b"".join(sent.body))


@pytest.mark.parametrize(
    ("given", "is_sent"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", True),
        (f"00-{'a' * 32}-{'b' * 16}-01\r\nX-Tenant: other", False),
        (f"00-{'0' * 32}-{'b' * 16}-01", False),
        ("x" * 100_000, False),
        ("\0", False),
    ],
)
def test_a_span_that_is_none_is_no_header(given: str, is_sent: bool) -> None:
    envelope = Envelope("a@x.example", ("b@x.example",), attributes={TRACEPARENT: given})
    request = WebhookRequest.of(UUID(int=1), envelope, [b""], [b"k" * 24], NOW)

    assert request.headers.get("traceparent") == (given if is_sent else None)


def test_a_handed_mail_shows_no_address() -> None:
    envelope = Envelope("a@x.example", ("b@x.example",), priority=5)
    mail = HandedMail.of(UUID(int=1), envelope, b"hunter2")

    assert (mail.sender, mail.recipients, mail.priority) == ("a@x.example", ("b@x.example",), 5)
    assert "x.example" not in repr(mail)
    assert "hunter2" not in repr(mail)
