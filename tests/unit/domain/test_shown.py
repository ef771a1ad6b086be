"""The last outcomes of a worker, as consoles get them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

from postroad.domain.delivery.attempts import Attempted, LoggedAttempt, logged
from postroad.domain.delivery.shown import MAX_LINES, OutcomeWindow, read_window
from postroad.domain.mail.mail import Outcome, OutcomeKind

NOW = datetime(2026, 1, 2, 10, tzinfo=UTC)
RECIPIENTS = 150


def test_no_more_lines_are_made_than_are_shown_and_these_are_the_last_in_order() -> None:
    made: list[str | None] = []
    outcome = Outcome(OutcomeKind.DELIVERED, "250 ok")

    def lines(number: int) -> Iterator[LoggedAttempt]:
        outcomes = {f"r{each}@a{number}.example": outcome for each in range(RECIPIENTS)}
        attempted = Attempted("memory.q", UUID(int=7), UUID(int=1), 1, "", 10, NOW, NOW, 0.5)
        for line in logged(attempted, outcomes, with_addresses=True):
            made.append(line.recipient)
            yield line

    window = OutcomeWindow()
    for number in range(20):
        window.note(RECIPIENTS, lines(number))
    last, shown = read_window(window.text())

    assert last == 20 * RECIPIENTS
    assert [each["recipient"] for each in shown] == [
        *(f"r{each}@a18.example" for each in range(2 * RECIPIENTS - MAX_LINES, RECIPIENTS)),
        *(f"r{each}@a19.example" for each in range(RECIPIENTS)),
    ]
    assert len(made) == 2 * RECIPIENTS

    window.note(RECIPIENTS, lines(20))
    _, shown = read_window(window.text())
    assert [shown[0]["recipient"], shown[-1]["recipient"]] == [
        "r100@a19.example",
        "r149@a20.example",
    ]
