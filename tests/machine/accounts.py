"""What must be true of acknowledged mail after power cuts, and what was not.

A mail may be delivered twice only because a transmission was under way when the power went: the
machine had the next hop's answer, or was about to, and had not stored it yet. So the two deliveries
lie on both sides of a cut, and at one cut there are at most as many as the machine has sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field


@dataclass
class ItemProgress:
    """What the outside saw. Power goes at the end of each round; rounds count from 0."""

    acknowledged: set[str] = field(default_factory=set)
    deliveries: dict[str, list[int]] = field(default_factory=dict)
    """For each mail, the rounds in which the next hop took it."""

    begun: int = 0

    def deliver(self, mail: str, round_: int) -> None:
        """Note that the next hop took a mail."""
        self.deliveries.setdefault(mail, []).append(round_)


@dataclass(frozen=True)
class Verdict:
    """The figures of a run."""

    begun: int
    acknowledged: int
    delivered: int
    waiting: int
    lost: Set[str]
    twice: int
    delivered_and_waiting: int
    unexplained: Sequence[str]

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost and all that was delivered twice is explained."""
        return not self.lost and not self.unexplained

    def __str__(self) -> str:
        return (
            f"{self.begun} begun, {self.acknowledged} acknowledged, {self.delivered} delivered,"
            f" {self.waiting} waiting; lost {len(self.lost)}, delivered twice {self.twice},"
            f" delivered and waiting {self.delivered_and_waiting},"
            f" unexplained {len(self.unexplained)}"
        )


def judge(ledger: ItemProgress, waiting: Set[str], sessions: int) -> Verdict:
    """Compare what was acknowledged with what was delivered and what waits.

    `sessions`: the most transmissions at a time.
    """
    delivered = ledger.deliveries
    again: Mapping[str, Sequence[int]] = {
        mail: rounds for mail, rounds in delivered.items() if len(rounds) > 1
    }
    both = waiting & delivered.keys()
    unexplained = [
        f"{mail} was delivered twice within round {round_}"
        for mail, rounds in again.items()
        for round_, count in Counter(rounds).items()
        if count > 1
    ]
    # The cut after which a mail came again, or after which it still waits.
    cuts = Counter(round_ for rounds in again.values() for round_ in sorted(rounds)[:-1])
    cuts.update(delivered[mail][-1] for mail in both)
    unexplained += [
        f"the cut of round {round_} left {count} transmissions unrecorded, of {sessions} sessions"
        for round_, count in sorted(cuts.items())
        if count > sessions
    ]
    return Verdict(
        begun=ledger.begun,
        acknowledged=len(ledger.acknowledged),
        delivered=len(delivered),
        waiting=len(waiting),
        lost=ledger.acknowledged - waiting - delivered.keys(),
        twice=len(again),
        delivered_and_waiting=len(both),
        unexplained=unexplained,
    )
