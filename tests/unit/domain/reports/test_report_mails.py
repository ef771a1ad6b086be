"""A report has the fields of RFC 3464, as the standard library's parser reads them."""

from __future__ import annotations

import email
import email.policy
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.header import decode_header
from email.message import EmailMessage, Message
from typing import cast
from uuid import UUID

import pytest

from postroad.domain.mail.mail import (
    REQUIRE_TLS,
    TENANT,
    DsnOptions,
    Envelope,
    Mail,
    Origin,
    Outcome,
    RecipientDsn,
    Responder,
)
from postroad.domain.mail.seven_bits import ascii_address
from postroad.domain.reports.composing import (
    ReportAuthor,
    ReportedMail,
    Returned,
    is_returned_whole,
    mta_name,
    report_mail,
    shortened,
)
from postroad.domain.reports.deciding import (
    DOUBLE_BOUNCE,
    REPORT,
    RETURNS,
    Action,
    ReportedRecipient,
    ReportRules,
)
from postroad.errors import InvalidInput, InvalidMail

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_TEXT = "Sat, 21 Nov 2026 12:00:00 +0000"
LATER_TEXT = "Sat, 21 Nov 2026 13:00:00 +0000"
END_TEXT = "Thu, 26 Nov 2026 12:00:00 +0000"
REPORTER = ReportAuthor("mta.example", "MAILER-DAEMON@mta.example")
DEFAULT_RULES = ReportRules()
HOP = Responder("mx.example.net")
CONTENT = b"From: a@x.example\r\nSubject: hi\r\n\r\nhello\r\n"
A, B, C = "a@x.example", "b@example.net", "c@example.net"


def heard(outcome: Outcome, responder: Responder = HOP) -> Outcome:
    return replace(outcome, responder=responder)


def failed(text: str, address: str = B, *, is_local: bool = False) -> ReportedRecipient:
    outcome = Outcome.failed(text)
    return ReportedRecipient(
        address, Action.FAILED, outcome if is_local else heard(outcome), is_expired=False
    )


def expired(text: str, address: str = B) -> ReportedRecipient:
    return ReportedRecipient(address, Action.FAILED, heard(Outcome.deferred(text)), True)


def delayed(text: str, address: str = B) -> ReportedRecipient:
    return ReportedRecipient(address, Action.DELAYED, heard(Outcome.deferred(text)))


def passed_on(text: str, action: Action, address: str = B) -> ReportedRecipient:
    return ReportedRecipient(address, action, heard(Outcome.delivered(text)))


def the_mail(envelope: Envelope) -> ReportedMail:
    return ReportedMail(envelope, UUID(int=7), NOON, NOON + timedelta(days=5))


def composed(
    *reported: ReportedRecipient,
    sender: str | None = A,
    dsn: DsnOptions | None = None,
    origin: Origin | None = None,
    content: bytes = CONTENT,
    rules: ReportRules = DEFAULT_RULES,
) -> Mail:
    envelope = Envelope(sender, tuple(each.address for each in reported), origin=origin, dsn=dsn)
    mail = the_mail(envelope)
    is_whole = is_returned_whole(mail, reported, len(content), rules)
    octets = content if is_whole else content.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    moment = NOON + timedelta(hours=1)
    return report_mail(mail, reported, Returned(octets, is_whole), REPORTER, rules, moment)


def test_the_report_of_a_mail_that_requires_tls_requires_it_too() -> None:
    """Source: RFC 8689 5."""
    failed = ReportedRecipient(B, Action.FAILED, Outcome.failed("550 5.7.30 no"))
    envelope = Envelope(A, (B,), attributes={REQUIRE_TLS: "yes", "own": "x"})
    returned = Returned(CONTENT, is_whole=True)

    report = report_mail(
        the_mail(envelope), (failed,), returned, REPORTER, DEFAULT_RULES, NOON + timedelta(hours=1)
    )

    assert report.attributes[REQUIRE_TLS] == "yes"
    assert "own" not in report.attributes
    assert REQUIRE_TLS not in composed(failed).attributes


def parsed(mail: Mail, *, of_ascii: bool = False) -> EmailMessage:
    """`of_ascii`: the type of a status in UTF-8, which the parser does not know, is that of one in
    ASCII, so that it reads the fields."""
    assert isinstance(mail.content, bytes)
    content = mail.content
    if of_ascii:
        content = content.replace(b"message/global-delivery-status", b"message/delivery-status")
    return email.message_from_bytes(content, policy=email.policy.SMTPUTF8)


def parts_of(report: EmailMessage) -> tuple[EmailMessage, list[dict[str, str]], EmailMessage]:
    """The words, the groups of fields, and the part of the original."""
    words, status, original = cast("list[EmailMessage]", report.get_payload())
    assert not report.defects
    assert not any(each.defects for each in report.walk())
    groups = cast("list[Message]", status.get_payload())
    return words, [{name: str(value) for name, value in each.items()} for each in groups], original


@dataclass
class Case:
    """What is reported, and the fields that come of it. `fields` are of the first recipient."""

    reported: tuple[ReportedRecipient, ...]
    fields: dict[str, str]
    of_mail: dict[str, str] = field(default_factory=dict)
    sender: str | None = A
    dsn: DsnOptions | None = None
    origin: Origin | None = None
    content: bytes = CONTENT
    returned: str = "message/rfc822"
    status_type: str = "message/delivery-status"
    subject: str = "Undelivered mail"
    rules: ReportRules = DEFAULT_RULES


def with_dsn(
    ret: str | None = None, envid: str | None = None, orcpt: str | None = None
) -> DsnOptions:
    return DsnOptions(ret, envid, {B: RecipientDsn((), orcpt)} if orcpt else {})


def of(
    action: str, status: str, diagnostic: str, remote: str = "dns; mx.example.net"
) -> dict[str, str]:
    return {
        "Final-Recipient": f"rfc822;{B}",
        "Action": action,
        "Status": status,
        "Remote-MTA": remote,
        "Diagnostic-Code": diagnostic,
        "Last-Attempt-Date": LATER_TEXT,
    }


NO_USER = "550 5.1.1 no such user"
LATER = "451 4.7.1 greylisted, come back"
MAIL = {
    "Reporting-MTA": "dns; mta.example",
    "Arrival-Date": NOON_TEXT,
    "X-Postroad-Mail-Id": str(UUID(int=7)),
}
UTF8_HEADER = "From: a@x.example\r\nSubject: grün\r\n\r\nhello\r\n".encode()
LATIN_HEADER = "From: a@x.example\r\nSubject: grün\r\n\r\nhello\r\n".encode("latin-1")
EIGHT_BIT_BODY = "From: a@x.example\r\n\r\ngrün\r\n".encode()

CASES = {
    "failed by the next hop": Case((failed(NO_USER),), of("failed", "5.1.1", f"smtp; {NO_USER}")),
    "a reply without enhanced code": Case(
        (failed("550 no such user"),), of("failed", "5.0.0", "smtp; 550 no such user")
    ),
    "an enhanced code that contradicts its reply": Case(
        (failed("550 4.1.1 x"),), of("failed", "5.0.0", "smtp; 550 4.1.1 x")
    ),
    "a code alone": Case((failed("554"),), of("failed", "5.0.0", "smtp; 554")),
    "words that begin as a code does": Case(
        (failed("550 5.1.1x y"),), of("failed", "5.0.0", "smtp; 550 5.1.1x y")
    ),
    "refused on this side": Case(
        (failed("552 5.3.4 the next hop takes at most 100 octets", is_local=True),),
        {
            "Final-Recipient": f"rfc822;{B}",
            "Action": "failed",
            "Status": "5.3.4",
            "Diagnostic-Code": "X-Postroad; 552 5.3.4 the next hop takes at most 100 octets",
            "Last-Attempt-Date": LATER_TEXT,
        },
    ),
    "its time is over": Case((expired(LATER),), of("failed", "4.4.7", f"smtp; {LATER}")),
    "its time is over, after a permanent reply that deferred": Case(
        (expired("530 5.7.0 STARTTLS first"),),
        of("failed", "4.4.7", "smtp; 530 5.7.0 STARTTLS first"),
    ),
    "delayed": Case(
        (delayed(LATER),),
        of("delayed", "4.7.1", f"smtp; {LATER}") | {"Will-Retry-Until": END_TEXT},
        subject="Delayed mail (attempts go on)",
        returned="text/rfc822-headers",
    ),
    "delayed by a permanent reply about this side": Case(
        (delayed("530 5.7.0 STARTTLS first"),),
        of("delayed", "4.7.0", "smtp; 530 5.7.0 STARTTLS first") | {"Will-Retry-Until": END_TEXT},
        subject="Delayed mail (attempts go on)",
        returned="text/rfc822-headers",
    ),
    "relayed": Case(
        (passed_on("250 2.0.0 queued as 4X", Action.RELAYED),),
        of("relayed", "2.0.0", "smtp; 250 2.0.0 queued as 4X"),
        subject="Delivery report",
        returned="text/rfc822-headers",
    ),
    "delivered by LMTP": Case(
        (passed_on("250 2.1.5 delivered", Action.DELIVERED),),
        of("delivered", "2.1.5", "smtp; 250 2.1.5 delivered"),
        subject="Delivery report",
        returned="text/rfc822-headers",
    ),
    "the worst gives the subject": Case(
        (delayed(LATER), failed(NO_USER, C)),
        of("delayed", "4.7.1", f"smtp; {LATER}") | {"Will-Retry-Until": END_TEXT},
    ),
    "ENVID": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        {"Original-Envelope-Id": "QQ314 159+x"} | MAIL,
        dsn=with_dsn(envid="QQ314 159+x"),
    ),
    "ORCPT": Case(
        (failed(NO_USER),),
        {"Original-Recipient": "rfc822;Bob@old.example"}
        | of("failed", "5.1.1", f"smtp; {NO_USER}"),
        dsn=with_dsn(orcpt="rfc822;Bob@old.example"),
    ),
    "ORCPT of another type": Case(
        (failed(NO_USER),),
        {"Original-Recipient": "x400;/C=de/S=b/"} | of("failed", "5.1.1", f"smtp; {NO_USER}"),
        dsn=with_dsn(orcpt="x400;/C=de/S=b/"),
    ),
    "RET=HDRS": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        dsn=with_dsn("HDRS"),
        returned="text/rfc822-headers",
    ),
    "RET=FULL": Case(
        (failed(NO_USER),), of("failed", "5.1.1", f"smtp; {NO_USER}"), dsn=with_dsn("FULL")
    ),
    "RET=FULL of a delayed mail": Case(
        (delayed(LATER),),
        of("delayed", "4.7.1", f"smtp; {LATER}") | {"Will-Retry-Until": END_TEXT},
        dsn=with_dsn("FULL"),
        subject="Delayed mail (attempts go on)",
        returned="text/rfc822-headers",
    ),
    "RET=FULL of a mail that is too large": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        dsn=with_dsn("FULL"),
        content=CONTENT + b"x" * 100,
        rules=ReportRules(largest_returned=len(CONTENT) + 99),
        returned="text/rfc822-headers",
    ),
    "the client that sent it": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        MAIL | {"Received-From-MTA": "dns; pc.x.example"},
        origin=Origin("pc.x.example", "192.0.2.7", "ESMTP"),
    ),
    "a next hop by address": Case(
        (
            ReportedRecipient(
                B, Action.FAILED, heard(Outcome.failed(NO_USER), Responder("192.0.2.9"))
            ),
        ),
        of("failed", "5.1.1", f"smtp; {NO_USER}", "dns; [192.0.2.9]"),
    ),
    "a long reply": Case(
        (failed("550 5.7.1 " + "blocked by policy " * 25 + "x"),),
        of("failed", "5.7.1", "smtp; 550 5.7.1 " + "blocked by policy " * 25 + "x"),
    ),
    "a reply that is not ASCII": Case(
        (failed("550 5.1.1 Empfänger unbekannt"),),
        of("failed", "5.1.1", "smtp; 550 5.1.1 Empf?nger unbekannt"),
    ),
    "an outcome with line breaks, of a transport of the administrator": Case(
        (failed("550 5.1.1 x\r\nAction: delivered\r\n\r\n--", is_local=True),),
        {
            "Final-Recipient": f"rfc822;{B}",
            "Action": "failed",
            "Status": "5.1.1",
            "Diagnostic-Code": "X-Postroad; 550 5.1.1 x Action: delivered --",
            "Last-Attempt-Date": LATER_TEXT,
        },
    ),
    "a recipient in an internationalised domain": Case(
        (failed(NO_USER, "b@bücher.example"),),
        of("failed", "5.1.1", f"smtp; {NO_USER}")
        | {"Final-Recipient": "rfc822;b@xn--bcher-kva.example"},
    ),
    "a recipient with an internationalised local part": Case(
        (failed("550 5.1.1 <grün@example.net> unbekannt für uns", "grün@example.net"),),
        of("failed", "5.1.1", "smtp; 550 5.1.1 <gr?n@example.net> unbekannt f?r uns")
        | {"Final-Recipient": r"utf-8;gr\x{FC}n@example.net"},
    ),
    "a header in UTF-8, whole": Case(
        (failed(NO_USER),), of("failed", "5.1.1", f"smtp; {NO_USER}"), content=UTF8_HEADER
    ),
    "a header in UTF-8, alone": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        content=UTF8_HEADER,
        dsn=with_dsn("HDRS"),
        returned="text/rfc822-headers",
    ),
    "a header in no charset that is known": Case(
        (failed(NO_USER),), of("failed", "5.1.1", f"smtp; {NO_USER}"), content=LATIN_HEADER
    ),
    "a mail that cannot be in 7 bits": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        content=b"Content-Transfer-Encoding: base64\r\n\r\n\xff\r\n",
        returned="text/rfc822-headers",
    ),
    "a mail with NUL": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        content=CONTENT + b"\0\r\n",
    ),
    "an international report": Case(
        (failed("550 5.1.1 <grün@example.net> unbekannt für uns", "grün@example.net"),),
        of("failed", "5.1.1", "smtp; 550 5.1.1 <grün@example.net> unbekannt für uns")
        | {"Final-Recipient": "utf-8;grün@example.net"},
        status_type="message/global-delivery-status",
        sender="jörg@x.example",
    ),
    "an international report, of a header in UTF-8, whole": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        content=UTF8_HEADER,
        status_type="message/global-delivery-status",
        returned="message/global",
        sender="jörg@x.example",
    ),
    "an international report, of a header in UTF-8, alone": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        content=UTF8_HEADER,
        dsn=with_dsn("HDRS"),
        status_type="message/global-delivery-status",
        returned="message/global-headers",
        sender="jörg@x.example",
    ),
    "a sender in an internationalised domain": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        sender="a@bücher.example",
    ),
    "a body in 8 bits": Case(
        (failed(NO_USER),), of("failed", "5.1.1", f"smtp; {NO_USER}"), content=EIGHT_BIT_BODY
    ),
    "a mail of the null reverse-path, to the administrator": Case(
        (failed(NO_USER),),
        of("failed", "5.1.1", f"smtp; {NO_USER}"),
        sender=None,
        rules=ReportRules(administrator="postmaster@x.example"),
        subject="Undelivered mail with the null reverse-path",
        returned="text/rfc822-headers",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_report_has_the_fields_of_its_recipients(case: Case) -> None:
    mail = composed(
        *case.reported,
        sender=case.sender,
        dsn=case.dsn,
        origin=case.origin,
        content=case.content,
        rules=case.rules,
    )
    report = parsed(mail)
    words, (of_mail, *of_recipients), original = parts_of(parsed(mail, of_ascii=True))

    assert (mail.sender, mail.dsn) == (None, None)
    assert mail.recipients == (case.sender or case.rules.administrator,)
    assert report["From"] == "Mail Delivery System <MAILER-DAEMON@mta.example>"
    assert report["To"] == ascii_address(mail.recipients[0])
    assert report["Subject"] == case.subject
    assert report["Date"] == LATER_TEXT
    assert report["Auto-Submitted"] == "auto-replied"
    assert report.get_content_type() == "multipart/report"
    assert report.get_param("report-type") == "delivery-status"
    assert words.get_content_type() == "text/plain"
    assert all(each.outcome.text.split()[0] in str(words.get_content()) for each in case.reported)
    status = cast("list[EmailMessage]", report.get_payload())[1]
    assert status.get_content_type() == case.status_type
    assert of_mail == (case.of_mail or MAIL)
    assert len(of_recipients) == len(case.reported)
    assert of_recipients[0] == case.fields
    assert original.get_content_type() == case.returned


@pytest.mark.parametrize("content", [CONTENT, EIGHT_BIT_BODY, LATIN_HEADER, UTF8_HEADER])
def test_in_an_international_report_the_mail_comes_back_octet_for_octet(content: bytes) -> None:
    mail = composed(failed(NO_USER), content=content, sender="jörg@x.example")
    found = cast("bytes", mail.content)

    assert found.count(content) == 1
    assert max(map(len, found.split(b"\r\n"))) <= 998
    assert b"\n" not in found.replace(b"\r\n", b"")


SIGNED = b"DKIM-Signature: v=1; a=rsa-sha256; d=x.example; s=s; h=from; bh=x; b=x\r\n"
ATTACHED = (
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\nf\xfcr alte\r\n--b\r\n"
    b'Content-Type: text/plain; name="gr\xc3\xbcn \xe2\x82\xac.txt"\r\n\r\nhello\r\n'
    b"--b--\r\n\xff\r\n"
)


@pytest.mark.parametrize(
    ("content", "subject", "text"),
    [
        (CONTENT, "hi", "hello\r\n"),
        (UTF8_HEADER, "grün".encode(), "hello\r\n"),
        (LATIN_HEADER, b"gr\xfcn", "hello\r\n"),
        (SIGNED + EIGHT_BIT_BODY, None, "grün\r\n"),
        (b"Subject: x\r\n" + ATTACHED, "x", "hello\r\n"),
        ("Subject: über 100 ".encode() + "жук ".encode() * 40 + b"\r\n\r\nhello\r\n",
         ("über 100 " + "жук " * 40).strip().encode(), "hello\r\n"),
    ],
    ids=["ascii", "utf-8 header", "latin-1 header", "signed", "in its parts", "long words"],
)  # fmt: skip
def test_a_mail_comes_back_whole_in_seven_bits(
    content: bytes, subject: str | bytes | None, text: str
) -> None:
    mail = composed(failed(NO_USER), content=content)
    found = cast("bytes", mail.content)
    _, _, original = parts_of(parsed(mail))

    assert found.isascii()
    assert max(map(len, found.split(b"\r\n"))) <= 998
    assert original.get_content_type() == "message/rfc822"
    returned = cast("list[Message]", email.message_from_bytes(original.as_bytes()).get_payload())[0]
    told = decode_header(returned["Subject"])[0][0] if subject else None
    assert (told.strip() if isinstance(told, bytes) else told) == subject
    leaf = next(each for each in returned.walk() if not each.is_multipart())
    charset = leaf.get_content_charset("utf-8").replace("unknown-8bit", "utf-8")
    assert cast("bytes", leaf.get_payload(decode=True)).decode(charset).strip() == text.strip()


def test_whatever_the_mail_is_its_report_is_in_seven_bits() -> None:
    """Drawn mails of what breaks conversions, so that no next hop can refuse a report for it."""
    draw = random.Random(33)
    pieces = (
        *(
            b"Subject: ",
            b'From: "J\xf6rg" <j@x>',
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b"\0",
            b"\xff",
        ),
        *("ü€".encode(), b" ", b"\t", b"--b", b"--b--", b"\r\n--b\r\n", b"=?x", b"postroad=", b"."),
        *(b"Content-Type: multipart/mixed; boundary=b\r\n", b"Content-Type: message/rfc822\r\n"),
        *(b"Content-Type: text/plain; charset*=\xe9''x\r\n", b"Content-Type: message/partial\r\n"),
        *(b"Content-Transfer-Encoding: 8bit\r\n", b"Content-Transfer-Encoding: base64\r\n"),
        *(SIGNED, b"MIME-Version: 1.0\r\n", b"x" * 1200),
    )
    outcomes = ("550 5.1.1 nö \udcff", "550 \0 x", "")
    for _ in range(2000):
        content = b"".join(draw.choices(pieces, k=draw.randrange(1, 30)))
        ret = with_dsn("HDRS") if draw.random() < 0.2 else None
        report = composed(failed(draw.choice(outcomes), "grün@x.example"), content=content, dsn=ret)

        octets = cast("bytes", report.content)
        assert octets.isascii(), content
        assert b"\0" not in octets, content
        shorter = cast("bytes", shortened(report.envelope, octets).content)
        assert len(cast("list[Message]", email.message_from_bytes(shorter).get_payload())) == 2


def test_a_shortened_report_has_all_but_what_it_returned() -> None:
    report = composed(failed(NO_USER))
    octets = cast("bytes", report.content)

    shorter = shortened(report.envelope, octets)

    words, status = cast("list[EmailMessage]", parsed(shorter).get_payload())
    whole, *_ = parts_of(parsed(report))
    assert words.get_content() == whole.get_content()
    assert b"Final-Recipient: rfc822;" in status.as_bytes()
    assert (shorter.sender, shorter.recipients) == (None, report.recipients)
    assert report.attributes == {REPORT: "failed", RETURNS: "message/rfc822"}
    assert shorter.attributes == {REPORT: "failed"}


@pytest.mark.parametrize("octets", [b"", b"a: b\r\n\r\nc", b'a: boundary="x"\r\n\r\nc'])
def test_what_is_no_report_is_not_shortened(octets: bytes) -> None:
    with pytest.raises(InvalidMail):
        shortened(Envelope(None, (A,)), octets)


def test_the_header_alone_comes_back_without_the_body() -> None:
    found = cast("bytes", composed(failed(NO_USER), dsn=with_dsn("HDRS")).content)

    assert b"Subject: hi" in found
    assert b"hello" not in found


def test_several_recipients_have_a_group_of_fields_each() -> None:
    reported = (
        failed(NO_USER),
        delayed(LATER, C),
        passed_on("250 ok", Action.RELAYED, "d@example.net"),
    )

    _, groups, _ = parts_of(parsed(composed(*reported)))

    assert [(each["Action"], each["Final-Recipient"]) for each in groups[1:]] == [
        ("failed", f"rfc822;{B}"),
        ("delayed", f"rfc822;{C}"),
        ("relayed", "rfc822;d@example.net"),
    ]


def test_a_report_about_2000_recipients_with_long_replies_is_below_a_megabyte() -> None:
    many = tuple(failed("550 5.1.1 " + "x" * 480, f"user{n}@dest.example") for n in range(2000))

    report = composed(*many)

    assert len(cast("bytes", report.content)) < 1_000_000
    _, (_, *fields), _ = parts_of(parsed(report))
    assert [each["Status"] for each in fields] == ["5.1.1"] * 2000
    assert all(each["Diagnostic-Code"].startswith("smtp; 550 5.1.1 xxx") for each in fields)


def test_a_report_about_a_report_has_a_boundary_of_its_own() -> None:
    once = cast("bytes", composed(failed(NO_USER)).content)

    again = parsed(composed(failed(NO_USER), content=once))

    assert again.get_boundary() != email.message_from_bytes(once).get_boundary()
    assert len(cast("list[Message]", again.get_payload())) == 3


def test_a_report_carries_what_it_is_and_whose() -> None:
    envelope = Envelope(A, (B,), attributes={TENANT: "acme", "other": "x"})
    reported = (failed(NO_USER),)

    def attributes(envelope: Envelope, rules: ReportRules = DEFAULT_RULES) -> object:
        return report_mail(the_mail(envelope), reported, None, REPORTER, rules, NOON).attributes

    assert attributes(envelope) == {REPORT: "failed", TENANT: "acme"}
    rules = ReportRules(administrator="postmaster@x.example")
    assert attributes(replace(envelope, sender=None), rules) == {
        REPORT: DOUBLE_BOUNCE,
        TENANT: "acme",
    }


def test_a_mail_without_its_bytes_is_reported_without_them() -> None:
    mail = report_mail(
        the_mail(Envelope(A, (B,))), (failed(NO_USER),), None, REPORTER, DEFAULT_RULES, NOON
    )

    assert len(cast("list[Message]", parsed(mail).get_payload())) == 2


def test_without_an_address_there_is_no_report() -> None:
    with pytest.raises(InvalidInput):
        composed(failed(NO_USER), sender=None)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("mx.example.net", "dns; mx.example.net"),
        ("192.0.2.1", "dns; [192.0.2.1]"),
        ("2001:db8::1", "dns; [IPv6:2001:db8::1]"),
    ],
)
def test_a_server_is_named_with_its_type(host: str, name: str) -> None:
    assert mta_name(host) == name
