"""`postroad flush`: makes delayed mail due now, that of selected mails or of one site."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import click

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap import board_of
from postroad.cli.mail.operation_commands import change_by_spark
from postroad.cli.options import by_spark, json_option, on_purpose, say_count, selecting, with_queue
from postroad.cli.sites.sites import site_name, suspensions_of
from postroad.distributed.administration.found_entries import EntryChange
from postroad.domain.delivery.site_flushes import FlushAnswer
from postroad.domain.queues.selection import Selector
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput
from postroad.ports.administration import Operation
from postroad.ports.clock import Clock
from postroad.ports.delivery.board import Board, Topic
from postroad.ports.mail_queue import MailQueue
from postroad.worker.sites.board_reading import READ_EVERY

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
        tried = await try_site(board_of(queue), MachineClock(), site_name(site))
        for text in tried.problems:
            click.echo(text, err=True)
        selector = tried.selector
    counted = queue.flush(on_purpose(selector))
    await say_count(counted, as_json=as_json, verb=Operation.FLUSH.past)


@dataclass(frozen=True, slots=True)
class TriedSite:
    """What workers answered: whose mail goes to the site, and what is to be known about that."""

    selector: Selector
    problems: tuple[str, ...]


async def try_site(board: Board, clock: Clock, site: str) -> TriedSite:
    """Let all workers try a site now. Raises: InvalidInput where none knows it, ServerError."""
    if (suspended := (await suspensions_of(board)).get(site)) is not None:
        raise InvalidInput(
            f"{site} gets no mail until {rfc3339(suspended.until)}: {suspended.reason}",
            hint=f"`postroad resume {site}` first",
        )
    workers = set(await board.posted(Topic.WORKERS))
    if not workers:
        raise InvalidInput(
            "no worker of this queue runs, so that its sites are not known",
            hint="start a worker; `postroad flush --domain` needs none",
        )
    number = uuid4().hex
    await board.post(Topic.FLUSHES, site, number, ASKED_FOR)
    answers = await _answers(board, clock, workers, number)
    domains = frozenset(domain for each in answers for domain in each.domains)
    if not domains:
        raise InvalidInput(
            f"no worker has had mail for a site {site}",
            hint="`postroad sites` has the names; `postroad flush --domain` needs none",
        )
    problems = [
        f"the worker {each} has not answered"
        for each in sorted(workers - {each.worker for each in answers})
    ]
    if (more := sum(each.more for each in answers)) > 0:
        problems.append(f"mail of {more} more domains of this site comes by its own time")
    is_all = any(each.is_all for each in answers)
    selector = Selector.all() if is_all else Selector(domains=domains)
    return TriedSite(selector, tuple(problems))


async def _answers(board: Board, clock: Clock, workers: set[str], number: str) -> list[FlushAnswer]:
    """Return the answers to a request, when all workers have answered or some take too long."""
    until = clock.elapsed() + ANSWERED_WITHIN
    while True:
        answers = []
        for text in (await board.posted(Topic.FLUSHED)).values():
            with suppress(InvalidInput):
                answers.append(FlushAnswer.of(text))
        answers = [each for each in answers if each.number == number]
        if workers <= {each.worker for each in answers} or clock.elapsed() >= until:
            return answers
        await clock.sleep(LOOK_EVERY)
