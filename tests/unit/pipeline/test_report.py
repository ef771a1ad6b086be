"""The page of a report: all that was found in one file, as text that no client can make markup."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from postroad.pipeline.results.report import SHOWN, QueueReport, duration_text, page
from unit.pipeline.report_cases import EMPTY, HOSTILE, destination, full

PICTURES = {"traffic": b"\x89PNG traffic", "slices": b"\x89PNG slices"}


class Reader(HTMLParser):
    """Collects tags and text, and sees that each tag ends in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read(report: QueueReport) -> Reader:
    return Reader(page(report, PICTURES))


def test_the_page_has_all_that_was_found() -> None:
    found = read(full()).text

    for each in ("mail.outgoing", "2026-03-02 12:00 until 2026-03-03 12:00 UTC", "48,000"):
        assert each in found
    for each in ("450 <b>slow down</b> & wait", "rate 10.0% (before: 1.0%)", "80 of 90"):
        assert each in found
    assert "the answer lacks mail that was queued from 2026-03-02T12:00:00" in found
    assert "about 10,000 mails" in found


def test_the_page_needs_nothing_beside_it_and_runs_nothing() -> None:
    found = read(full())

    images = [attributes for tag, attributes in found.tags if tag == "img"]
    assert [each["src"] for each in images] == [
        "data:image/png;base64," + b64encode(PICTURES[name]).decode()
        for name in ("traffic", "slices")
    ]
    assert all(each["alt"] for each in images)
    assert {tag for tag, _ in found.tags} & {"script", "link", "iframe", "b"} == {"b"}
    assert not any(name.startswith("on") for _, values in found.tags for name in values)
    (policy,) = (values["content"] for _, values in found.tags if "http-equiv" in values)
    assert str(policy).startswith("default-src 'none';")


def test_what_a_client_wrote_is_text() -> None:
    source, found = page(full(), PICTURES), read(full()).text

    assert "<script" not in source
    assert '<script>alert("1")</script>$x^$&\\u202e.example' in found
    assert "\u202e" in HOSTILE
    assert "\u202e" not in source


def test_an_empty_lake_gives_a_sentence_for_each_part() -> None:
    found = read(EMPTY)

    assert not [tag for tag, _ in found.tags if tag in ("img", "table")]
    for each in (
        "The lake has nothing that happened in this time.",
        "Nothing was delivered in this time.",
        "No destination was tried in this time.",
        "No mail waits.",
        "No slice of this time is in the lake.",
    ):
        assert each in found.text


def test_of_a_queue_in_a_directory_it_names_what_counts_the_mail_that_waits() -> None:
    found = read(replace(EMPTY, ages=None, slices=None)).text

    assert "postroad ages" in found
    assert "No mail waits" not in found
    assert "slice" not in found


def test_what_stands_out_is_marked() -> None:
    rows = [values for tag, values in read(full()).tags if tag == "tr"]

    assert [values.get("class") for values in rows].count("bad") == 1
    plain = replace(full(), destinations=[destination("a.example")])
    assert not any(values.get("class") == "bad" for tag, values in read(plain).tags if tag == "tr")


@pytest.mark.parametrize(("lines", "text"), [(SHOWN, ""), (SHOWN + 1, "and 1 more:")])
def test_the_busiest_destinations_are_named_and_the_rest_counted(lines: int, text: str) -> None:
    found = read(full(lines)).text

    assert f"d{SHOWN - 1}.example" in found
    assert f"d{SHOWN}.example" not in found
    assert ("more:" in found) == bool(text)
    assert text in found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (599, "10 min"), (90_000, "1 d"), (864_000, "10 d")],
)
def test_a_duration_has_the_unit_that_suits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
