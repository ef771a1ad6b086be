"""What workers know of their sites, as they post it and commands show it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from postroad.errors import InvalidInput

MOST_SHOWN = 100
"""Sites of one worker in a note, which is written again and again."""


class SiteState(StrEnum):
    """What a site does. The values are stored; the first ones are shown first."""

    SUSPENDED = "suspended"
    RESTING = "resting"
    ACTIVE = "active"
    WAITING = "waiting"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class SiteView:
    """One site of one worker. `waiting`, `at_work`: its jobs without and with a connection.
    `until`: of a suspension or a rest, RFC 3339. `reply`: the codes and the masked words of the
    last reply, or why the last connection ended. `reason`: of a suspension."""

    site: str
    state: SiteState
    connections: int = 0
    waiting: int = 0
    at_work: int = 0
    until: str | None = None
    reply: str | None = None
    replied_at: str | None = None
    reason: str | None = None


def posted_views(
    views: Iterable[SiteView], rules: Iterable[str] = (), *, has_program: bool = False
) -> str:
    """Return the note of a worker: the sites with the most to show, if there are too many, the
    first rules of its routing, and whether all its mail goes to a program."""
    order = list(SiteState)
    ranked = sorted(
        views, key=lambda each: (order.index(each.state), -each.waiting - each.at_work, each.site)
    )
    shown = [_short(asdict(each)) for each in ranked[:MOST_SHOWN]]
    more = max(0, len(ranked) - MOST_SHOWN)
    note = {"sites": shown, "more": more, "rules": list(islice(rules, MOST_SHOWN + 1))}
    return json.dumps(note | ({"program": True} if has_program else {}))


def has_program(text: str) -> bool:
    """Whether the note of a worker shows that all its mail goes to a program, whatever is
    rerouted. Not so where it is of the release before."""
    try:
        return json.loads(text)["program"] is True
    except (ValueError, KeyError, TypeError):
        return False


def has_no_rule(name: str, text: str) -> bool:
    """Whether the note of a worker shows that it has no rule of a name. Not so where it is of the
    release before, or has more rules than are shown."""
    try:
        rules = json.loads(text)["rules"]
        return name not in rules and len(rules) <= MOST_SHOWN
    except (ValueError, KeyError, TypeError):
        return False


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, 0)}


def read_views(text: str) -> tuple[Sequence[SiteView], int]:
    """Read the note of a worker, which may be of another release: its sites, and how many more it
    has. Raises: InvalidInput."""
    known = SiteView.__dataclass_fields__.keys()
    try:
        found = json.loads(text)
        views = [
            SiteView(
                **{
                    **{name: value for name, value in each.items() if name in known},
                    "state": SiteState(each["state"]),
                }
            )
            for each in found["sites"]
        ]
        return views, int(found["more"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidInput("the note of a worker cannot be read") from error
