"""What a worker process is made of: the suppression list and its rules reach deliveries, also where
the file of delivery changes while the process runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroad import HandedMail, Mail, Outcome, open_queue
from postroad.bootstrap import shared_state_of, suppression_list_of
from postroad.cli.processes.delivering import deliver, target_and_file
from postroad.cli.processes.events import PublishedStreams
from postroad.cli.processes.long_running import Process
from postroad.domain.delivery.events import EventRule
from postroad.domain.delivery.suppressed import by_administrator
from postroad.domain.queues.selection import Selector
from postroad.ports.delivery import Topic
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.settings.delivery import Worker, WorkerFunction
from postroad.telemetry.health import Readiness

handed: list[str] = []


async def take(mail: HandedMail) -> dict[str, Outcome]:
    """Take all mail but for `nowhere`."""
    handed.extend(mail.recipients)
    answers = {"nowhere@dest.example": Outcome.failed("550 5.1.1 no such mailbox")}
    return {each: answers.get(each, Outcome.delivered()) for each in mail.recipients}


@asynccontextmanager
async def a_worker(file: Path) -> AsyncIterator[tuple[Process, MailQueue]]:
    """A worker that hands mail to `take`, and its queue, on whose list is `asked`."""
    handed.clear()
    settings = Settings(
        worker=Worker(delivery_file=file),
        worker_function=WorkerFunction(name=f"{__name__}:take"),
    )
    async with open_queue("memory://delivering", create=True, settings=settings) as queue:
        entry = by_administrator(
            "asked@dest.example", "asked for it", datetime.now(UTC), is_hashed=False
        )
        await suppression_list_of(queue).add("", [entry])
        this = Process(Readiness(), asyncio.Event(), timedelta(seconds=5), queue)
        running = asyncio.create_task(deliver(this, settings, *target_and_file(settings)))
        try:
            yield this, queue
        finally:
            this.stop.set()
            await running


async def delivered(queue: MailQueue, *recipients: str) -> list[str]:
    """Queue a mail; return who got it, once it is over."""
    handed.clear()
    to = tuple(f"{each}@dest.example" for each in recipients)
    await queue.enqueue(Mail("a@origin.example", to, b"Subject: x\r\n\r\nx\r\n"))
    async with asyncio.timeout(60):
        while (await queue.size()).size:
            await asyncio.sleep(0.002)
    return [each.partition("@")[0] for each in handed if "origin" not in each]


async def suppressed(queue: MailQueue) -> set[str]:
    return {each.name async for each in suppression_list_of(queue).entries("")}


async def test_streams_are_published_for_those_who_change_mails_and_withdrawn_with_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "delivery.yaml"
    audit, held = (f"{{name: {name}, file: {tmp_path / name}" for name in ("audit", "held"))
    file.write_text(f"events: [{audit}}}, {held}, kinds: [Held]}}]\n")
    async with a_worker(file) as (process, queue):
        while set(await streams(queue)) != {"audit", "held"}:
            await asyncio.sleep(0.002)
        await queue.enqueue(Mail("a@x.example", ["b@x.example"], b"x"), timedelta(hours=1))
        await queue.hold(Selector.all())
        await queue.remove(Selector.all())
        async with asyncio.timeout(60):
            while not (tmp_path / "held").exists() or "Removed" not in written(tmp_path / "audit"):
                await asyncio.sleep(0.002)
        assert written(tmp_path / "audit") == ["Held", "Removed"]
        assert written(tmp_path / "held") == ["Held"]

        file.write_text("limits: []\n")
        process.look()
        async with asyncio.timeout(60):
            while await streams(queue):
                await asyncio.sleep(0.002)


async def test_a_worker_withdraws_no_streams_that_only_the_file_of_another_has() -> None:
    async with open_queue("memory://of-two-workers", create=True) as queue:
        older, newer = (PublishedStreams(shared_state_of(queue)) for _ in range(2))
        running = [asyncio.create_task(each.run()) for each in (older, newer)]
        try:
            for worker, names, shown in (
                (older, ("audit", "held"), {"audit", "held"}),
                (newer, ("crm",), {"audit", "held", "crm"}),
                (older, ("audit",), {"audit", "crm"}),
            ):
                worker.use([EventRule(each) for each in names])
                async with asyncio.timeout(60):
                    while set(await streams(queue)) != shown:
                        await asyncio.sleep(0.002)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def streams(queue: MailQueue) -> Mapping[str, str]:
    return await shared_state_of(queue).published(Topic.STREAMS)


def written(file: Path) -> list[str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(each)["type"] for each in lines]


async def test_the_list_of_the_queue_is_used_as_the_file_of_delivery_has_it(tmp_path: Path) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("suppression: {}\n")
    async with a_worker(file) as (process, queue):
        assert await delivered(queue, "asked", "yes") == ["yes"]

        file.write_text("limits: []\n")
        process.look()
        async with asyncio.timeout(60):
            while await delivered(queue, "asked") != ["asked"]:
                pass

        file.write_text("suppression: {bounces: [NoMailbox], after: 1}\n")
        process.look()
        async with asyncio.timeout(60):
            while await delivered(queue, "asked"):
                pass
        assert await delivered(queue, "nowhere", "yes") == ["nowhere", "yes"]
        assert await suppressed(queue) == {"asked@dest.example", "nowhere@dest.example"}
        assert await delivered(queue, "nowhere") == []
