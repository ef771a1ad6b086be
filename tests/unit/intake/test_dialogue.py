"""The dialogue answers commands in their order and forgets what it must."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import DsnOptions, RecipientDsn
from postroad.intake import reply_texts
from postroad.intake.clients import Rights
from postroad.intake.dialogue import (
    MAX_ERRORS,
    MAX_IDLE_COMMANDS,
    MAX_OVERSHOOT,
    MAX_REFUSED_RECIPIENTS,
    Dialogue,
    NextStep,
    Offer,
)

OFFER = Offer("intake.example", max_size_bytes=1000, max_recipients=3)
INSIDE = Rights(may_relay=True)


def say(dialogue: Dialogue, *lines: str) -> list[int]:
    return [dialogue.answer(line.encode())[0].code for line in lines]


def test_a_transaction_comes_to_its_envelope() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    codes = say(
        dialogue,
        "EHLO client.example",
        "MAIL FROM:<a@b.example> RET=FULL ENVID=x",
        "RCPT TO:<c@d.example> NOTIFY=NEVER",
        "RCPT TO:<e@f.example>",
        "RCPT TO:<c@d.example>",
    )
    reply, step = dialogue.answer(b"DATA")

    assert codes == [250] * 5
    assert (reply.code, step) == (354, NextStep.READ_MAIL)
    assert dialogue.transaction is not None
    assert dialogue.transaction.recipients == ("c@d.example", "e@f.example")
    assert dialogue.transaction.dsn == DsnOptions(
        "FULL", "x", {"c@d.example": RecipientDsn(("NEVER",))}
    )


def test_commands_out_of_order_are_refused() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    assert say(dialogue, "MAIL FROM:<a@b.example>") == [503]
    assert say(dialogue, "EHLO x", "RCPT TO:<a@b.example>", "DATA") == [250, 503, 503]
    assert say(dialogue, "MAIL FROM:<>", "MAIL FROM:<>", "DATA") == [250, 503, 554]
    assert say(dialogue, "NONSENSE", "STARTTLS", "AUTH PLAIN") == [502, 502, 502]


def test_a_new_hello_and_rset_forget_the_transaction() -> None:
    for forget in ("EHLO again", "RSET"):
        dialogue = Dialogue(OFFER, INSIDE)
        say(dialogue, "EHLO x", "MAIL FROM:<>", "RCPT TO:<a@b.example>", forget)

        assert say(dialogue, "RCPT TO:<a@b.example>", "DATA", "MAIL FROM:<>") == [503, 503, 250]


def test_an_announced_size_beyond_the_limit_is_refused_at_once() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    assert say(dialogue, "EHLO x", "MAIL FROM:<> SIZE=1001") == [250, 552]
    assert say(dialogue, "MAIL FROM:<> SIZE=1000") == [250]


def test_recipients_beyond_the_limit_are_to_come_in_another_mail() -> None:
    dialogue = Dialogue(OFFER, INSIDE)
    say(dialogue, "EHLO x", "MAIL FROM:<>")

    codes = say(dialogue, *(f"RCPT TO:<r{number}@b.example>" for number in range(5)))

    assert codes == [250, 250, 250, 452, 452]


def test_starttls_is_offered_once_and_drops_what_was_sent_in_clear() -> None:
    dialogue = Dialogue(Offer("intake.example", 1000, tls=True), INSIDE)
    offered = dialogue.answer(b"EHLO x")[0].lines
    say(dialogue, "MAIL FROM:<>")

    reply, step = dialogue.answer(b"STARTTLS")
    dialogue.secured()

    assert (reply.code, step) == (220, NextStep.START_TLS)
    assert "STARTTLS" in offered
    assert say(dialogue, "MAIL FROM:<>") == [503]
    assert "STARTTLS" not in dialogue.answer(b"EHLO x")[0].lines
    assert say(dialogue, "STARTTLS") == [503]


def test_the_protocol_is_named_as_it_was_spoken() -> None:
    dialogue = Dialogue(Offer("intake.example", 1000, tls=True), INSIDE)

    def spoken(hello: str, mail: str = "MAIL FROM:<>") -> str:
        say(dialogue, hello, mail, "RCPT TO:<a@b.example>", "DATA")
        return dialogue.protocol

    assert spoken("HELO x") == "SMTP"
    assert spoken("EHLO x") == "ESMTP"
    dialogue.secured()
    assert spoken("EHLO x") == "ESMTPS"
    assert spoken("EHLO x", "MAIL FROM:<> SMTPUTF8") == "UTF8SMTPS"


def test_a_client_that_only_errs_is_sent_away() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    steps = [dialogue.answer(b"NONSENSE")[1] for _ in range(MAX_ERRORS)]

    assert steps == [NextStep.NEXT_COMMAND] * (MAX_ERRORS - 1) + [NextStep.CLOSE]


def test_a_name_that_could_break_out_of_the_trace_field_is_refused() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    assert say(dialogue, "EHLO", "EHLO a b", "EHLO a(b", "HELO a;b", "EHLO <x>") == [501] * 5
    assert say(dialogue, "EHLO [192.0.2.1]", "EHLO [IPv6:2001:db8::1]") == [250, 250]


LINES = (
    *("EHLO x", "HELO x", "MAIL FROM:<>", "MAIL FROM:<a@b.example>", "RCPT TO:<a@b.example>"),
    *("RCPT TO:<c@d.example>", "DATA", "RSET", "NOOP", "QUIT", "VRFY x", "NONSENSE", "MAIL x"),
)
ENVELOPE = ("EHLO x", "MAIL FROM:<>", "RCPT TO:<a@b.example>", "DATA")
PARTS = (*((line,) for line in LINES), ENVELOPE, ENVELOPE[:3], ENVELOPE[1:])
"""Single lines alone would rarely come to an envelope."""


@given(st.lists(st.sampled_from(PARTS), max_size=15))
def test_data_is_only_accepted_for_a_whole_envelope(parts: list[tuple[str, ...]]) -> None:
    dialogue = Dialogue(OFFER, INSIDE)
    for line in chain.from_iterable(parts):
        reply, step = dialogue.answer(line.encode())

        assert (reply.code == 354) == (step is NextStep.READ_MAIL)
        if step is NextStep.READ_MAIL:
            assert dialogue.transaction is not None
            assert dialogue.transaction.recipients
            assert dialogue.client_name == "x"
            dialogue.finish()


def test_a_name_that_is_not_ascii_is_no_name_of_a_host() -> None:
    """It would stand in the trace field, and make a 7-bit mail 8-bit."""
    dialogue = Dialogue(OFFER, INSIDE)

    assert say(dialogue, "EHLO münchen.example", "EHLO x\u202e", "HELO x\u0085") == [501] * 3
    assert say(dialogue, "EHLO [IPv6:2001:db8::1]", "EHLO xn--mnchen-3ya.example") == [250] * 2


@pytest.mark.parametrize("tls", [True, False])
def test_dsn_is_offered_where_reports_are_made(*, tls: bool) -> None:
    """Else a client that hands NOTIFY over would stop reporting failures itself."""
    offer = Offer("intake.example", 1000, tls=tls, dsn=True)

    assert "DSN" in Dialogue(offer, INSIDE).answer(b"EHLO x")[0].lines
    assert "DSN" in Dialogue(offer, INSIDE, is_secured=True).answer(b"EHLO x")[0].lines
    assert "DSN" not in Dialogue(OFFER, INSIDE).answer(b"EHLO x")[0].lines


def test_malformed_recipients_are_counted_apart_from_other_errors() -> None:
    dialogue = Dialogue(OFFER, INSIDE)
    say(dialogue, "EHLO x", "MAIL FROM:<>")

    assert say(dialogue, *["RCPT TO:<no>"] * (MAX_REFUSED_RECIPIENTS - 1)) == [501] * 99
    assert say(dialogue, "NONSENSE", "RCPT TO:<no>") == [502, 421]


def test_an_accepted_mail_makes_up_for_errors_before_it() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    for _ in range(3):
        assert say(dialogue, "EHLO x", *["NONSENSE"] * (MAX_ERRORS - 1))[-1] == 502
        dialogue.accepted()


def test_the_bare_postmaster_is_this_hosts() -> None:
    dialogue = Dialogue(OFFER, INSIDE)

    say(dialogue, "EHLO x", "MAIL FROM:<>", "RCPT TO:<Postmaster>", "DATA")

    assert dialogue.transaction is not None
    assert dialogue.transaction.recipients == ("Postmaster@intake.example",)


def test_a_client_that_may_not_relay_has_no_recipient_and_so_no_mail() -> None:
    dialogue = Dialogue(OFFER, Rights(may_relay=False))
    say(dialogue, "EHLO x", "MAIL FROM:<>")

    replies = [
        str(dialogue.answer(f"RCPT TO:<{each}>".encode())[0])
        for each in ("a@b.example", "postmaster", "a@intake.example")
    ]

    assert {each[:9] for each in replies} == {"550 5.7.1"}
    assert say(dialogue, "DATA") == [554]


@pytest.mark.parametrize("command", [b"DATA", b"DATA x", b"data"])
@pytest.mark.parametrize("may_talk_early", [False, True])
def test_behind_a_refused_data_a_client_that_may_talk_early_is_read_no_further(
    command: bytes, *, may_talk_early: bool
) -> None:
    """Its mail may arrive a moment later, and is no commands."""
    dialogue = Dialogue(OFFER, Rights(may_relay=True, may_talk_early=may_talk_early))
    say(dialogue, "EHLO x", "MAIL FROM:<>", "RCPT TO:<no>")

    reply, step = dialogue.answer(command, is_followed=False)

    assert reply.code in (501, 554)
    assert step is (NextStep.CLOSE if may_talk_early else NextStep.NEXT_COMMAND)


def test_commands_that_bring_no_mail_nearer_are_counted_until_a_mail_is_accepted() -> None:
    idle = ("NOOP", "RSET", "VRFY x", "HELP", "EHLO x") * (MAX_IDLE_COMMANDS // 5)
    dialogue = Dialogue(OFFER, INSIDE)

    assert not {421} & set(say(dialogue, *idle))
    dialogue.accepted()
    assert not {421} & set(say(dialogue, *idle))
    reply, step = dialogue.answer(b"NOOP")

    assert str(reply) == "421 4.7.0 too many commands without a mail"
    assert step is NextStep.CLOSE


TOO_IDLE = "421 4.7.0 too many commands without a mail"


@pytest.mark.parametrize("recipients", [1, 50])
def test_recipients_named_twice_end_the_session_once_they_far_outnumber_the_others(
    recipients: int,
) -> None:
    offer = Offer("intake.example", max_size_bytes=1000, max_recipients=1000)
    dialogue = Dialogue(offer, INSIDE)
    say(dialogue, "EHLO x", "MAIL FROM:<>")
    say(dialogue, *(f"RCPT TO:<r{number}@b.example>" for number in range(recipients)))

    allowed = say(dialogue, *["RCPT TO:<r0@b.example>"] * (recipients + MAX_IDLE_COMMANDS))
    reply, step = dialogue.answer(b"RCPT TO:<r0@b.example>")

    assert set(allowed) == {250}
    assert (str(reply), step) == (TOO_IDLE, NextStep.CLOSE)


def test_recipients_beyond_the_limit_end_the_session_when_they_are_very_many() -> None:
    """Not earlier: a client must be able to name all that it has, and send the mail to those that
    were taken."""
    dialogue = Dialogue(OFFER, INSIDE)
    say(dialogue, "EHLO x", "MAIL FROM:<>", *(f"RCPT TO:<r{n}@b.example>" for n in range(3)))

    refused = say(dialogue, *(f"RCPT TO:<x{n}@b.example>" for n in range(MAX_OVERSHOOT)))
    reply, step = dialogue.answer(b"RCPT TO:<r0@b.example>")

    assert set(refused) == {452}
    assert (str(reply), step) == (TOO_IDLE, NextStep.CLOSE)


def test_rset_forgives_no_recipient_that_was_named_twice_and_an_accepted_mail_does() -> None:
    dialogue = Dialogue(OFFER, INSIDE)
    begun = ("EHLO x", "MAIL FROM:<>", *["RCPT TO:<a@b.example>"] * (MAX_IDLE_COMMANDS + 2))

    assert 421 not in say(dialogue, *begun)
    dialogue.finish()
    dialogue.accepted()
    assert 421 not in say(dialogue, *begun)
    assert say(dialogue, "RSET", *begun[1:4]) == [250, 250, 250, 421]


def test_a_client_whose_mails_are_all_refused_at_mail_is_sent_away_in_the_end() -> None:
    dialogue = Dialogue(OFFER, INSIDE, lambda _: reply_texts.FULL)
    say(dialogue, "EHLO x")

    assert set(say(dialogue, *["MAIL FROM:<>"] * (MAX_IDLE_COMMANDS - 1))) == {452}
    assert str(dialogue.answer(b"MAIL FROM:<>")[0]) == TOO_IDLE


VERBS = ("EHLO", "HELO", "MAIL", "RCPT", "DATA", "RSET", "NOOP", "QUIT", "VRFY", "HELP", "STARTTLS")
PIECES = [*' \t<>@:"\\%![]()=+;\0\r', "FROM:", "TO:", "SIZE=", "BODY=", "SMTPUTF8", "ORCPT=rfc822;"]
PIECES += ["NOTIFY=", "ENVID=", "RET=", "a" * 300, "a@" * 200, '"\\' * 200, "." * 100, "9" * 40]
WORDS = st.one_of(st.sampled_from(PIECES), st.text())


@given(st.lists(st.tuples(st.sampled_from(VERBS), st.lists(WORDS))))
def test_each_line_gets_one_reply(said: list[tuple[str, list[str]]]) -> None:
    dialogue = Dialogue(Offer("intake.example", 1000, tls=True), INSIDE)

    for verb, words in said:
        reply, step = dialogue.answer(f"{verb} {''.join(words)}".encode(errors="replace"))
        assert 200 <= reply.code <= 555
        assert b"\r\n" not in reply.encode()[:-2].replace(b"\r\n%d" % reply.code, b"")
        if step is NextStep.READ_MAIL:
            dialogue.finish()
