"""What mails that come back say. Source: ADR 0091."""

from __future__ import annotations

import time
from base64 import encodebytes
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.intake.returns.reading import (
    MAX_NAMES,
    MAX_READ,
    ReturnedMail,
    ReturnKind,
    read_returned,
)
from support.returned_mails import CASES, case_of, mail_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_mail_is_read_as_what_it_is(case: dict[str, Any]) -> None:
    recipient = case.get("recipient", "user@example.net")
    found = read_returned(mail_of(case))

    reported, is_named = found.about(recipient)
    reason = None
    if reported.kind is ReturnKind.BOUNCE:
        reason = found.bounce(reported, recipient)[0].reason.value
    elif found.kind is ReturnKind.COMPLAINT:
        reason = found.feedback
    assert [reported.kind.value, reason, is_named] == case["want"]


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len({mail_of(each) for each in CASES}) == len(CASES) >= 60


def test_a_complaint_names_the_reverse_path_wherever_it_stands() -> None:
    path = "bounces+user=example.net=abcdefghijkl@list.example"

    by_field = read_returned(mail_of(case_of("complaint, yahoo"), path))
    by_header = read_returned(mail_of(case_of("complaint, without the recipient"), path))

    assert by_field.paths == (path, path)
    assert by_header.paths == (path,)
    assert "user@example.net" in by_field.names


def test_a_report_has_the_message_id_of_the_mail_that_it_returns() -> None:
    assert read_returned(mail_of(case_of("postfix, unknown user"))).message_id == (
        "<1@list.example>"
    )
    assert read_returned(mail_of(case_of("qmail"))).message_id == "<1@list.example>"
    own = b"Message-ID: <own@mx.example>\r\n\r\nHello\r\n"
    assert read_returned(own).message_id is None


def test_the_mail_that_a_report_returns_is_no_report() -> None:
    inner = mail_of(case_of("postfix, unknown user"))
    forwarded = (
        b'Content-Type: multipart/mixed; boundary="x"\r\n\r\n'
        b"--x\r\nContent-Type: text/plain\r\n\r\nsee below\r\n"
        b"--x\r\nContent-Type: message/rfc822\r\n\r\n" + inner + b"\r\n--x--\r\n"
    )

    assert read_returned(forwarded).recipients == ()


NESTED = b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (each, each)
    for each in range(200)
)


def netscape(text: bytes, *, in_base64: bool = False) -> bytes:
    """Return a report in the form of Netscape, which looks for addresses in this text."""
    text = b"This message was undeliverable due to the following reason:\r\n" + text
    text, encoding = (encodebytes(text), b"base64") if in_base64 else (text, b"7bit")
    return (
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n"
        b"Content-Transfer-Encoding: %s\r\n\r\n%s\r\n--b\r\n\r\nx\r\n--b--\r\n" % (encoding, text)
    )


STATUS = b"Content-Type: message/delivery-status\r\n\r\n"
HOSTILE = {
    "deep": NESTED + b"\n" * 60_000,
    "parts": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n" * 30_000,
    "parameters": b"Content-Type: multipart/mixed; " + b';"' * 60_000 + b"\r\n\r\nx",
    "fields": b"a: b\r\n" * 30_000,
    "recipients": STATUS + b"Action: failed\r\n\r\n" * 9000,
    "angles": b"Subject: x\r\n\r\n" + b"<" * 70_000,
    "html": b"Content-Type: text/html\r\n\r\n" + b"<br " * 20_000 + b"&" * 20_000,
    "digits": b"\r\n\r\n" + b"5.1.1" * 20_000,
    "ats": b"\r\n\r\n" + b"a@" * 35_000,
    "spaces": b"Subject: x\r\n\r\n" + b" " * 70_000 + b"x",
    "lines": b"Subject: x\r\n\r\n" + b"a b: c\r\n" * 10_000,
    "long addresses": b"\r\n\r\n" + (b"a" * 900 + b"@x\r\n") * 80,
    "bad charset": b"Content-Type: text/plain; charset=idna\r\n\r\n" + b"\xff.." * 20_000,
    "punycode": b"Content-Type: text/plain; charset=punycode\r\n\r\n\xff-" + b"a" * 64_000,
    "encoded punycode": b"Content-Type: text/plain; charset*=us-ascii''puny%63ode\r\n\r\n\xff-"
    + b"a" * 64_000,
    "no charset": b"Content-Type: text/plain; charset=nonsense\r\n\r\nx",
    "base64": b"Content-Transfer-Encoding: base64\r\n\r\n" + b"!" * 60_000,
    "surrogates": b"Content-Type: text/rfc822-headers\r\n\r\nTo: \xff\xfe\r\n",
    "no payload": b"Content-Type: message/feedback-report\r\n\r\n",
    "long lines of angles": netscape(b"<" * 60_000),
    "encoded angles": netscape(b"<" * 45_000, in_base64=True),
    "lines of angles": netscape((b"<" * 990 + b"\r\n") * 60),
    "lines of commas and ats": b"\r\n\r\n" + (b"," + b",x" * 160 + b"@" * 650 + b"\r\n") * 60,
    "broken encoding": b"Content-Type: text/plain; charset*=x''%zz\r\n\r\nx",
}


@pytest.mark.parametrize("octets", HOSTILE.values(), ids=HOSTILE)
def test_no_mail_takes_long_or_is_an_error(octets: bytes) -> None:
    before = time.process_time()

    found = read_returned(octets)

    assert isinstance(found, ReturnedMail)
    found.bounce(found.about("user@example.net")[0], "user@example.net")
    assert time.process_time() - before < 5  # 1 s, on an idle machine


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_change_of_a_report_is_an_error(data: st.DataObject) -> None:
    octets = bytearray(mail_of(data.draw(st.sampled_from(CASES))))
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
        if not octets:
            return

    found = read_returned(bytes(octets))

    reported, _ = found.about("user@example.net")
    found.bounce(reported, "user@example.net")


def test_what_stands_far_behind_is_not_looked_at() -> None:
    report = mail_of(case_of("postfix, unknown user"))
    large = report.replace(b"This is a MIME", b"x\r\n" * MAX_READ + b"This is a MIME")

    assert read_returned(large).kind is not ReturnKind.BOUNCE
    assert read_returned(report + b"x\r\n" * MAX_READ).kind is ReturnKind.BOUNCE


def test_a_report_of_delays_about_others_is_no_bounce() -> None:
    case = case_of("several recipients, ours is none of them")
    late = mail_of(case | {"status": case["status"].replace("failed", "delayed")})

    assert read_returned(late).about("user@example.net")[0].kind is ReturnKind.DELAY


def test_few_addresses_of_a_report_are_compared() -> None:
    many = ",".join(f"u{each}@example.net" for each in range(90))
    enclosed = "".join(f"To: {many}\nCc: {many}\nDelivered-To: {many}\n" for _ in range(9))
    report = mail_of(case_of("postfix, unknown user")).replace(b"To: members", enclosed.encode())

    found = read_returned(report)

    assert len(found.names) <= MAX_NAMES + 2
