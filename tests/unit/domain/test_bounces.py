"""A refusal is counted under one reason, and no address, host or number is in its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.domain.smtp.bounces import (
    MAX_READ,
    MAX_WORDS,
    BounceClass,
    BounceRule,
    _table,
    bounce_of,
    code_of,
    decided,
    is_about_mailbox,
    masked,
    use_rules,
)

B = BounceClass

CASES = (
    # The enhanced code decides, unless the words name another reason: 5.1.1 is given to anything.
    ("550 5.1.1 x", B.NO_MAILBOX),
    ("550 5.1.1 Client host blocked: your IP is on a block list", B.BLOCKED),
    ("550 5.1.1 message looks like spam", B.CONTENT),
    ("550 5.1.1 user unknown; see our anti-spam policy", B.NO_MAILBOX),
    ("550 5.1.10 RESOLVER.ADR.RecipientNotFound; not found by SMTP address lookup", B.NO_MAILBOX),
    ("550-5.1.1 The email account that you tried to reach does not exist.", B.NO_MAILBOX),
    ("550 Originator address not found", B.SENDER),
    ("550 5.1.1 author address does not exist", B.SENDER),
    ("550 Client host unknown [192.0.2.1]", B.AUTHENTICATION),
    ("550 5.7.1 Authentication required: invalid user or account", B.SECURITY),
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
    ("550 5.1.0 x", B.MAILBOX_UNAVAILABLE),
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
    (B.NO_MAILBOX, "1.1 1.3 1.6 1.10"),
    (B.NO_DOMAIN, "1.2"),
    (B.SENDER, "1.7 1.8 7.27"),
    (B.MAILBOX_FULL, "2.2"),
    (B.MAILBOX_UNAVAILABLE, "1.4 2.4 7.13 7.17 7.18 7.19"),
    (B.TOO_LARGE, "2.3 3.4 7.16"),
    (B.SYSTEM, "3.1 3.3 3.5 4.3 4.5"),
    (B.UNREACHABLE, "4.2 4.4 4.7"),
    (B.LOOP, "4.6 4.14"),
    (B.PROTOCOL, "5.1 5.2 5.4 5.5 5.6"),
    (B.RATE, "5.3 7.15 7.28"),
    (B.CONTENT, "6.1 6.2 6.3 6.4 6.5 6.6 6.7 6.8 6.9 6.10"),
    (B.SECURITY, "7.4 7.5 7.6 7.7 7.8 7.9 7.10 7.11 7.12 7.14 7.30"),
    (B.AUTHENTICATION, "7.20 7.21 7.22 7.23 7.24 7.25 7.26 7.29"),
)


@pytest.mark.parametrize(("reason", "codes"), ENHANCED)
def test_an_enhanced_code_that_names_one_reason_decides(reason: BounceClass, codes: str) -> None:
    """The words would decide otherwise."""
    words = "junk" if reason is not B.CONTENT else "relaying denied"

    assert {bounce_of(f"550 5.{code} {words}").reason for code in codes.split()} == {reason}


def test_any_other_enhanced_code_leaves_it_to_the_words() -> None:
    """As many as RFC 3463 and the IANA registry have, and some more."""
    named = {code for _, codes in ENHANCED for code in codes.split()} | {"7.23", "7.32"}
    others = {f"{subject}.{detail}" for subject in range(8) for detail in range(40)} - named

    assert {bounce_of(f"550 5.{code} suppression list").reason for code in others} == {B.SUPPRESSED}


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
    assert len(bounce_of("550 " + "x" * 1000).words) == MAX_WORDS == 100


def test_no_more_of_a_reply_is_read_than_a_relay_keeps() -> None:
    assert bounce_of("550 " + "x" * (MAX_READ - 8) + " spam").reason is B.OTHER
    assert bounce_of("550 " + "x" * (MAX_READ - 9) + " spam").reason is B.CONTENT
    assert MAX_READ == 500


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


def replies() -> Iterator[tuple[str, BounceClass]]:
    found = yaml.safe_load(Path(__file__).with_name("bounce_replies.yaml").read_text())
    for group in found:
        for name, texts in group["replies"].items():
            for text in texts:
                yield text, BounceClass(name)


def is_held_out(text: str) -> bool:
    """Return whether a reply was labelled, and not looked at while the table was written."""
    return int(sha256(text.encode()).hexdigest(), 16) % 3 == 0


def test_of_real_replies_those_of_no_mailbox_are_found_and_no_others() -> None:
    read = [(text, wanted, bounce_of(text).reason) for text, wanted in replies()]
    taken = [(text, wanted) for text, wanted, found in read if found is B.NO_MAILBOX]
    meant = [(text, found) for text, wanted, found in read if wanted is B.NO_MAILBOX]
    wrong = [text for text, wanted in taken if wanted is not B.NO_MAILBOX]
    missed = [text for text, found in meant if found is not B.NO_MAILBOX]

    assert len(read) >= 500
    assert sum(is_held_out(text) for text, _, _ in read) >= 100
    assert len(wrong) <= len(taken) * 0.005, wrong
    assert len(missed) <= len(meant) * 0.03, missed
    assert sum(wanted is found for _, wanted, found in read) >= len(read) * 0.97


def measured() -> list[str]:
    """Return the rows of the table in docs/bounces.md: replies of a class, how many are counted as
    it, and how many others."""
    read = [(wanted, bounce_of(text).reason) for text, wanted in replies()]
    of = {each: [found for wanted, found in read if wanted is each] for each in BounceClass}
    others = {
        each: sum(found is each is not wanted for wanted, found in read) for each in BounceClass
    }
    return [
        f"| `{each}` | {len(of[each])} | {of[each].count(each)} | {others[each]} |"
        for each in BounceClass
        if of[each]
    ]


def test_the_documented_figures_are_those_of_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bounces.md").read_text()
    assert [
        line for line in page.splitlines() if re.match(r"\| `[a-z-]+` \| \d", line)
    ] == measured()


SENDERS_FAULTS = (
    "SPF fail - not authorized. Please see http://www.openspf.net/Why?s=mfrom",
    "Rejected by SPF: 192.0.2.1 is not a designated mailserver for a@example.org",
    "DMARC policy of the sender's domain",
    "blocked using zen.example",
    "Access denied",
    "Policy rejection",
    "rate limit exceeded",
    "Greylisted",
    "too many messages from you this hour",
    "your IP address was not found in our whitelist",
    "your domain does not exist",
    "unknown client host",
    "invalid HELO name",
    "cannot find your hostname, [192.0.2.1]",
    "From is not a valid email address",
    "Sender unknown",
    "sender mailbox does not exist",
    "return-path is invalid: no such user",
    "Spam message",
    "the recipient accepts mail from known senders alone",
    "recipient refused: unknown network",
    "Service unavailable",
    "Domain not found",
    "undeliverable address: connect to mx.example.net[192.0.2.1]: Connection timed out",
)
WRAPPERS = (
    "550 5.7.1 <u@example.net>: Recipient address rejected: {}",
    "554 5.7.1 <u@example.net>: Recipient address rejected: {}",
    "554 <u@example.net>: Recipient address rejected: {}",
    "550 5.1.0 <u@example.net>: Recipient address rejected: {}",
    "550 5.1.0 <a@example.org>: Sender address rejected: {}",
    "554 5.7.1 <mx.example.org[192.0.2.1]>: Client host rejected: {}",
    "504 5.5.2 <mx>: Helo command rejected: {}",
    "554 5.7.1 <DATA>: Data command rejected: {}",
    "host mx.example.net[192.0.2.1] said: 550 5.7.1 {} (in reply to RCPT TO command)",
    "550-{} 550 bye",
    "550 #5.7.1 {}",
    "smtp; 550 5.7.1 {}",
)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_fault_of_the_senders_side_is_no_missing_mailbox_in_any_wrapper(wrapper: str) -> None:
    found = {each: bounce_of(wrapper.format(each)).reason for each in SENDERS_FAULTS}
    assert [each for each, reason in found.items() if reason is B.NO_MAILBOX] == []


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "550 5.1.1 {}", "551 {}", "550 5.1.0 {}"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("too many invalid recipients", B.RATE),
        ("invalid recipient limit exceeded", B.RATE),
        ("directory harvest attack detected", B.RATE),
        ("mailbox unavailable: invalid DNS MX or A/AAAA resource record", B.SENDER),
    ],
)
def test_a_fault_of_the_senders_side_outweighs_codes_and_words(
    wrapper: str, fault: str, reason: BounceClass
) -> None:
    assert bounce_of(wrapper.format(fault)).reason is reason


@pytest.mark.parametrize("code", ["550 5.1.1", "550 5.1.0", "551"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("this server requires authentication to send to others", B.SECURITY),
        ("SMTP AUTH required", B.SECURITY),
        ("must issue a STARTTLS command first", B.SECURITY),
        ("we do not relay", B.RELAYING),
        ("relaying denied: user unknown", B.RELAYING),
        ("sender not whitelisted", B.POLICY),
        ("unauthenticated senders not allowed", B.POLICY),
    ],
)
def test_codes_of_a_missing_mailbox_are_given_to_faults_of_the_senders_side(
    code: str, fault: str, reason: BounceClass
) -> None:
    assert bounce_of(f"{code} {fault}").reason is reason


@pytest.mark.parametrize(
    "wrapper",
    ["550 5.1.0 <a@b.example>: Sender address rejected: {}", "550 {}: Sender verify failed"],
)
def test_an_unknown_sender_is_no_missing_mailbox(wrapper: str) -> None:
    for each in (
        "User unknown",
        "undeliverable address: host mx said: 550 5.1.1 <a@b>: no such user",
    ):
        assert bounce_of(wrapper.format(each)).reason is B.SENDER


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "host mx[192.0.2.1] said: 550 5.1.1 <b@x>: unknown user (in reply to RCPT TO)",
            B.NO_MAILBOX,
        ),
        ("smtp; 552 5.2.2 full", B.MAILBOX_FULL),
        ("550 #5.1.0 Address rejected.", B.NO_MAILBOX),
        ("550 sorry, go away (#5.7.1)", B.POLICY),
        ("550 cuda_nsu 5.1.1 <b@x>... User unknown", B.NO_MAILBOX),
        ("554 554 5.7.1 Client host [192.0.2.1] blocked using bl.example", B.BLOCKED),
        ("450 4.7.1 <b@x>: Recipient address rejected: rate limit", B.RATE),
        ("550 5.4.1 [b@x.example]: Recipient address rejected: Access denied [HOST]", B.NO_MAILBOX),
        ("554 5.7.1 <b@x.example>: Recipient address rejected: Access denied", B.POLICY),
    ],
)
def test_what_a_program_writes_around_a_reason_is_cut_off(text: str, wanted: BounceClass) -> None:
    assert bounce_of(text).reason is wanted


def test_the_recipients_own_name_does_not_decide() -> None:
    for local in ("user", "mailbox", "unknown"):
        text = f"550 {local} user unknown"
        assert bounce_of(text, (f"{local}@example.net",)).reason is B.NO_MAILBOX


def test_each_row_of_the_table_has_its_source_and_is_reached() -> None:
    """By a reply of the corpus, or by one of these tests."""
    texts = [text for text, _ in replies()] + [text for text, _ in CASES]
    texts += [wrapper.format(each) for wrapper in WRAPPERS for each in SENDERS_FAULTS]
    texts += ["550 5.1.1 too many bad users", "550 invalid DNS MX", "551 we do not relay"]
    texts += ["550 5.1.1 starttls required", "551 sender not permitted"]
    texts += [f"550 5.{code} x" for _, codes in ENHANCED for code in codes.split()]
    texts += [f"{code} x" for code in range(400, 560)]
    reached = {id(decided(text)[1]) for text in texts}
    unreached = [each for each in _table().rules if id(each) not in reached]
    assert len(unreached) <= 4, unreached


def row(**fields: object) -> BounceRule:
    return BounceRule.model_validate({"class": "Policy", "source": "us", **fields})


def test_rows_of_an_administrator_come_first() -> None:
    own = row(words=["no (such|known) user"])
    text = "550 5.1.1 <b@x.example>: no such user"
    assert decided(text, own=(own,)) == (bounce_of(text)._replace(reason=B.POLICY), own)
    assert bounce_of(text).reason is B.NO_MAILBOX
    use_rules((own,))
    try:
        assert bounce_of(text).reason is B.POLICY
    finally:
        use_rules(())


@pytest.mark.parametrize(
    ("words", "fits", "fits_not"),
    [
        ("user + gone", ["user gone", "The user <b@x> gone"], ["user: gone", "user is now gone"]),
        ("user * gone", ["user gone", "user is now gone"], ["user " + "x " * 30 + "gone"]),
        ("block* by us", ["blocked by us", "block by us"], ["unblocked by us", "blocked by users"]),
        ("^(a|b) c", ["<b@x>: a c", "B C"], ["x a c"]),
        ("a-c", ["A-C d"], ["abc"]),
    ],
)  # fmt: skip
def test_phrases(words: str, fits: list[str], fits_not: list[str]) -> None:
    own = (row(words=[words]),)
    for texts, wanted in ((fits, True), (fits_not, False)):
        for text in texts:
            assert (decided(f"550 {text}", own=own)[1] in own) is wanted, text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"words": ["user * a * b * c"]}, "gaps"),
        ({"words": ["user (unknown"]}, r"\(one\|another\)"),
        ({"words": ["a|b c"]}, r"\(one\|another\)"),
        ({}, "name codes, words or both"),
        ({"codes": ["5.1"]}, "pattern"),
        ({"words": ["x y"], "class": "gone"}, "Input should be"),
    ],
)
def test_a_wrong_row_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row(**fields)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("450 4.2.1 The user is receiving mail too quickly", True),
        ("452 4.1.1 too many recent messages", True),
        ("421 4.2.1 too many", False),
        ("450 4.7.1 rate limit", False),
        ("x", False),
    ],
)
def test_a_refusal_may_be_about_one_mailbox(text: str, wanted: bool) -> None:
    assert is_about_mailbox(text) is wanted
