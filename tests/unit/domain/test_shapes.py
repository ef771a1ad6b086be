"""A content's shape is that of a plain reading, over any cut into chunks, found in one pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.shapes import (
    MAX_CONTINUATION,
    MAX_HEADER,
    MAX_LINE,
    Scanner,
    Shape,
    has_bare_line_ends,
    shape_of,
)

pieces = st.sampled_from(
    [b".", b"..", b"\r\n", b"\r\n", b"\r", b"\n", b"a", b"\xff", b"\0", b"\r\n\r\n", b"Subject: x"]
    + [b"y" * length for length in (900, 996, 997, 998, 999, 1000, 1994, 1995, 1996, 3000)]
)
contents = st.lists(pieces, max_size=30).map(b"".join)


@st.composite
def cut(draw: st.DrawFn) -> list[bytes]:
    content = draw(contents)
    at = sorted(draw(st.lists(st.integers(0, len(content)), max_size=8)))
    return [content[a:b] for a, b in zip([0, *at], [*at, len(content)], strict=True)]


def read_plainly(content: bytes) -> Shape:
    """The shape of a whole content, line by line."""
    blank = re.search(rb"(?:^|\n|\r\n)(\r?\n)", content)
    header = len(content) if blank is None else blank.end()
    lines = re.sub(rb"\r\n|\r|\n", b"\n", content).split(b"\n")
    long = [len(line) for line in lines if len(line) > MAX_LINE]
    return Shape(
        header,
        has_8bit_header=any(octet > 127 for octet in content[:header]),
        has_8bit_body=any(octet > 127 for octet in content[header:]),
        has_leading_dots=any(line.startswith(b".") for line in lines),
        bare_line_ends=sum(each != b"\r\n" for each in re.findall(rb"\r\n|\r|\n", content)),
        longest_line=max(long, default=0),
        folds=sum(len(range(MAX_LINE, length, MAX_CONTINUATION)) for length in long),
        is_terminated=not content or content.endswith((b"\r", b"\n")),
        has_nul=b"\0" in content,
    )


@given(cut())
def test_a_scan_over_any_cut_finds_what_a_plain_reading_of_the_whole_finds(
    chunks: list[bytes],
) -> None:
    assert shape_of(chunks) == read_plainly(b"".join(chunks))


@given(contents)
def test_a_scan_of_single_octets_finds_the_same(content: bytes) -> None:
    assert shape_of(bytes((octet,)) for octet in content) == read_plainly(content)


@pytest.mark.parametrize("length", range(995, 1002))
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_a_line_is_measured_exactly_at_the_limit(length: int, line_end: bytes) -> None:
    lines = (b"", b"x" * length, b"y" * 900, b"z" * 900, b"")

    assert shape_of((line_end.join(lines),)).longest_line == (length if length > 998 else 0)


def test_a_header_without_an_end_within_its_limit_is_all_of_the_content() -> None:
    field = b"x" * 98 + b"\r\n"
    content = field * (MAX_HEADER // len(field) + 1)
    within, beyond = content[: MAX_HEADER - 4], content[: MAX_HEADER - 3]

    assert shape_of((within + b"\r\n\r\n\xff",)).header_size == MAX_HEADER
    assert shape_of((beyond + b"\r\n\r\n\xff",)).header_size == len(beyond) + 5
    assert shape_of((beyond + b"\r\n\r\n", b"\xff")).has_8bit_header


class Looked(bytes):
    """Octets that count how many of them its methods look at."""

    octets: int
    calls: int

    def __new__(cls, content: bytes) -> Looked:
        made = super().__new__(cls, content)
        made.octets = made.calls = 0
        return made

    def _note(self, octets: int) -> None:
        self.octets += octets
        self.calls += 1

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in {"count", "decode", "isascii", "replace", "split", "splitlines"}:
            self._note(len(self))
        return found

    def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        found = super().find(sub, start, end)
        self._note((len(self) if found < 0 else found) - start)
        return found

    def rfind(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        found = super().rfind(sub, start, end)
        self._note((len(self) if end is None else end) - (start if found < 0 else found))
        return found


def looked_at(content: bytes) -> Looked:
    looked, scanner = Looked(content), Scanner()
    scanner.feed(looked)
    scanner.end()
    return looked


def nested(size: int) -> bytes:
    level = b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n"
    content = b"".join(level % (depth, depth) for depth in range(size // 40))
    return content[:size]


MAILS: dict[str, Callable[[int], bytes]] = {
    "plain": lambda size: (b"word " * 14 + b"\r\n") * (size // 72),
    "nested multiparts": nested,
    "nothing but line ends": lambda size: b"\r\n" * (size // 2),
    "nothing but line feeds": lambda size: b"\n" * size,
    "one line": lambda size: b"x" * size,
    "lines just as long as allowed": lambda size: (b"x" * 998 + b"\r\n") * (size // 1000),
    "lines a little too long": lambda size: (b"x" * 999 + b"\n") * (size // 1000),
    "short lines before long ones": lambda size: (b"\n" + b"x" * 998 + b"\n") * (size // 1000),
    "dots": lambda size: b"\r\n." * (size // 3),
    "boundaries alone": lambda size: b"--b\r\n" * (size // 5),
}


@pytest.mark.parametrize("kind", MAILS)
def test_each_octet_is_looked_at_a_bounded_number_of_times(kind: str) -> None:
    small, large = (looked_at(MAILS[kind](size)) for size in (32_000, 512_000))

    assert large.octets <= 8 * len(large)
    assert large.octets <= 17 * small.octets
    assert large.calls <= 17 * max(small.calls, 10)


def test_ordinary_text_is_not_read_line_by_line() -> None:
    looked = looked_at(MAILS["plain"](254_000))

    assert looked.calls < len(looked) / 800
    assert looked.octets < 3 * len(looked)


shapes = st.builds(
    Shape, st.integers(0, 2**40), *[st.booleans()] * 3, *[st.integers(0, 2**40)] * 3, st.booleans()
)


@given(shapes)
def test_a_shape_survives_as_text(shape: Shape) -> None:
    assert Shape.from_text(shape.as_text()) == shape


@given(st.text() | st.lists(st.integers(-1, 3)).map(lambda each: " ".join(map(str, each))))
def test_any_other_text_is_no_shape(text: str) -> None:
    found = Shape.from_text(text)

    assert found is None or found.as_text().split()[0] == text.split()[0]


@pytest.mark.parametrize("text", ["1 0 0 0 0 0 0 0 1", "2 0 0 0", "2 0 0 0 0 0 0 0 1 0 9"])
def test_the_shape_of_another_release_is_not_known(text: str) -> None:
    assert Shape.from_text(text) is None


@pytest.mark.parametrize(
    ("content", "as_is"),
    [(b"a\r\nb\r\n", True), (b".a\r\n", False), (b"a\nb\r\n", False), (b".a\n", False)],
)
def test_octets_are_sent_as_they_are_without_dots_to_double_and_bare_line_ends(
    content: bytes, as_is: bool
) -> None:
    assert shape_of((content,)).is_sent_as_is is as_is


def test_sizes_count_as_rfc_1870_says() -> None:
    def size(content: bytes, *, folds: bool = False) -> int:
        return shape_of((content,)).sent_size(len(content), folds=folds)

    assert size(b"a\r\n") == 3
    assert size(b"a\nb\rc\n") == 9
    assert size(b"a") == 3
    assert size(b"") == 0
    assert size(b".\r\n..\r\n") == 7
    assert size(b"x" * 999) == 1001
    assert size(b"x" * 999, folds=True) == 1004


@pytest.mark.parametrize(
    ("data", "has_bare"),
    [
        (b"", False),
        (b"a", False),
        (b"a\r\nb\r\n", False),
        (b"a\r", True),
        (b"a\n", True),
        (b"\r\n\r", True),
        (b"a\r\n\nb", True),
        (b"\xff\r\n", False),
    ],
)
def test_a_bare_line_end_is_seen_wherever_it_stands(data: bytes, has_bare: bool) -> None:
    assert has_bare_line_ends(data) == has_bare
