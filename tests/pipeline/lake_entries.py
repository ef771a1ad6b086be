"""Lines of the lake's table `entries`: written by hand, or drawn as the history of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.identifiers import Identifiers, moment_of
from postroad.pipeline.spark.lake.schema import ENTRIES

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Entry = dict[str, Any]


def frame(spark: SparkSession, entries: list[Entry]) -> DataFrame:
    """Columns that no answer reads are null."""
    rows = [tuple(each.get(name) for name in ENTRIES.columns) for each in entries]
    return spark.createDataFrame(rows, ENTRIES.schema)


def outcome(
    kind: OutcomeKind,
    domain: str = "b.example",
    site: str = "mx.b.example",
    count: int = 1,
    code: int = 250,
    reason: BounceClass | None = None,
    words: str = "",
) -> dict[str, Any]:
    found = asdict(OutcomeCount(domain, site, kind, code, reason, words, count))
    return found | {"kind": kind.value, "reason": reason and reason.value}


def delivered(**more: Any) -> dict[str, Any]:
    return outcome(OutcomeKind.DELIVERED, **more)


def deferred(words: str = "try later", **more: Any) -> dict[str, Any]:
    refusal: dict[str, Any] = {"code": 450, "reason": BounceClass.GREYLISTED}
    return outcome(OutcomeKind.DEFERRED, words=words, **(refusal | more))


def failed(words: str = "no such user", **more: Any) -> dict[str, Any]:
    refusal: dict[str, Any] = {"code": 550, "reason": BounceClass.NO_MAILBOX}
    return outcome(OutcomeKind.FAILED, words=words, **(refusal | more))


class History:
    """Entries as a queue would leave them; `now` is the time at which the next thing happens."""

    def __init__(self, seed: int = 1, now: datetime = NOON) -> None:
        self.random = Random(seed)
        self.now = now
        self.entries: list[Entry] = []
        self._ids = Identifiers(lambda: self.now, self.random.getrandbits)

    def accept(self, sender: str, *recipients: str, size: int = 1000) -> Entry:
        entry = {
            "mail_id": str(self._ids.new()),
            "enqueue_id": str(self._ids.new()),
            "sender": sender,
            "sender_domain": domain(sender),
            **_to(recipients),
            "size_bytes": size,
            "attempt": 0,
            "accepted_at": self.now,
            "enqueued_at": self.now,
            "due_at": None,
            "delivered_at": None,
            "ended_at": None,
            "state": "waiting",
            "successor": None,
            "seconds": None,
            "outcomes": None,
        }
        self.entries.append(entry)
        return entry

    def end(self, entry: Entry, state: str, *outcomes: dict[str, Any]) -> None:
        at = "delivered_at" if state == "delivered" else "ended_at"
        entry |= {"state": state, at: self.now, "outcomes": list(outcomes) or None}
        entry["seconds"] = 0.5 if outcomes else None

    def replace(self, entry: Entry, *outcomes: dict[str, Any], left: list[str]) -> Entry:
        """By a retry where there are outcomes, else by administration."""
        self.end(entry, "replaced", *outcomes)
        new = entry | {
            "enqueue_id": str(self._ids.new(UUID(entry["enqueue_id"]))),
            **_to(left),
            "attempt": entry["attempt"] + bool(outcomes),
            "state": "waiting", "ended_at": None, "successor": None, "outcomes": None,
            "seconds": None,
        }  # fmt: skip
        new["enqueued_at"] = moment_of(UUID(new["enqueue_id"]))
        entry["successor"] = new["enqueue_id"]
        self.entries.append(new)
        return new


def _to(recipients: Sequence[str]) -> Entry:
    found = Counter(map(domain, recipients))
    domains = sorted(found)
    counts = [found[each] for each in domains]
    return {"recipients": list(recipients), "domains": domains, "domain_counts": counts}


def domain(address: str) -> str:
    return address.rpartition("@")[2]


DOMAINS = ("a.example", "b.example", "c.example")
SENDERS = ("x@one.example", "y@two.example", "")


def drawn(seed: int, mails: int = 200) -> list[Entry]:
    """Mails of some hours, with all that can come of them."""
    history = History(seed)
    for _ in range(mails):
        draw = history.random
        history.now = NOON + timedelta(milliseconds=draw.randrange(4 * 3_600_000))
        recipients = [f"r{n}@{draw.choice(DOMAINS)}" for n in range(draw.choice((1, 1, 2, 5)))]
        _go_on(
            history, history.accept(draw.choice(SENDERS), *recipients, size=draw.randrange(9999))
        )
    return history.entries


def _go_on(history: History, entry: Entry) -> None:
    draw = history.random
    left = entry["recipients"]
    for _ in range(draw.randrange(1, 5)):
        history.now += timedelta(milliseconds=draw.randrange(1, 2_000_000))
        what = draw.choice(
            ("attempt", "attempt", "attempt", "remove", "reject", "roll", "withdraw")
        )
        if what in ("remove", "reject", "withdraw"):
            states = {"remove": "removed", "reject": "rejected", "withdraw": "withdrawn"}
            return history.end(entry, states[what])
        if what == "roll":
            entry = history.replace(entry, left=left)
            continue
        outcomes, left = _attempt(draw, left)
        if not left:
            return history.end(entry, "delivered", *outcomes)
        if draw.random() < 0.2:
            return history.end(entry, "rejected", *outcomes)
        entry = history.replace(entry, *outcomes, left=left)
    if draw.random() < 0.3:  # delivered by an older release, or while it was replaced
        history.end(entry, "delivered")
        if draw.random() < 0.5:
            history.end(history.replace(entry, left=left), "delivered")
            history.end(entry, "delivered", *_all_delivered(left))
    return None


def _all_delivered(left: list[str]) -> Iterator[dict[str, Any]]:
    for each in sorted({domain(each) for each in left}):
        yield delivered(domain=each, site=f"mx.{each}", count=sum(domain(x) == each for x in left))


def _attempt(draw: Random, left: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The outcomes of an attempt, and who is left."""
    found: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    still = []
    for each in left:
        site = f"mx{draw.choice('12')}.{domain(each)}"
        made = draw.choice((delivered, delivered, deferred, deferred, failed))
        code = draw.choice((250, 251)) if made is delivered else draw.choice((450, 550))
        one = made(domain=domain(each), site=site, code=code)
        key = (one["domain"], site, one["kind"], code)
        found.setdefault(key, one | {"count": 0})["count"] += 1
        if made is deferred:
            still.append(each)
    outcomes = sorted(found.values(), key=lambda one: -one["count"])
    return outcomes, still
