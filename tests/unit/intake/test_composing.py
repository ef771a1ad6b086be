"""Messages of parts: what clients give as text is text, whatever the email package makes of it."""

from __future__ import annotations

import base64
from email.message import Message
from typing import Any

import pytest

from postroad.errors import InvalidMail
from postroad.intake.web import composing
from postroad.intake.web.bodies import parsed
from postroad.intake.web.models import InjectAddress, InjectRequest, MailParts, MailRequest

ALICE = "alice@example.org"


def b(octets: bytes) -> str:
    return f"=?utf-8?b?{base64.b64encode(octets).decode()}?="


ENCODED = {
    "field": b(b"a\r\nX-Evil: 1"),
    "line_end": b(b"a\r\n"),
    "body": b(b"x\r\nContent-Type: text/html\r\n\r\n<a>"),
    "bare_lf": "=?utf-8?q?a=0aX-Evil:_1?=",
    "bare_cr": "=?utf-8?q?a=0dX-Evil:_1?=",
    "behind_text": "hello " + b(b"\r\nBcc: x@y.example"),
    "in_a_word": "a=?utf-8?q?=0d=0aX:_b?=",
    "adjacent": "=?utf-8?q?a=0d?==?utf-8?q?=0aX:_b?=",
    "in_a_comment": "(=?utf-8?q?=0d=0aX:_b?=)",
    "quoted": '"=?utf-8?q?=0d=0aX:_b?="',
    "addresses": "=?utf-8?q?=22_=3Cx=40evil.example=3E=2C_=22b?=",
    "language": "=?utf-8*en?q?a=0d=0aX:_b?=",
    "unknown_charset": "=?x?q?a=0d=0aX:_b?=",
    "harmless": "=?utf-8?q?a?=",
}


def of(**message: Any) -> bytes:
    mail = {"from": ALICE, "to": ["v@example.net"], "message": {"text": "x"} | message}
    return composing.content_of(MailRequest.model_validate(mail))


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
@pytest.mark.parametrize(
    "message",
    [
        lambda text: {"subject": text},
        lambda text: {"headers": {"X-A": text}},
        lambda text: {"headers": {"Message-ID": text}},
        lambda text: {"headers": {"Date": text}},
        lambda text: {"headers": {"From": f"{text} <{ALICE}>"}},
        lambda text: {"headers": {"Reply-To": f"{ALICE}, {text} <a@b.example>"}},
        lambda text: {"attachments": [{"name": text, "content": ""}]},
    ],
    ids=["subject", "header", "message_id", "date", "from", "reply_to", "attachment"],
)
def test_encoded_words_are_refused_in_each_field(message: Any, text: str) -> None:
    with pytest.raises(ValueError, match="without encoded words"):
        of(**message(text))


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
def test_encoded_words_are_refused_in_names_and_parts_of_inject(text: str) -> None:
    address = {"email": "a@b.example", "name": text}
    request = {"envelope_sender": ALICE, "recipients": [{"email": "v@example.net"}]}
    for content in (
        {"from": address},
        {"reply_to": address},
        {"subject": text},
        {"headers": {"X-A": text}},
        {"attachments": [{"data": "", "content_type": "text/plain", "file_name": text}]},
    ):
        with pytest.raises(ValueError, match="without encoded words"):
            InjectRequest.model_validate(request | {"content": content})
    with pytest.raises(ValueError, match="without encoded words"):
        InjectRequest.model_validate(request | {"content": "x", "recipients": [address]})


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
def test_encoded_words_that_come_past_the_schema_do_not_become_fields(text: str) -> None:
    for message in (
        {"subject": text},
        {"headers": {"X-A": text}},
        {"headers": {"From": f"{text} <{ALICE}>"}},
    ):
        parts = MailParts.model_construct(text="x", **message)
        try:
            made = composing.composed(parts, ALICE, None)
        except InvalidMail:
            continue
        names = [line.partition(b":")[0].lower() for line in _header(made)]
        assert b"x-evil" not in names
        assert b"bcc" not in names
        assert b"x" not in names
        assert names.count(b"from") == 1


def _header(content: bytes) -> list[bytes]:
    header = content.partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ")
    return header.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


@pytest.mark.parametrize("local", ["=?utf-8?q?a=0d=0aX:_b?=", "=?utf-8?q?a=40b?="])
def test_addresses_with_encoded_words_stand_in_no_field(local: str) -> None:
    address = f"{local}@example.org"
    with pytest.raises(InvalidMail):
        composing.composed(MailParts(text="x"), address, None)
    with pytest.raises(InvalidMail):
        composing.composed(MailParts(text="x"), ALICE, address)
    with pytest.raises(InvalidMail):
        composing.to_field(InjectAddress.model_construct(email=address, name=None))
    with pytest.raises(InvalidMail):
        composing.named(InjectAddress.model_construct(email=address, name=None))


def test_fields_of_one_name_in_two_cases_are_refused() -> None:
    for name in ("X-A", "Reply-To", "Subject"):
        with pytest.raises(InvalidMail):
            of(headers={name: "a@b.example", name.lower(): "c@d.example"})


@pytest.mark.parametrize(
    "name",
    ['Müller, <ceo@evil.example> "b', '"a" <x@evil.example>, b' * 9, "ä" * 300, "a\\", "x, y" * 99],
)
def test_names_add_no_address(name: str) -> None:
    try:
        field = composing.to_field(InjectAddress(email="v@example.net", name=name))
    except InvalidMail:
        return
    read = composing._POLICY.header_factory("To", field.decode()[3:].replace("\r\n", ""))
    assert [each.addr_spec for each in read.addresses] == ["v@example.net"]


def test_text_that_looks_like_an_encoded_word_but_is_none_is_kept() -> None:
    body = b'{"from": "a@b.c", "to": ["v@example.net"], "message": {"subject": "a?= b=? c"}}'
    assert b"Subject: a?= b=? c\r\n" in composing.content_of(parsed(MailRequest, body))


def test_fields_and_names_of_all_scripts_are_composed() -> None:
    made = of(
        subject="Grüße " * 30,
        headers={"From": f'"Ä, B" <{ALICE}>', "Reply-To": "a@b.example, C <c@d.example>"},
        html="<p>",
        attachments=[{"name": "Übersicht " * 20, "content": ""}],
    )
    assert [line.partition(b":")[0] for line in _header(made)] == [
        *(b"From", b"Reply-To", b"Subject", b"To", b"MIME-Version", b"Content-Type")
    ]


OPEN = ('"' * 300 + "(x y(é" * 116)[:998]
"""Comments that nothing closes, which take some five seconds to be folded."""


@pytest.mark.parametrize(
    "text", [OPEN, "a: " + "é" * 990, "é " * 490], ids=["comment", "group", ""]
)
def test_malformed_fields_of_addresses_are_refused_before_they_are_folded(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Message, "as_bytes")  # which folds
    fields = ("To", "Cc", "From", "Reply-To", "Sender", "Resent-To", "Resent-From", "Resent-Cc")
    with pytest.raises(InvalidMail):
        of(headers=dict.fromkeys(fields, text))
