"""Content survives DATA octet by octet, and only CRLF.CRLF ends it, wherever chunks are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.dot_stuffing import Stuffer, Unstuffer
from postroad.domain.mail.shapes import shape_of

ragged = st.lists(
    st.sampled_from([b".", b"..", b"\r\n", b"\r\n", b"a", b"\r\n.\r\n", b"x.y", b"\xff"])
).map(b"".join)
"""Octets in which CR and LF only come as pairs."""

hostile = st.lists(st.sampled_from([b".", b"\r\n", b"\r", b"\n", b"a", b"\n.\n", b"\r\n."])).map(
    b"".join
)


with_nul = st.lists(st.sampled_from([b".", b"\r\n", b"\r", b"\n", b"\0", b"a"])).map(b"".join)


@st.composite
def chunked(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> list[bytes]:
    content = draw(contents)
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=6)))
    return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]


def sent(chunks: list[bytes]) -> bytes:
    stuffer = Stuffer()
    return b"".join([*map(stuffer.feed, chunks), stuffer.end()])


def received(chunks: list[bytes], *, normalises: bool = False) -> tuple[bytes, bytes | None]:
    unstuffer = Unstuffer(normalises)
    content = b""
    for number, chunk in enumerate(chunks):
        part, rest = unstuffer.feed(chunk)
        content += part
        if rest is not None:
            return content, rest + b"".join(chunks[number + 1 :])
    return content, None


@given(chunked(ragged), st.data())
def test_what_was_sent_is_received(chunks: list[bytes], data: st.DataObject) -> None:
    content = b"".join(chunks)
    expected = content if content.endswith(b"\r\n") or not content else content + b"\r\n"
    wire = sent(chunks) + b"QUIT\r\n"

    arrived, rest = received(data.draw(chunked(st.just(wire))))

    assert (arrived, rest) == (expected, b"QUIT\r\n")


@given(chunked(hostile))
def test_what_is_sent_ends_only_at_its_end_and_has_no_bare_line_ends(chunks: list[bytes]) -> None:
    wire = sent(chunks)
    arrived, rest = received([wire])

    assert rest == b""
    assert not shape_of((arrived,)).bare_line_ends
    assert arrived.splitlines() == b"".join(chunks).splitlines()


@given(chunked(hostile), chunked(hostile))
def test_line_ends_that_are_made_crlf_move_no_end_of_a_mail(
    chunks: list[bytes], more: list[bytes]
) -> None:
    arriving = [*chunks, b"\r\n.\r\n", *more]
    as_it_came, expected = received(arriving)

    content, rest = received(arriving, normalises=True)

    assert rest == expected is not None
    assert content == b"\r\n".join(re.split(b"\r\n|\r|\n", as_it_came))


@pytest.mark.parametrize(
    "end", [b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r", b"\r\n\x00.\r\n"]
)
def test_only_the_true_end_ends_a_mail(end: bytes) -> None:
    _, rest = received([b"a" + end + b"MAIL FROM:<x@y>\r\n"])

    assert rest is None


@given(chunked(with_nul), chunked(with_nul))
def test_nul_that_is_left_out_moves_no_end_of_a_mail_and_makes_no_line_end(
    chunks: list[bytes], more: list[bytes]
) -> None:
    arriving = [*chunks, b"\r\n.\r\n", *more]
    as_it_came, expected = received(arriving)

    content, rest = received(arriving, normalises=True)

    assert rest == expected is not None
    ended = b"\r\n".join(re.split(b"\r\n|\r|\n", as_it_came))
    assert content == ended.replace(b"\0", b"")
    assert received([sent([content])])[0] == content, "a lone dot in it goes out doubled"


def test_an_empty_mail_is_a_lone_dot() -> None:
    assert sent([]) == b".\r\n"
    assert received([b".\r\nRSET\r\n"]) == (b"", b"RSET\r\n")


lines_of_any_length = st.lists(
    st.sampled_from([b".", b"\r\n", b"\r", b"\n", b"a", b"\xff", b"x" * 997, b"y" * 2000])
).map(b"".join)


@given(chunked(lines_of_any_length), st.booleans())
def test_what_is_sent_is_the_same_whether_the_shape_is_known_or_not(
    chunks: list[bytes], folds: bool
) -> None:
    def sent_by(stuffer: Stuffer) -> bytes:
        return b"".join([*map(stuffer.feed, chunks), stuffer.end()])

    content, shape = b"".join(chunks), shape_of(chunks)
    wire = sent_by(Stuffer(shape, folds=folds))

    assert wire == sent_by(Stuffer(folds=folds))
    arrived, rest = received([wire])
    assert rest == b""
    assert len(arrived) == shape.sent_size(len(content), folds=folds)


def folds_of(folded: bytes, unfolded: bytes) -> list[tuple[bytes, bytes]]:
    """The two lines, without the space, at each fold of a text."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    before = b""
    for number, line in enumerate(folded.split(b"\r\n")):
        if number and unfolded.startswith(b"\r\n", at):
            at += 2
        elif number:
            line = line.removeprefix(b" ")
            found.append((before, line))
        assert unfolded.startswith(line, at)
        at += len(line)
        before = line
    return found


@given(chunked(lines_of_any_length))
def test_folded_lines_are_as_long_as_allowed_and_lose_nothing(chunks: list[bytes]) -> None:
    stuffer = Stuffer(folds=True)
    wire = b"".join([*map(stuffer.feed, chunks), stuffer.end()])

    arrived, _ = received([wire])

    assert all(len(line) <= 998 for line in arrived.split(b"\r\n"))
    unfolded, _ = received([sent(chunks)])
    assert arrived.replace(b"\r\n ", b"") == unfolded


blank_lines = st.lists(
    st.sampled_from([b"\r\n", b" ", b"\t" * 400, b" " * 997, b" " * 3000, b"x" * 990, b"word "])
    | st.sampled_from(["\u20ac".encode() * 340, "\U0001f600".encode() * 260, b"\x80" * 1000])
).map(b"".join)


@given(chunked(blank_lines))
def test_a_fold_makes_no_line_of_blanks_and_cuts_no_character(chunks: list[bytes]) -> None:
    stuffer = Stuffer(folds=True)
    wire = b"".join([*map(stuffer.feed, chunks), stuffer.end()])

    arrived, _ = received([wire])

    unfolded, _ = received([sent(chunks)])
    cuts = folds_of(arrived, unfolded)
    for before, after in cuts:
        assert before.strip(b" \t")
        assert after.strip(b" \t")
        if b"\x80" * 100 not in unfolded:
            assert after[0] & 0xC0 != 0x80


def test_a_line_is_folded_at_the_same_places_however_it_comes() -> None:
    line = b"X: " + b" " * 995 + "\u20ac".encode() * 1000 + b" " * 2000 + b"y" * 2000 + b"\r\n"
    whole = Stuffer(folds=True)
    expected = whole.feed(line) + whole.end()

    for size in (1, 7, 997, 998, 999):
        stuffer = Stuffer(folds=True)
        pieces = [stuffer.feed(line[at : at + size]) for at in range(0, len(line), size)]
        assert b"".join(pieces) + stuffer.end() == expected


def test_a_line_is_folded_as_late_as_it_can() -> None:
    stuffer = Stuffer(folds=True)

    sent = stuffer.feed(b"x" * 998 + b"\r\n" + b"y" * (998 + 997 + 2) + b"\r\n") + stuffer.end()

    lines = sent.split(b"\r\n")
    assert [len(each) for each in lines] == [998, 998, 998, 3, 1, 0]
    assert lines[2].startswith(b" y")


@pytest.mark.parametrize("text", [4, 5, 900])
def test_octets_that_are_no_utf_8_are_folded_at_the_limit(text: int) -> None:
    """Four octets of continuation are no character's."""
    stuffer = Stuffer(folds=True)
    line = b" " * (998 - text) + b"\x80" * (text + 50)

    assert stuffer.feed(line + b"\r\n") == line[:998] + b"\r\n " + line[998:] + b"\r\n"


def test_a_line_that_cannot_be_short_enough_is_folded_as_soon_as_it_can() -> None:
    """Up to the limit it has blanks, and a character whose end is behind the limit."""
    first = b" " * 996 + "\u20ac".encode()
    stuffer = Stuffer(folds=True)

    assert stuffer.feed(first + b"then text\r\n") == first + b"\r\n then text\r\n"


def test_content_that_needs_nothing_goes_through_untouched() -> None:
    chunk = b"Subject: x\r\n\r\nbody\r\n"
    stuffer = Stuffer(shape_of((chunk,)))

    assert stuffer.feed(chunk) is chunk
