"""SMTP replies are read and written as RFC 5321 says, and doubt never gives mail up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.replies import (
    KEPT_LINES,
    MAX_REPLY,
    MAX_TEXT,
    EnhancedCode,
    Reply,
    ReplyReader,
)
from postroad.errors import InvalidInput

line_texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
replies = st.builds(
    Reply, st.integers(200, 599), st.lists(line_texts, min_size=1, max_size=5).map(tuple)
)


@given(replies)
def test_what_is_written_is_read_again(reply: Reply) -> None:
    reader = ReplyReader()

    *before, last = [reader.feed(line) for line in reply.encode().split(b"\r\n")[:-1]]

    assert before == [None] * (len(reply.lines) - 1)
    assert last == reply


@given(replies)
def test_a_reply_shown_to_people_is_one_printable_line(reply: Reply) -> None:
    shown = str(reply)

    assert shown.startswith(str(reply.code))
    assert len(shown) <= MAX_TEXT
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (250, OutcomeKind.DELIVERED),
        (251, OutcomeKind.DELIVERED),
        (354, OutcomeKind.DEFERRED),
        (421, OutcomeKind.DEFERRED),
        (450, OutcomeKind.DEFERRED),
        (452, OutcomeKind.DEFERRED),
        (500, OutcomeKind.FAILED),
        (550, OutcomeKind.FAILED),
        (554, OutcomeKind.FAILED),
    ],
)
def test_the_first_digit_decides_the_outcome(code: int, kind: OutcomeKind) -> None:
    assert Reply(code, ("x",)).final_outcome.kind is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("too many recipients", OutcomeKind.DEFERRED),
        ("5.5.3 too many recipients", OutcomeKind.DEFERRED),
        ("5.2.2 mailbox full", OutcomeKind.FAILED),
    ],
)
def test_552_to_a_recipient_defers_unless_it_says_otherwise(text: str, kind: OutcomeKind) -> None:
    assert Reply(552, (text,)).recipient_refusal.kind is kind
    assert Reply(552, (text,)).refusal.kind is OutcomeKind.FAILED


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (250, "2.1.5 ok", EnhancedCode(2, 1, 5)),
        (550, "5.7.26", EnhancedCode(5, 7, 26)),
        (550, "4.7.1 contradicts the code", None),
        (550, "5.1.1.2 is an address", None),
        (250, "ok", None),
    ],
)
def test_an_enhanced_code_counts_when_it_agrees(
    code: int, text: str, expected: EnhancedCode | None
) -> None:
    assert Reply(code, (text,)).enhanced == expected


@pytest.mark.parametrize(
    ("code", "is_positive", "is_intermediate", "is_permanent"),
    [
        (200, True, False, False),
        (299, True, False, False),
        (300, False, True, False),
        (399, False, True, False),
        (400, False, False, False),
        (499, False, False, False),
        (500, False, False, True),
        (599, False, False, True),
    ],
)
def test_the_first_digit_is_the_kind(
    code: int, is_positive: bool, is_intermediate: bool, is_permanent: bool
) -> None:
    found = Reply(code)

    assert (found.is_positive, found.is_intermediate) == (is_positive, is_intermediate)
    assert found.is_permanent == is_permanent


@pytest.mark.parametrize(
    ("code", "text", "is_about_sender"),
    [
        *((each, "x", True) for each in (502, 503, 530, 534, 535, 538)),
        *((each, "x", False) for each in (500, 501, 504, 531, 536, 550)),
        (554, "5.7.8 x", True),
        (554, "5.7.9 x", False),
        (454, "4.7.8 x", False),
    ],
)
def test_a_refusal_of_this_side_never_ends_a_mail(
    code: int, text: str, is_about_sender: bool
) -> None:
    found = Reply(code, (text,))

    assert found.is_about_sender == is_about_sender
    is_failed = code >= 500 and not is_about_sender
    assert (found.refusal.kind is OutcomeKind.FAILED) == is_failed


@pytest.mark.parametrize(
    ("code", "text", "too_many"),
    [
        (452, "x", True),
        (552, "x", True),
        (451, "x", False),
        (550, "x", False),
        (451, "4.5.3 x", True),
        (552, "5.5.3 x", True),
        (550, "5.5.3 x", False),
        (452, "4.5.4 x", False),
        (452, "4.3.3 x", False),
    ],
)
def test_too_many_recipients_by_code_or_by_the_enhanced_one(
    code: int, text: str, too_many: bool
) -> None:
    assert Reply(code, (text,)).is_too_many_recipients == too_many


def test_a_reply_is_kept_up_to_its_longest_text() -> None:
    assert str(Reply(250, ("x" * 1000,))) == ("250 " + "x" * 1000)[:MAX_TEXT]
    assert MAX_TEXT == 500
    assert str(Reply(250, ("a\x00b",))) == "250 a b"
    assert str(EnhancedCode(5, 7, 26)) == "5.7.26"


@pytest.mark.parametrize("line", [b"", b"25", b"2500 x", b"hello", b"x250 ok", b"\xb2\xb5\xb0 x"])
def test_what_has_no_code_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInput):
        ReplyReader().feed(line)


@pytest.mark.parametrize(
    "line", [b"250_x", b"250 a\rb", b"250\tx", b"250\0", b"250x", b" 250 x", b"250", b"250 \n"]
)
def test_the_digits_of_a_line_decide(line: bytes) -> None:
    reply = ReplyReader().feed(line)

    assert reply is not None
    assert (reply.code, reply.is_unclear) == (250, False)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([250, 251], 251),
        ([551, 550], 550),
        ([450, 421], 421),
        ([250, 550], None),
        ([550, 250], None),
        ([450, 550], None),
        ([354, 250], None),
        ([999], None),
        ([999, 999], None),
        ([150], None),
        ([0], None),
        ([600], None),
    ],
)
def test_codes_of_one_class_are_those_of_one_reply(codes: list[int], code: int | None) -> None:
    reader = ReplyReader()
    *before, last = codes
    assert [reader.feed(b"%03d-x" % each) for each in before] == [None] * len(before)
    reply = reader.feed(b"%03d x" % last)

    assert reply is not None
    assert (reply.code, reply.is_unclear) == (code or 451, code is None)
    assert reader.feed(b"250 next") == Reply(250, ("next",))


@given(st.binary(max_size=30).filter(lambda each: each[:1] not in b"0123456789"))
def test_whatever_stands_behind_a_code_is_text(text: bytes) -> None:
    reply = ReplyReader().feed(b"550" + text)

    assert reply is None if text.startswith(b"-") else reply is not None and reply.code == 550


@pytest.mark.parametrize("line", [b"  two", b"", b"123456 x", b"100 x", b"two-x"])
def test_a_line_without_a_code_amid_a_reply_is_its_text(line: bytes) -> None:
    reader = ReplyReader()

    assert reader.feed(b"250-one") is None
    assert reader.feed(line) is None
    assert reader.feed(b"250 three") == Reply(250, ("one", line.decode(), "three"))


@pytest.mark.parametrize("line", [b"250-more", b"250-", b"250-" + b"x" * 60_000])
def test_a_reply_without_end_is_refused(line: bytes) -> None:
    reader = ReplyReader()

    for _ in range(MAX_REPLY // (len(line) + 2)):
        assert reader.feed(line) is None

    with pytest.raises(InvalidInput):
        reader.feed(line)


def test_a_long_reply_counts_and_its_first_lines_are_kept() -> None:
    reader = ReplyReader()

    for number in range(KEPT_LINES + 10):
        reader.feed(f"250-{number}".encode())

    assert reader.feed(b"250 end") == Reply(250, tuple(map(str, range(KEPT_LINES))))
    assert reader.feed(b"250 next") == Reply(250, ("next",))
    for number in range(KEPT_LINES - 1):
        reader.feed(f"250-{number}".encode())
    assert len(reader.feed(b"250 end").lines) == KEPT_LINES  # type: ignore[union-attr]


def test_a_code_alone_is_a_reply() -> None:
    assert ReplyReader().feed(b"250") == Reply(250, ("",))


def test_a_line_that_was_a_reply_is_the_last_line_of_another_one() -> None:
    reader = ReplyReader()

    assert reader.feed(b"250 known") == reader.feed(b"250 known") == Reply(250, ("known",))
    assert reader.feed(b"250-first") is None
    assert reader.feed(b"250 known") == Reply(250, ("first", "known"))
    assert reader.feed(b"250 known") == Reply(250, ("known",))


def test_a_line_that_was_a_reply_does_not_end_one_with_another_code() -> None:
    reader = ReplyReader()
    reader.feed(b"250 known")
    reader.feed(b"550-first")

    reply = reader.feed(b"250 known")

    assert reply is not None
    assert reply.is_unclear


@pytest.mark.parametrize("code", [502, 503, 530, 534, 535, 538])
def test_a_refusal_of_this_side_is_not_one_of_the_mail(code: int) -> None:
    assert Reply(code, ("no",)).is_about_sender
    assert Reply(554, ("5.7.8 no",)).is_about_sender
    assert not any(Reply(each, ("no",)).is_about_sender for each in (500, 501, 504, 531, 550, 554))
