"""A migration says how far it is."""

from __future__ import annotations

import time

import pytest

from postroad.cli.mail.migration import REPORTED_EVERY, ProgressLine
from postroad.james.migration import MigrationCounts


def test_progress_line_has_the_rate_and_an_estimate_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    line = ProgressLine()

    now += REPORTED_EVERY - 1
    line.say(MigrationCounts(moved=10), 90)
    assert capsys.readouterr().err == ""
    now += 6
    line.say(MigrationCounts(moved=1_990, dropped=10), 3_000)
    assert (
        capsys.readouterr().err == "1,990 mails moved, 3,000 to go, 200 a second, about 15s left\n"
    )
    line.say(MigrationCounts(moved=1_991), 2_999)
    assert capsys.readouterr().err == ""


def test_progress_line_has_no_estimate_before_the_first_mail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    line = ProgressLine()

    now = REPORTED_EVERY
    line.say(MigrationCounts(), 7)

    assert capsys.readouterr().err == "0 mails moved, 7 to go, 0 a second\n"
