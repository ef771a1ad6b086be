"""Jobs over the servers of a queue: its waiting mail counted or changed, and what is wrong between
them."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial

import click

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap import open_queue
from postroad.bootstrap.archiving import change_entries, list_keys
from postroad.cli.pipeline.lake import say_result, summarize
from postroad.cli.pipeline.spark import open_with_spark, write_summary
from postroad.distributed.administration.administration import EntryChange
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.selection import Selector
from postroad.domain.values.text import escaped, json_line
from postroad.pipeline.archive.planning import Coverage, Stretch
from postroad.pipeline.results.findings import FindingKind, FindingLine, FindingSummary, summaries
from postroad.pipeline.results.lines import AgesLine, JobResult, Line

SHOWN = 10
"""Findings of each kind that the text names; JSON has all."""


def audit(*, url: str, repair: bool, adopt: bool, master: str, as_json: bool) -> None:
    """Run `postroad audit --deep`."""
    if adopt:
        raise click.UsageError("--adopt goes without --deep")
    coverage, findings, repaired = asyncio.run(_audit(url, repair, master))
    counts = summaries(findings, repaired)
    if as_json:
        lines: list[Line] = [*counts, *findings]
        for document in JobResult("audit", coverage, lines).documents():
            click.echo(json_line(document))
        return
    click.echo(escaped(_text(coverage, counts, findings)))


def _text(
    coverage: Coverage, counts: tuple[FindingSummary, ...], findings: tuple[FindingLine, ...]
) -> str:
    shown: Counter[FindingKind] = Counter()
    examples = []
    for each in findings:
        shown[each.kind] += 1
        if shown[each.kind] <= SHOWN:
            examples.append(each)
    more = {kind: count - SHOWN for kind, count in shown.items() if count > SHOWN}
    notes = [
        f"and {count} more of: {kind.value} (--json names all)" for kind, count in more.items()
    ]
    parts = [JobResult("audit", coverage, counts).text()]
    if examples:
        parts += ["", JobResult("audit", coverage, examples).text(), *notes]
    return "\n".join(parts)


async def _audit(
    url: str, repairs: bool, master: str
) -> tuple[Coverage, tuple[FindingLine, ...], Mapping[FindingKind, int]]:
    from postroad.pipeline.spark.jobs.audit_run import Audit, AuditedQueue, repair

    async with open_with_spark(url, master, "use `postroad verify DIR`") as opened:
        queue = opened.queue
        audited = AuditedQueue(
            name=queue.name,
            tables=opened.view_tables(),
            broker=queue.servers.broker(queue.name),
            blobs=queue.servers.blobs(queue.bucket),
            row_lifetime=queue.row_lifetime,
            lister=partial(list_keys, queue.bucket),
        )
        async with open_queue(url, settings=opened.settings) as engine:
            assert isinstance(engine, DistributedQueue)
            await engine.check_owner()
            found = await Audit(opened.session, audited, MachineClock(), Timing()).run()
            repaired = await repair(engine, found) if repairs else {}
        if not found.is_counted:
            click.echo("postroad: RabbitMQ did not report all messages: none was counted", err=True)
        counts = {each.kind.value: each.found for each in summaries(found.findings, repaired)}
        left = sum(counts.values()) - sum(repaired.values())
        write_summary(opened.settings.pipeline.summary_file, counts, findings=left)
        return Coverage(Stretch(found.first, found.times.young)), found.findings, repaired


def ages(*, url: str, master: str, as_json: bool) -> None:
    """Run `postroad ages --spark`."""
    say_result(asyncio.run(_ages(url, master)), as_json=as_json)


async def _ages(url: str, master: str) -> JobResult[AgesLine]:
    from postroad.pipeline.spark.jobs.waiting import count_ages

    async with open_with_spark(url, master, "leave --spark away") as opened:
        now, tables = MachineClock().now(), opened.view_tables()
        lines = await count_ages(opened.session, tables, now, now + Timing().skew)
        result = JobResult("ages", Coverage(Stretch(now, now)), lines)
        summarize(opened.settings, result)
    return result


async def change(url: str, change: EntryChange, selector: Selector, master: str) -> int:
    """Change the selected mails that wait: Spark finds them, and its processes open the queue and
    change those of one partition each. Returns how many. Raises: NotInstalled, InvalidQueueURL,
    QueueNotFound, JobFailed, ServerError."""
    from postroad.pipeline.spark.jobs.waiting import change_selected

    async with open_with_spark(url, master, "leave --spark away") as opened:
        now, tables = MachineClock().now(), opened.view_tables()
        changer = partial(change_entries, url, change, selector)
        last = now + Timing().skew
        return await change_selected(opened.session, tables, selector, changer, now, last)
