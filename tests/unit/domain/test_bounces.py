"""A refusal is counted under one reason, and no address, host or number is in its words."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.domain.bounces import (
    LONGEST_READ,
    LONGEST_WORDS,
    BounceClass,
    bounce_of,
    code_of,
    masked,
)

B = BounceClass

CASES = (
    # The enhanced code decides, whatever the words are.
    ("550 5.1.1 spam", B.NO_MAILBOX),
    ("550-5.1.1 The email account that you tried to reach does not exist.", B.NO_MAILBOX),
    ("550 5.1.2 x", B.NO_DOMAIN),
    ("556 5.1.10 Recipient address has null MX", B.NO_DOMAIN),
    ("550 5.1.8 x", B.SENDER),
    ("552 5.2.2 x", B.MAILBOX_FULL),
    ("552 5.3.4 x", B.TOO_LARGE),
    ("452 4.3.1 x", B.SYSTEM),
    ("451 4.4.2 the connection was lost", B.UNREACHABLE),
    ("554 5.4.6 too many hops", B.LOOP),
    ("503 5.5.1 x", B.PROTOCOL),
    ("452 4.5.3 x", B.RATE),
    ("554 5.6.3 x", B.CONTENT),
    ("535 5.7.8 x", B.SECURITY),
    ("550 5.7.26 x", B.AUTHENTICATION),
    ("450 4.7.28 x", B.RATE),
    # As large sites write them.
    ("421 4.7.28 Our system has detected an unusual rate of unsolicited mail", B.RATE),
    ("421 4.7.0 [TSS04] Messages from 192.0.2.1 deferred due to unexpected volume", B.RATE),
    ("421 RP-001 We have limits for how many messages can be sent per hour and per day.", B.RATE),
    ("451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited", B.RATE),
    ("452 4.2.2 The recipient's inbox is out of storage space.", B.MAILBOX_FULL),
    ("450 4.2.1 The user is receiving mail at a rate that prevents additional messages", B.RATE),
    ("451 4.7.500 Server busy. Please try again later from [192.0.2.1].", B.SYSTEM),
    # It says little: the words decide.
    ("450 4.7.1 Recipient address rejected: Greylisted, come back", B.GREYLISTED),
    ("554 5.7.1 Service unavailable; host [192.0.2.1] blocked using zen.example.org", B.BLOCKED),
    ("554 5.7.1 <b@example.net>: Relay access denied", B.RELAYING),
    ("550 5.7.1 Our system has detected that this message is likely spam", B.CONTENT),
    ("550 5.7.1 rejected by the policy of this site", B.POLICY),
    ("450 4.2.1 The user you try to reach receives mail too quickly", B.RATE),
    ("550 5.2.1 The email account that you tried to reach is disabled", B.MAILBOX_UNAVAILABLE),
    ("550 5.4.1 Recipient address rejected: Access denied.", B.NO_MAILBOX),
    ("421 4.7.0 TLS is required", B.SECURITY),
    ("550 5.7.0 SPF check failed", B.AUTHENTICATION),
    ("550 5.7.0 Sender address rejected", B.SENDER),
    ("550 5.1.0 <a@b.example>: Sender address rejected: User unknown in relay table", B.SENDER),
    ("550 Verification failed for <a@b.example> No Such User Here Sender verify failed", B.SENDER),
    ("550 unknown user: envelope-from", B.SENDER),
    ("550 5.7.1 not mailed, on the suppression list: asked for it", B.SUPPRESSED),
    ("554 5.7.1 Address is on our suppression list", B.SUPPRESSED),
    # The words say nothing: the subject decides, then the basic code.
    ("550 5.1.0 x", B.NO_MAILBOX),
    ("450 4.2.0 x", B.MAILBOX_UNAVAILABLE),
    ("451 4.3.0 StoreUnavailable", B.SYSTEM),
    ("450 4.4.0 x", B.UNREACHABLE),
    ("501 5.5.0 x", B.PROTOCOL),
    ("554 5.6.0 x", B.CONTENT),
    ("550 5.7.1 x", B.POLICY),
    ("421 x", B.SYSTEM),
    ("450 x", B.MAILBOX_UNAVAILABLE),
    ("530 x", B.SECURITY),
    ("500 x", B.PROTOCOL),
    ("521 x", B.NO_DOMAIN),
    ("551 x", B.NO_MAILBOX),
    ("552 x", B.MAILBOX_FULL),
    ("554 x", B.OTHER),
    # Without an enhanced code the words are asked before the basic one.
    ("550 no such user here", B.NO_MAILBOX),
    ("550 user john unknown", B.NO_MAILBOX),
    ("550 mailbox unavailable", B.MAILBOX_UNAVAILABLE),
    ("552 message size exceeds the limit", B.TOO_LARGE),
    ("452 mailbox is full", B.MAILBOX_FULL),
    ("451 domain example.net not found", B.NO_DOMAIN),
    ("connection refused", B.UNREACHABLE),
    ("554 too many hops", B.LOOP),
    ("421 shutting down", B.SYSTEM),
    # An enhanced code of another class than the basic one is none (RFC 2034 4).
    ("451 5.1.1 x", B.SYSTEM),
    ("5.1.1 x", B.NO_MAILBOX),
    ("", B.OTHER),
)


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_a_refusal_has_one_reason(text: str, wanted: BounceClass) -> None:
    assert bounce_of(text).reason is wanted


ENHANCED = (
    (B.NO_MAILBOX, "1.1 1.3 1.4 1.6 7.17 7.18 7.19"),
    (B.NO_DOMAIN, "1.2 1.10"),
    (B.SENDER, "1.7 1.8 7.27"),
    (B.MAILBOX_FULL, "2.2"),
    (B.MAILBOX_UNAVAILABLE, "2.4 7.13"),
    (B.TOO_LARGE, "2.3 3.4 7.16"),
    (B.SYSTEM, "3.1 3.3 3.5 4.3 4.5"),
    (B.UNREACHABLE, "4.2 4.4 4.7"),
    (B.LOOP, "4.6"),
    (B.PROTOCOL, "5.1 5.2 5.4 5.5 5.6"),
    (B.RATE, "5.3 7.15 7.28"),
    (B.CONTENT, "6.1 6.2 6.3 6.4 6.5 6.6 6.7 6.8 6.9 6.10"),
    (B.SECURITY, "7.4 7.5 7.6 7.7 7.8 7.9 7.10 7.11 7.12 7.14 7.30"),
    (B.AUTHENTICATION, "7.20 7.21 7.22 7.23 7.24 7.25 7.26 7.29"),
)


@pytest.mark.parametrize(("reason", "codes"), ENHANCED)
def test_an_enhanced_code_that_names_one_reason_decides(reason: BounceClass, codes: str) -> None:
    """The words would decide otherwise."""
    words = "junk" if reason is not B.CONTENT else "relay"

    assert {bounce_of(f"550 5.{code} {words}").reason for code in codes.split()} == {reason}


def test_any_other_enhanced_code_leaves_it_to_the_words() -> None:
    """As many as RFC 3463 and the IANA registry have, and some more."""
    named = {code for _, codes in ENHANCED for code in codes.split()}
    others = {f"{subject}.{detail}" for subject in range(8) for detail in range(40)} - named

    assert {bounce_of(f"550 5.{code} greylisted").reason for code in others} == {B.GREYLISTED}


@pytest.mark.parametrize(
    ("reason", "codes"),
    [
        (B.SYSTEM, "421 451 452"),
        (B.MAILBOX_UNAVAILABLE, "450"),
        (B.SECURITY, "454 530 534 535 538"),
        (B.PROTOCOL, "500 501 502 503 504 555"),
        (B.NO_DOMAIN, "521 556"),
        (B.NO_MAILBOX, "551"),
        (B.MAILBOX_FULL, "552"),
        (B.OTHER, "550 553 554"),
    ],
)
def test_a_basic_code_decides_where_there_is_nothing_else(reason: BounceClass, codes: str) -> None:
    assert {bounce_of(f"{code} x").reason for code in codes.split()} == {reason}


def test_every_reason_is_that_of_some_reply() -> None:
    assert {wanted for _, wanted in CASES} == set(BounceClass)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<b@example.net>: unknown", "<address>: unknown"),
        ("b@example.net,c@example.net unknown", "<address> unknown"),
        ('user "odd name"@example.net', "user <address>"),
        ("o'neil@example.net is over quota", "<address> is over quota"),
        ("user 'jdoe' doesn't exist, can't go on", "user <name> doesn't exist, can't go on"),
        ("client mx1.example.org [192.0.2.1] listed", "client <host> <host> listed"),
        ("see https://example.net/?to=b%40example.net now", "see <host> now"),
        ("id 4XyZ12, 2001:db8::1 (S3150)", "id # # #"),
        ("quota of user=jdoe.example.net: none", "quota of <host> none"),
        ("<<b@example.net>> and [[192.0.2.1]] gone", "<<address>> and [<host>] gone"),
        ("two\r\nlines\x00 and  gaps", "two lines and gaps"),
    ],
)
def test_what_names_a_person_a_host_or_a_mail_is_masked(text: str, wanted: str) -> None:
    assert bounce_of(f"550 {text}").words == wanted


@pytest.mark.parametrize(
    ("address", "text", "wanted"),
    [
        ("jdoe@example.net", "unknown user jdoe", "unknown user <address>"),
        ("Jane.Doe@example.net", "no jane.doe here", "no <address> here"),
        ("jdoe@example.net", "<jdoe@internal> is gone", "<address> is gone"),
        ("ann@example.net", "the annual cannot", "the annual cannot"),
        ('"o d"@example.net', "o d is unknown", "<address> is unknown"),
        ("postmaster", "postmaster stays", "postmaster stays"),
    ],
)
def test_the_local_part_of_a_known_address_is_masked_where_it_stands_alone(
    address: str, text: str, wanted: str
) -> None:
    assert bounce_of(f"550 {text}", (address, None)).words == wanted


def test_words_are_short() -> None:
    found = bounce_of("550 " + "word " * 1000)

    assert found.words == ("word " * 20).rstrip()
    assert len(bounce_of("550 " + "x" * 1000).words) == LONGEST_WORDS == 100


def test_no_more_of_a_reply_is_read_than_a_relay_keeps() -> None:
    assert bounce_of("550 " + "x" * (LONGEST_READ - 8) + " spam").reason is B.OTHER
    assert bounce_of("550 " + "x" * (LONGEST_READ - 9) + " spam").reason is B.CONTENT
    assert LONGEST_READ == 500


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("250 ok", 250),
        ("250", 250),
        ("250-first", 250),
        ("2500", 0),
        ("ok", 0),
        ("", 0),
        ("²50", 0),
    ],
)
def test_a_text_may_have_no_code(text: str, code: int) -> None:
    assert code_of(text) == code
    assert bounce_of(text).code == code


LOCAL = st.from_regex(r"[a-z][a-z0-9.]{2,12}[a-z]", fullmatch=True)
DOMAIN = st.from_regex(r"[a-z]{3,9}\.example", fullmatch=True)


@given(st.text(), st.lists(st.tuples(LOCAL, DOMAIN), max_size=3), st.text())
@example("\ud800", [], "\x00")
def test_any_text_has_a_reason_and_no_address_stays(
    before: str, addresses: list[tuple[str, str]], after: str
) -> None:
    quoted = [f"<{local}@{domain}>" for local, domain in addresses]
    found = bounce_of(" ".join((before, *quoted, after)), [each.strip("<>") for each in quoted])

    found.words.encode()
    assert "@" not in found.words


@given(LOCAL, DOMAIN, st.sampled_from(("{}", "<{}>", "to {}, please", "'{}'", '"{}"', "{}:x")))
def test_an_address_that_is_not_known_is_masked_too(local: str, domain: str, form: str) -> None:
    words = masked(form.format(f"{local}@{domain}"))

    assert local not in words
    assert domain not in words
