"""What keeping the outcomes of attempts costs: the rate of endings with them, and without, on one
queue in one run, for both engines. The outcomes are made anew for each mail, as a worker does."""

from __future__ import annotations

import tempfile
from functools import partial

from bench.bare_mail import BUCKETS, HOUR
from bench.queue_rates import MAILS, ROUNDS, Ours, Watch, enter
from bench.queue_setup import BenchServers, queue_names
from bench.results import Result, compared, progress
from postroad import AttemptOutcomes, Outcome, open_queue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.ports.mail_queue import Item, MailQueue

CONTENT = b"Subject: measured\r\n\r\n" + b"x" * 2000
WITHOUT = "the same without outcomes"


class Keeping(Ours):
    """A consumer that hands in what it heard."""

    async def deliver(self, item: Item) -> None:
        assert await item.content() == CONTENT
        heard = dict.fromkeys(item.mail.recipients, Outcome.delivered("250 2.0.0 queued as 4XyZ"))
        await item.done(AttemptOutcomes.of(heard, 0.25, item.mail.sender))


async def measure(where: BenchServers) -> list[Result]:
    """Measure both engines, 16 and 64 in flight."""
    results: list[Result] = []
    configuration = ViewConfiguration(HOUR, BUCKETS)
    async with queue_names(where) as name:
        opening = open_queue(
            f"distributed://{name}",
            create=True,
            configuration=configuration,
            settings=where.settings,
        )
        async with opening as queue:
            results += await compare("distributed", queue)
    with tempfile.TemporaryDirectory() as folder:
        async with open_queue(f"embedded://{folder}/outgoing", create=True) as queue:
            results += await compare("embedded", queue)
    return results


async def compare(engine: str, queue: MailQueue) -> list[Result]:
    """Enter and leave alternately with outcomes and without."""
    results: list[Result] = []
    ways = {"keeping": Keeping(queue, CONTENT), "plain": Ours(queue, CONTENT)}
    for in_flight in (16, 64):
        mails, watches = MAILS[in_flight], {way: Watch() for way in ways}
        entering = {way: Watch() for way in ways}
        for number in range(ROUNDS):
            for way, candidate in list(ways.items())[:: 1 - 2 * (number % 2)]:
                await entering[way].time(mails, partial(enter, candidate, in_flight, mails))
                await watches[way].time(mails, partial(candidate.leave, mails, in_flight))
        found = [
            compared(
                step,
                f"{engine}, {in_flight} in flight",
                "mails/s",
                each["keeping"].rates,
                WITHOUT,
                each["plain"].rates,
            )
            for step, each in (("enqueue", entering), ("dequeue", watches))
        ]
        progress(found)
        results += found
    return results
