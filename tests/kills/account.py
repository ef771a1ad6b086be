"""The account of a run: what the attempt log alone has of each recipient.

Read line by line as any program would read it, without postroad's own reader.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from kills.mails import Key


class Account:
    """The ends that the lines name, by sender and recipient."""

    def __init__(self) -> None:
        self.delivered, self.failed = Counter[Key](), Counter[Key]()
        self.unreadable = 0

    def add(self, line: str) -> None:
        """Take a line. One that cannot be read is counted."""
        try:
            found = json.loads(line)
            key, outcome = (found["sender"], found["recipient"]), found["outcome"]
        except (ValueError, KeyError, TypeError):
            self.unreadable += 1
            return
        if outcome == "delivered":
            self.delivered[key] += 1
        elif outcome == "failed" or found.get("given_up"):
            self.failed[key] += 1

    def is_reported(self, key: Key) -> bool:
        """Whether a recipient failed, and a report was delivered to the sender."""
        return key in self.failed and ("", key[0]) in self.delivered


@dataclass(frozen=True)
class Balance:
    """How many of the recipients that were accepted had which end, by the account alone; removed
    are those without an end whose mail was removed."""

    delivered: int
    reported: int
    removed: int
    missing: int

    @property
    def accepted(self) -> int:
        return self.delivered + self.reported + self.removed + self.missing


def balance(account: Account, keys: Iterable[Key], removed: Collection[str]) -> Balance:
    """Return how the account accounts for recipients; `removed` are senders."""
    counted = Counter(_end_of(account, key, removed) for key in keys)
    return Balance(*(counted[each] for each in ("delivered", "reported", "removed", "missing")))


def _end_of(account: Account, key: Key, removed: Collection[str]) -> str:
    if key in account.delivered:
        return "delivered"
    if account.is_reported(key):
        return "reported"
    return "removed" if key[0] in removed else "missing"


def read_account(folder: Path) -> Account:
    """Read the files of an attempt log, in order of time."""
    account = Account()
    for file in sorted(folder.glob("attempts-*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                account.add(line)
    return account
