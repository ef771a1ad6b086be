"""The stored plan of a cluster: its subnet, its nodes and clients, and their secrets. One JSON
file."""

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

FILE_NAME = "cluster.json"
FIRST_NODE, FIRST_CLIENT = 11, 101
"""The numbers of addresses in the subnet. No number is given to a second member."""


@dataclass(frozen=True)
class Member:
    """A node or a client."""

    name: str
    kind: str
    number: int
    """The number of its address in the subnet."""
    data_center: str = ""
    replaces: str | None = None
    """The address of the dead node that this one replaced at its start."""
    version: str | None = None
    """The version of its server; None: the stack's own."""


@dataclass(frozen=True)
class Layout:
    """A cluster as it was planned, with the nodes that were added and removed since."""

    subnet: str
    members: tuple[Member, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    given: Mapping[str, int] = field(default_factory=dict)
    """How many members of each kind were ever added, removed ones included."""

    def of(self, *kinds: str) -> tuple[Member, ...]:
        """Return the members of these kinds, the oldest first."""
        return tuple(member for member in self.members if member.kind in kinds)

    def added(
        self, kind: str, data_center: str = "", replaces: str | None = None, name: str = ""
    ) -> tuple["Layout", Member]:
        """Return it with one more member, and that member."""
        count = self.given.get(kind, 0) + 1
        first = FIRST_CLIENT if kind == "client" else FIRST_NODE
        others = [each.number for each in self.members if (each.kind == "client") == (first > 100)]
        highest = max([first - 1, *others, self.given.get(f"{first}", 0)])
        member = Member(name or f"{kind}-{count}", kind, highest + 1, data_center, replaces)
        given = {**self.given, kind: count, f"{first}": highest + 1}
        return replace(self, members=(*self.members, member), given=given), member

    def without(self, name: str) -> "Layout":
        """Return it without a member."""
        return replace(self, members=tuple(each for each in self.members if each.name != name))

    def at(self, version: str | None, *names: str) -> "Layout":
        """Return it with another version of these members."""
        members = (
            replace(each, version=version) if each.name in names else each for each in self.members
        )
        return replace(self, members=tuple(members))

    def save(self, folder: Path) -> None:
        """Write it whole or not at all, readable by its owner only."""
        partial = folder / f"{FILE_NAME}.{os.getpid()}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(dataclasses.asdict(self), file, indent=1)
        partial.rename(folder / FILE_NAME)


def planned(
    counts: Mapping[str, int], data_centres: int, cassandra_version: str | None = None
) -> Layout:
    """Plan a cluster that has no subnet yet: nodes by kind; Cassandra has as many in each data
    centre."""
    words = {name: secrets.token_hex(12) for name in ("password", "cookie")}
    layout = Layout("", secrets=words)
    for kind, count in counts.items():
        centers = data_centres if kind == "cassandra" else 1
        for center in range(1, centers + 1):
            for _ in range(count):
                layout, _ = layout.added(kind, f"dc{center}")
    return layout.at(cassandra_version, *(each.name for each in layout.of("cassandra")))


def load(folder: Path) -> Layout | None:
    """Read it; None when there is none."""
    try:
        content = json.loads((folder / FILE_NAME).read_text())
    except FileNotFoundError:
        return None
    members = tuple(Member(**each) for each in content.pop("members"))
    return Layout(members=members, **content)
