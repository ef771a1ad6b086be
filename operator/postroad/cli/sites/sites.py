"""`postroad sites`, `suspend`, `resume`: what workers know of the sites that get their mail, and
which ones get none for a time. `flush`: makes delayed mail due now, also that of one site."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import click

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap import shared_state_of
from postroad.cli.mail.selected import change_by_spark
from postroad.cli.options import (
    DURATION,
    by_spark,
    json_option,
    on_purpose,
    say,
    say_count,
    selecting,
    with_queue,
)
from postroad.distributed.administration.administration import EntryChange
from postroad.domain.delivery.attempts import checked_reason
from postroad.domain.delivery.sites import (
    MAX_SUSPENSION,
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
from postroad.domain.values.text import escaped
from postroad.errors import InvalidInput
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.mail_queue import MailQueue, Operation
from postroad.worker.sites.control import MAX_DEFERRAL, READ_EVERY

MAX_SITE = 320
"""Characters of a site's name."""


@click.command()
@with_queue
@json_option
async def sites(queue: MailQueue, as_json: bool) -> None:
    """List the sites that workers have mail for, those that are suspended, and what is rerouted.

    As of the last 15 seconds; a worker lists a hundred sites at most, those with the most to show.
    """
    shared_state = shared_state_of(queue)
    suspended = await suspensions_of(shared_state)
    held = reroutes_in(await shared_state.published(Topic.REROUTES), MachineClock().now())
    rerouted = {each.name: each for each in held if each.of is RerouteOf.SITE}
    workers = await shared_state.published(Topic.WORKERS)
    order, seen, more = list(SiteState), set[str](), 0
    lines: list[tuple[str | None, SiteView]] = []
    for worker, (views, hidden) in sorted(_read_all(workers).items()):
        more += hidden
        seen |= {each.site for each in views}
        lines += [(worker, _as_suspended(each, suspended.get(each.site))) for each in views]
    lines += [
        (None, _as_suspended(SiteView(site, SiteState.IDLE), each))
        for site, each in suspended.items()
        if site not in seen
    ]
    lines += [
        (None, SiteView(site, SiteState.IDLE))
        for site in sorted(rerouted)
        if site not in seen and site not in suspended
    ]
    lines.sort(key=lambda each: (order.index(each[1].state), each[1].site, each[0] or ""))
    for name, view in lines:
        reroute = rerouted.get(view.site)
        value = {"worker": name, **asdict(view), "rerouted": _printed(reroute)}
        say(value, as_json=as_json, text=_line(name, view, reroute))
    for each in held:
        if each.of is RerouteOf.DOMAIN:
            text = f"the domain {each.name}  {_words(each)}"
            value = {"worker": None, "site": None, "domain": each.name, "rerouted": _printed(each)}
            say(value, as_json=as_json, text=text)
    if more and not as_json:
        click.echo(f"and {more} more sites with less to show")


@click.command()
@with_queue
@click.argument("site")
@click.option(
    "--for",
    "duration",
    type=DURATION,
    required=True,
    help="For how long, such as 2h; 720h at most.",
)
@click.option("--reason", required=True, help="Why; it is shown, also as the error of mail.")
async def suspend(queue: MailQueue, site: str, duration: timedelta, reason: str) -> None:
    """Send no mail to a SITE, as `postroad sites` and the attempt log name it.

    Workers obey within seconds. Mail that a connection has goes on; all other mail for the site
    waits, without an attempt."""
    if not timedelta(seconds=1) <= duration <= MAX_SUSPENSION:
        raise InvalidInput(
            f"a site is suspended for 1s to {format_duration(MAX_SUSPENSION)}: repeat the"
            " command before that is over"
        )
    text = checked_reason(reason)
    site_name(site)
    until = MachineClock().now() + duration
    made = Suspension(site, until, text, SuspendedBy.ADMINISTRATOR)
    shared_state = shared_state_of(queue)
    await shared_state.publish(Topic.SUSPENSIONS, site, made.text(), duration)
    click.echo(f"{site} gets no mail until {rfc3339(until)}")
    if site not in await known_sites(shared_state):
        click.echo(
            "no worker shows a site of this name: compare it with `postroad sites`", err=True
        )


@click.command()
@with_queue
@click.argument("site")
async def resume(queue: MailQueue, site: str) -> None:
    """Send mail to a suspended SITE again.

    Mail that was deferred comes by itself within half an hour, or by `postroad flush` once workers
    have read it, which takes five seconds."""
    shared_state = shared_state_of(queue)
    was = site in await suspensions_of(shared_state)
    await shared_state.take_down(Topic.SUSPENSIONS, site)
    if not was:
        raise InvalidInput(f"{site} is not suspended", hint="`postroad sites` names those that are")
    click.echo(
        f"{site} gets mail again within {format_duration(READ_EVERY)}; what was deferred comes"
        f" within {format_duration(MAX_DEFERRAL)}"
    )


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


async def suspensions_of(shared_state: SharedState) -> Mapping[str, Suspension]:
    """Return the suspensions that hold now, by site. Raises: ServerError."""
    now, found = MachineClock().now(), {}
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


def _printed(reroute: Reroute | None) -> Mapping[str, object] | None:
    if reroute is None:
        return None
    return {"to": reroute.target, "until": rfc3339(reroute.until), "reason": reroute.reason}


def _words(reroute: Reroute) -> str:
    return escaped(f"rerouted to {reroute.target} until {rfc3339(reroute.until)}: {reroute.reason}")


def _line(worker: str | None, view: SiteView, reroute: Reroute | None) -> str:
    parts = [f"{view.state:10}{view.connections:>5} open{view.at_work:>7} at work"]
    parts += [f"{view.waiting:>7} waiting", escaped(view.site)]
    if view.until is not None:
        parts.append(f"until {view.until}")
    if view.reason is not None:
        parts.append(escaped(view.reason))
    elif view.reply is not None:
        parts.append(escaped(view.reply))
    if reroute is not None:
        parts.append(_words(reroute))
    if worker is not None:
        parts.append(f"({escaped(worker)})")
    return "  ".join(parts)


ANSWERED_WITHIN = READ_EVERY + timedelta(seconds=3)
LOOK_EVERY = timedelta(seconds=0.25)

ASKED_FOR = timedelta(seconds=30)
"""Beyond which no worker obeys: what it would make due, the command has flushed already."""


def _by_spark(*, site: str | None, **options: Any) -> None:
    if site is not None:
        raise click.UsageError("--site goes without --spark")
    selecting(change_by_spark(EntryChange.FLUSH, Operation.FLUSH.past))(**options)


@click.command(Operation.FLUSH.value)
@by_spark(_by_spark)
@with_queue
@selecting
@click.option(
    "--site",
    help="The mail of one site, as `postroad sites` names it: workers try the site at once, as if "
    "it had never failed. Needs a worker that has had mail for it.",
)
@json_option
async def flush(queue: MailQueue, selector: Selector, site: str | None, as_json: bool) -> None:
    """Make the selected delayed mails due now."""
    if site is not None:
        if not selector.is_empty:
            raise click.UsageError("--site cannot be combined with other selectors")
        tried = await try_site(shared_state_of(queue), MachineClock(), site_name(site))
        for text in tried.problems:
            click.echo(text, err=True)
        selector = tried.selector
    counted = queue.flush(on_purpose(selector))
    await say_count(counted, as_json=as_json, verb=Operation.FLUSH.past)


@dataclass(frozen=True, slots=True)
class TriedSite:
    """Answers of workers: whose mail goes to the site, and what is to be known about that."""

    selector: Selector
    problems: tuple[str, ...]


async def try_site(shared_state: SharedState, clock: Clock, site: str) -> TriedSite:
    """Let all workers try a site now. Raises: InvalidInput where none knows it, ServerError."""
    if (suspended := (await suspensions_of(shared_state)).get(site)) is not None:
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
