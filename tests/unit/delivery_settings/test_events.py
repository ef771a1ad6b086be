"""Streams of events in a file of delivery."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.delivery_settings.files import read_delivery
from postroad.domain.delivery.events import EventAddresses, EventKind, EventRule
from postroad.errors import InvalidSettings


def read(tmp_path: Path, text: str) -> tuple[EventRule, ...]:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)
    return tuple(each.rule() for each in read_delivery(file).events)


def test_streams_are_read(tmp_path: Path) -> None:
    text = """
events:
  - name: crm
    webhook: https://crm.example/hook?token=x
    secret: {file: crm.secret}
    kinds: [Delivered, Failed]
    tenants: [acme]
    domains: [Example.org]
    addresses: Hashed
  - {name: audit, file: /var/log/postroad/events.jsonl}
  - {name: bus, amqp: {exchange: postroad.events-crm}}
"""
    assert read(tmp_path, text) == (
        EventRule(
            "crm",
            frozenset({EventKind.DELIVERED, EventKind.FAILED}),
            frozenset({"acme"}),
            frozenset({"example.org"}),
            EventAddresses.HASHED,
        ),
        EventRule("audit"),
        EventRule("bus"),
    )


def test_http_is_for_loopback(tmp_path: Path) -> None:
    hooks = ("http://127.0.0.1:8080/", "http://[::1]/", "http://localhost/")
    text = ", ".join(
        f"{{name: s{at}, webhook: '{each}', secret: {{file: s}}}}" for at, each in enumerate(hooks)
    )
    assert len(read(tmp_path, f"events: [{text}]")) == 3


HOOK = "webhook: 'https://x.example/', secret: {file: s}"


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        ("{name: a}", "give one of webhook, file and amqp"),
        (f"{{name: a, file: /x, {HOOK}}}", "give one of webhook, file and amqp"),
        ("{name: a, webhook: 'https://x.example/'}", "a webhook has a secret"),
        ("{name: a, file: /x, secret: {file: s}}", "a webhook has a secret"),
        ("{name: a, file: /x, amqp: {exchange: postroad.events}}", "give one of webhook"),
        ("{name: a, amqp: {exchange: mine}}", "events[0].amqp.exchange"),
        ("{name: a, amqp: {exchange: postroad.mail.out}}", "events[0].amqp.exchange"),
        ("{name: a, amqp: {exchange: postroad.events.out}}", "events[0].amqp.exchange"),
        ("{name: a, file: x}", "write the whole path"),
        ("{name: a, webhook: 'http://x.example/', secret: {file: s}}", "write https"),
        ("{name: a, webhook: 'http://127.0.0.1.x.example/', secret: {file: s}}", "write https"),
        ("{name: a, webhook: 'ftp://x', secret: {file: s}}", "events[0].webhook"),
        ("{name: a, webhook: 'https://u:p@x/', secret: {file: s}}", "events[0].webhook"),
        ("{name: a, webhook: 'https://x/', secret: {}}", "give either secretRef"),
        ("{name: a, webhook: 'https://x/', secret: {file: whsec_AAAA}}", "not the secret"),
        ("{name: A.b, file: /x}", "events[0].name"),
        ("{name: a, file: /x, kinds: []}", "list one at least"),
        ("{name: a, file: /x, kinds: [Opened]}", "events[0].kinds[0]"),
        ("{name: a, file: /x, addresses: Some}", "events[0].addresses"),
        ("{name: a, file: /x, domain: [b.example]}", "did you mean domains"),
        ("{name: a, file: /x}, {name: a, file: /y}", "two events have the name a"),
        ("{name: a, file: /x/y}, {name: b, file: /x//y}", "a and b would both write /x/y:"),
        ("{name: a, file: /x}, {name: b, file: /x.1}", "a and b would both write /x.1:"),
        ("{name: a, file: /x.1}, {name: b, file: /x}", "a and b would both write /x.1:"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(tmp_path: Path, stream: str, problem: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        read(tmp_path, f"events: [{stream}]")

    assert problem in str(caught.value)
    assert "whsec_AAAA" not in str(caught.value)
