"""Sites as an administrator sees and controls them: listed, suspended, resumed, tried now."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from postroad.domain.delivery.attempts import checked_reason
from postroad.domain.delivery.sites import (
    MAX_SUSPENSION,
    READ_EVERY,
    FlushAck,
    Reroute,
    RerouteOf,
    SiteState,
    SiteView,
    SuspendedBy,
    Suspension,
    read_views,
    reroutes_in,
)
from postroad.domain.queues.selection import Selector
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.errors import InvalidInput
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic

MAX_SITE = 320
"""Characters of a site's name."""

ANSWERED_WITHIN = READ_EVERY + timedelta(seconds=3)
LOOK_EVERY = timedelta(seconds=0.25)

ASKED_FOR = timedelta(seconds=30)
"""Beyond which no worker obeys: what it would make due, the command has flushed already."""


@dataclass(frozen=True, slots=True)
class ListedSite:
    """A site of one worker, or one that no worker shows (`worker`: None), with its reroute."""

    worker: str | None
    view: SiteView
    reroute: Reroute | None

    def printed(self) -> dict[str, Any]:
        return {"worker": self.worker, **asdict(self.view), "rerouted": printed(self.reroute)}


@dataclass(frozen=True, slots=True)
class ListedSites:
    """Sites in the order in which they are shown, the domains that are rerouted, and how many sites
    workers leave out of what they show."""

    sites: Sequence[ListedSite]
    domains: Sequence[Reroute]
    more: int


async def listed_sites(shared_state: SharedState, now: datetime) -> ListedSites:
    """Return the sites that workers have mail for, those that are suspended, and what is rerouted.
    Raises: ServerError."""
    suspended = await suspensions_of(shared_state, now)
    held = reroutes_in(await shared_state.published(Topic.REROUTES), now)
    rerouted = {each.name: each for each in held if each.of is RerouteOf.SITE}
    workers = await shared_state.published(Topic.WORKERS)
    order, seen, more = list(SiteState), set[str](), 0
    found: list[tuple[str | None, SiteView]] = []
    for worker, (views, hidden) in sorted(_read_all(workers).items()):
        more += hidden
        seen |= {each.site for each in views}
        found += [(worker, _as_suspended(each, suspended.get(each.site))) for each in views]
    found += [
        (None, _as_suspended(SiteView(site, SiteState.IDLE), each))
        for site, each in suspended.items()
        if site not in seen
    ]
    found += [
        (None, SiteView(site, SiteState.IDLE))
        for site in sorted(rerouted)
        if site not in seen and site not in suspended
    ]
    found.sort(key=lambda each: (order.index(each[1].state), each[1].site, each[0] or ""))
    sites = [ListedSite(worker, view, rerouted.get(view.site)) for worker, view in found]
    return ListedSites(sites, [each for each in held if each.of is RerouteOf.DOMAIN], more)


def printed(reroute: Reroute | None) -> Mapping[str, object] | None:
    if reroute is None:
        return None
    return {"to": reroute.target, "until": rfc3339(reroute.until), "reason": reroute.reason}


async def suspend(
    shared_state: SharedState, now: datetime, site: str, duration: timedelta, reason: str
) -> tuple[Suspension, bool]:
    """Send no mail to a site for a time. Return the suspension, and whether a worker shows a site
    of this name. Raises: InvalidInput, ServerError."""
    if not timedelta(seconds=1) <= duration <= MAX_SUSPENSION:
        raise InvalidInput(
            f"a site is suspended for 1s to {format_duration(MAX_SUSPENSION)}: repeat the"
            " command before that is over"
        )
    text = checked_reason(reason)
    made = Suspension(site_name(site), now + duration, text, SuspendedBy.ADMINISTRATOR)
    await shared_state.publish(Topic.SUSPENSIONS, site, made.text(), duration)
    return made, site in await known_sites(shared_state)


async def resume(shared_state: SharedState, now: datetime, site: str) -> None:
    """Send mail to a suspended site again. Raises: InvalidInput where it is not, ServerError."""
    was = site in await suspensions_of(shared_state, now)
    await shared_state.take_down(Topic.SUSPENSIONS, site)
    if not was:
        raise InvalidInput(f"{site} is not suspended", hint="`postroad sites` names those that are")


def site_name(text: str) -> str:
    """Return the name of a site. Raises: InvalidInput."""
    if not text or len(text) > MAX_SITE or not text.isprintable():
        raise InvalidInput("this is no name of a site: take one that `postroad sites` shows")
    return text


async def known_sites(shared_state: SharedState) -> set[str]:
    """Return the names of the sites that workers show. Raises: ServerError."""
    entries = _read_all(await shared_state.published(Topic.WORKERS))
    return {each.site for views, _ in entries.values() for each in views}


def _read_all(entries: Mapping[str, str]) -> dict[str, tuple[Sequence[SiteView], int]]:
    """Read the entries of workers, but those that cannot be read."""
    found = {}
    for worker, text in entries.items():
        with suppress(InvalidInput):
            found[worker] = read_views(text)
    return found


async def suspensions_of(shared_state: SharedState, now: datetime) -> Mapping[str, Suspension]:
    """Return the suspensions that hold now, by site. Raises: ServerError."""
    found = {}
    for site, text in (await shared_state.published(Topic.SUSPENSIONS)).items():
        with suppress(InvalidInput):
            read = Suspension.of(site, text)
            if read.until > now:
                found[site] = read
    return found


def _as_suspended(view: SiteView, suspension: Suspension | None) -> SiteView:
    """Return what is shown of a site, as the shared state has it now: its worker may be late."""
    if suspension is not None:
        reason = f"{suspension.by}: {suspension.reason}"
        until = rfc3339(suspension.until)
        return replace(view, state=SiteState.SUSPENDED, until=until, reason=reason)
    if view.state is SiteState.SUSPENDED:
        return replace(view, state=SiteState.IDLE, until=None, reason=None)
    return view


@dataclass(frozen=True, slots=True)
class TriedSite:
    """Answers of workers: whose mail goes to the site, and what is to be known about that."""

    selector: Selector
    problems: tuple[str, ...]


async def try_site(shared_state: SharedState, clock: Clock, site: str) -> TriedSite:
    """Let all workers try a site now. Raises: InvalidInput where none knows it, ServerError."""
    if (suspended := (await suspensions_of(shared_state, clock.now())).get(site)) is not None:
        raise InvalidInput(
            f"{site} gets no mail until {rfc3339(suspended.until)}: {suspended.reason}",
            hint=f"`postroad resume {site}` first",
        )
    workers = set(await shared_state.published(Topic.WORKERS))
    if not workers:
        raise InvalidInput(
            "no worker of this queue runs, so that its sites are not known",
            hint="start a worker; `postroad flush --domain` needs none",
        )
    number = uuid4().hex
    await shared_state.publish(Topic.FLUSHES, site, number, ASKED_FOR)
    acks = await _acks(shared_state, clock, workers, number)
    domains = frozenset(domain for each in acks for domain in each.domains)
    if not domains:
        raise InvalidInput(
            f"no worker has had mail for a site {site}",
            hint="`postroad sites` has the names; `postroad flush --domain` needs none",
        )
    problems = [
        f"the worker {each} has not answered"
        for each in sorted(workers - {each.worker for each in acks})
    ]
    if (more := sum(each.more for each in acks)) > 0:
        problems.append(f"mail of {more} more domains of this site comes by its own time")
    is_all = any(each.is_all for each in acks)
    selector = Selector.all() if is_all else Selector(domains=domains)
    return TriedSite(selector, tuple(problems))


async def _acks(
    shared_state: SharedState, clock: Clock, workers: set[str], number: str
) -> list[FlushAck]:
    """Return the acknowledgements of a request, when all workers have or some take too long."""
    until = clock.elapsed() + ANSWERED_WITHIN
    while True:
        acks = []
        for text in (await shared_state.published(Topic.FLUSHED)).values():
            with suppress(InvalidInput):
                acks.append(FlushAck.of(text))
        acks = [each for each in acks if each.number == number]
        if workers <= {each.worker for each in acks} or clock.elapsed() >= until:
            return acks
        await clock.sleep(LOOK_EVERY)
