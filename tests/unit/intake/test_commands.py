"""Commands are read as RFC 5321 and its extensions say; what is malformed changes nothing."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import DsnOptions, Envelope, RecipientDsn
from postroad.intake.commands import (
    MAX_LINE,
    MailFrom,
    RcptTo,
    Refused,
    parse_mail,
    parse_rcpt,
    split_command,
)
from postroad.smtp.client.transaction.commands import Needs, mail_command, recipient_command
from postroad.smtp.client.transaction.content import OpenContent


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("FROM:<a@b.example>", MailFrom("a@b.example")),
        ("from: <a@b.example>", MailFrom("a@b.example")),
        ("FROM:<>", MailFrom(None)),
        ("FROM:<@relay.example,@other.example:a@b.example>", MailFrom("a@b.example")),
        ('FROM:<"a b>c"@[192.0.2.1]>', None),
        ('FROM:<"a b\\"c"@[192.0.2.1]>', MailFrom('"a b\\"c"@[192.0.2.1]')),
        ("FROM:<a..b.@c.example>", MailFrom("a..b.@c.example")),
        ("FROM:<a@b.example> SIZE=1000", MailFrom("a@b.example", 1000)),
        ("FROM:<a@b.example> BODY=8BITMIME size=5", MailFrom("a@b.example", 5)),
        ("FROM:<ä@b.example> SMTPUTF8", MailFrom("ä@b.example", utf8=True)),
        (
            "FROM:<a@b.example> RET=hdrs ENVID=a+2Bb+2bc",
            MailFrom("a@b.example", ret="HDRS", envid="a+b+c"),
        ),
    ],
)
def test_mail_is_read(argument: str, expected: MailFrom | None) -> None:
    if expected is None:
        with pytest.raises(Refused):
            parse_mail(argument)
    else:
        assert parse_mail(argument) == expected


@pytest.mark.parametrize(
    ("argument", "code", "enhanced"),
    [
        ("", 501, "5.5.4"),
        ("FROM:a@b.example", 501, "5.5.4"),
        ("TO:<a@b.example>", 501, "5.5.4"),
        ("FROM:<a@b.example", 501, "5.5.4"),
        ("FROM:<a@b.example>x", 501, "5.5.4"),
        ("FROM:<a>", 501, "5.1.7"),
        ("FROM:<a@>", 501, "5.1.7"),
        ("FROM:<a b@c.example>", 553, "5.1.7"),
        ("FROM:<a@b@c.example>", 553, "5.1.7"),
        ("FROM:<a@b..example>", 553, "5.1.7"),
        ("FROM:<a@b.example\x01>", 553, "5.1.7"),
        ("FROM:<ä@b.example>", 553, "5.6.7"),
        (f"FROM:<{'a' * 400}@b.example>", 553, "5.1.7"),
        ("FROM:<a@b.example> SIZE", 501, "5.5.4"),
        ("FROM:<a@b.example> SIZE=x", 501, "5.5.4"),
        ("FROM:<a@b.example> SIZE=1 SIZE=2", 501, "5.5.4"),
        ("FROM:<a@b.example> BODY=BINARYMIME", 501, "5.5.4"),
        ("FROM:<a@b.example> RET=ALL", 501, "5.5.4"),
        ("FROM:<a@b.example> ENVID=a+0D", 501, "5.5.4"),
        ("FROM:<a@b.example> SMTPUTF8=1", 501, "5.5.4"),
        (f"FROM:<a@b.example> ENVID={'x' * 101}", 501, "5.5.4"),
        ("FROM:<a@b.example> X-UNKNOWN=1", 555, "5.5.4"),
    ],
)
def test_malformed_mail_is_refused_with_its_reason(argument: str, code: int, enhanced: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_mail(argument)

    assert refused.value.reply.code == code
    assert str(refused.value.reply.enhanced) == enhanced


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("TO:<a@b.example>", RcptTo("a@b.example")),
        ("TO:<Postmaster>", RcptTo("Postmaster")),
        (
            "TO:<a@b.example> NOTIFY=success,DELAY ORCPT=rfc822;c+2Bd@e.example",
            RcptTo("a@b.example", RecipientDsn(("SUCCESS", "DELAY"), "rfc822;c+d@e.example")),
        ),
        (
            "TO:<a@b.example> ORCPT=utf-8;ä@e.example",
            RcptTo("a@b.example", RecipientDsn((), "utf-8;\\x{E4}@e.example")),
        ),
    ],
)
def test_rcpt_is_read(argument: str, expected: RcptTo) -> None:
    assert parse_rcpt(argument, utf8=True) == expected


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("TO:<>", 501),
        ("TO:<a>", 501),
        ("TO:<ä@b.example>", 553),
        ("TO:<a@b.example> NOTIFY=NEVER,DELAY", 501),
        ("TO:<a@b.example> NOTIFY=SOMETIMES", 501),
        ("TO:<a@b.example> ORCPT=untyped", 501),
        ("TO:<a@b.example> SIZE=1", 555),
    ],
)
def test_malformed_rcpt_is_refused(argument: str, code: int) -> None:
    with pytest.raises(Refused) as refused:
        parse_rcpt(argument, utf8=False)

    assert refused.value.reply.code == code


locals_ = st.one_of(
    st.text("abcXYZ09.!#$%&'*+/=?^_`{|}~-ä郵", min_size=1, max_size=40),
    st.text("abc .,;:@()", max_size=20).map(lambda text: f'"{text}"'),
)
domains = st.one_of(
    st.lists(st.text("abc09_-ß", min_size=1, max_size=10), min_size=1, max_size=4).map(".".join),
    st.sampled_from(["[192.0.2.1]", "[IPv6:2001:db8::1]"]),
)
addresses = st.builds("{}@{}".format, locals_, domains)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)


async def _no_more() -> AsyncIterator[bytes]:
    for chunk in tuple[bytes]():
        yield chunk


@given(st.one_of(st.none(), addresses), addresses, printable, printable)
def test_what_the_transport_writes_the_intake_reads(
    sender: str | None, recipient: str, envid: str, original: str
) -> None:
    dsn = RecipientDsn(("FAILURE", "DELAY"), f"rfc822;{original}")
    envelope = Envelope(sender, (recipient,), dsn=DsnOptions("FULL", envid, {recipient: dsn}))
    needs = Needs.of(envelope, OpenContent(b"\xff", _no_more(), 7, None))
    offered = {"SIZE": "", "8BITMIME": "", "SMTPUTF8": "", "DSN": ""}

    mail = split_command(mail_command(envelope, needs, offered)[:-2])
    rcpt = split_command(recipient_command(recipient, envelope, offered)[:-2])

    assert mail[0] == "MAIL"
    assert parse_mail(mail[1]) == MailFrom(
        sender, 7, not f"{sender}{recipient}".isascii(), "FULL", envid
    )
    assert parse_rcpt(rcpt[1], utf8=True) == RcptTo(recipient, dsn)


@pytest.mark.parametrize(
    "line", [b"", b"X", b"MAIL\nRCPT", b"RSET\r", b"QUIT\0", b"1234 x", b"MAIL \xff"]
)
def test_what_is_no_command_line_is_refused(line: bytes) -> None:
    with pytest.raises(Refused):
        split_command(line)


@given(st.binary(max_size=200))
def test_any_octets_are_either_read_or_refused(line: bytes) -> None:
    code = None
    try:
        _, argument = split_command(line)
        parse_mail(argument)
    except Refused as refused:
        code = refused.reply.code

    assert code in (None, 500, 501, 552, 553, 555)


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\0"])
@pytest.mark.parametrize("blank", [b" ", b"\t", b" \t"])
def test_a_line_of_blanks_costs_no_more_than_any_other(blank: bytes, end: bytes) -> None:
    """Were it split in every way there is, this test would take minutes."""
    line = (b"NOOP" + blank * MAX_LINE)[: MAX_LINE - 1] + end
    for _ in range(1000):
        with pytest.raises(Refused):
            split_command(line)


def test_an_original_recipient_has_at_most_500_characters() -> None:
    longest = f"rfc822;{'x' * 493}"

    parsed = parse_rcpt(f"TO:<a@b.example> ORCPT={longest}", utf8=False)
    assert parsed.dsn == RecipientDsn(orcpt=longest)
    with pytest.raises(Refused):
        parse_rcpt(f"TO:<a@b.example> ORCPT={longest}x", utf8=False)


def test_an_original_recipient_has_at_most_500_characters_as_it_is_sent() -> None:
    with pytest.raises(Refused):
        parse_rcpt(f"TO:<a@b.example> ORCPT=utf-8;{'ü' * 100}@c.example", utf8=True)
