"""Events of real processes to a receiver over loopback, over both engines: a process that is killed
between an outcome and its event, or while it sends events, repeats events and loses none."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import servers
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.consumer import Subscription
from support.event_receiver import SECRET, EventReceiver
from support.programs import Program
from support.sink import Sink
from support.small_mta import send

RETRIES = {"POSTROAD_RETRY_LANES": "1s", "POSTROAD_REPORTS_ENABLED": "false"}


def delivery_file(folder: Path, streams: Sequence[dict[str, Any]]) -> Path:
    (folder / "secret").write_text(SECRET)
    file = folder / "delivery.yaml"
    file.write_text(json.dumps({"events": list(streams)}))  # JSON is YAML
    return file


def webhook(receiver: EventReceiver, **more: Any) -> dict[str, Any]:
    return {"name": "crm", "webhook": receiver.url, "secret": {"file": "secret"}, **more}


@asynccontextmanager
async def a_queue(kind: str, tmp_path: Path) -> AsyncIterator[str]:
    if kind == "embedded":
        yield f"embedded://{tmp_path / 'store'}"
        return
    url = f"distributed://test.{servers.fresh()}"
    yield url


@asynccontextmanager
async def bound_queue(
    exchange: str, *keys: str
) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """A queue behind an exchange; what is returned takes one message."""
    server, name = RabbitMQ(servers.rabbitmq()), f"test.{exchange}"
    wanted = topology.Topology(
        (topology.DeclaredExchange(exchange, "topic", {}),),
        (
            topology.DeclaredQueue(
                name,
                tuple(topology.Binding(exchange, each) for each in keys),
                {"x-queue-type": "quorum"},
            ),
        ),
    )
    await server.administer(topology.declare, wanted)
    subscription = await Subscription.start(server.consuming, name, 10)

    async def taken() -> dict[str, Any]:
        async with asyncio.timeout(60):
            delivery = await anext(subscription)
        await delivery.ack()
        found: dict[str, Any] = json.loads(delivery.body)
        return found

    try:
        yield taken
    finally:
        await subscription.close()
        await server.administer(topology.delete, wanted)
        await server.close()


KINDS = [
    "embedded",
    pytest.param("distributed", marks=pytest.mark.needs("rabbitmq", "cassandra", "s3")),
]


async def an_mta(
    folder: Path, url: str, sink: Sink, streams: Sequence[dict[str, Any]], *options: str
) -> tuple[Program, int]:
    program = await Program.start(
        folder,
        *("mta", "--queue", url, "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{sink.port}", "--tls", "none"),
        *("--delivery", str(delivery_file(folder, streams))),
        *options,
        environment=RETRIES,
    )
    return program, await program.port("listening")


def refusing(verb: str, argument: str) -> str | None:
    if verb == "RCPT" and "no@" in argument:
        return "550 5.1.1 no such user"
    if verb == "RCPT" and "later" in argument:
        return "451 4.7.1 greylisted"
    return None


@pytest.mark.parametrize("kind", KINDS)
async def test_what_becomes_of_mail_arrives_as_signed_events(kind: str, tmp_path: Path) -> None:
    audit = tmp_path / "events.jsonl"
    async with (
        a_queue(kind, tmp_path) as url,
        EventReceiver() as receiver,
        Sink(refusing) as sink,
    ):
        streams = [
            webhook(receiver, addresses="Plain"),
            {"name": "audit", "file": str(audit), "kinds": ["Failed"]},
            {"name": "none", "file": f"{audit}.other", "domains": ["other.example"]},
        ]
        program, port = await an_mta(tmp_path, url, sink, streams)
        try:
            assert await asyncio.to_thread(send, port, ["b", "no", "later"]) == ["b", "no", "later"]
            await receiver.until(lambda: receiver.kinds().count("Deferred") >= 2)
            await receiver.until(lambda: audit.exists() and bool(audit.read_text()))
        finally:
            assert await program.stop() == 0

    by_recipient: dict[str, list[str]] = {}
    for event in receiver.events:
        own = by_recipient.setdefault(event["data"]["recipient"], [])
        own.append(event["type"])
    assert by_recipient["b@dest.example"] == ["Accepted", "Delivered"]
    assert by_recipient["no@dest.example"] == ["Accepted", "Failed"]
    assert by_recipient["later@dest.example"][:3] == ["Accepted", "Deferred", "Deferred"]
    (delivered,) = (each for each in receiver.events if each["type"] == "Delivered")
    data = delivered["data"]
    assert data["connection"]["address"] == "127.0.0.1"
    assert data["connection"]["port"] == sink.port
    assert data["delays"].keys() == {"queue", "connect", "transmission"}
    assert data["attempt"] == 1
    names = {each["data"]["name"] for each in receiver.events if "b@" in each["data"]["recipient"]}
    assert len(names) == 1
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert (line["type"], line["data"]["domain"]) == ("Failed", "dest.example")
    assert "recipient" not in line["data"]
    assert not Path(f"{audit}.other").exists()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_commands_hold_and_remove_arrives_as_events(kind: str, tmp_path: Path) -> None:
    async with a_queue(kind, tmp_path) as url, EventReceiver() as receiver, Sink(refusing) as sink:
        streams = [webhook(receiver, addresses="Plain", kinds=["Deferred", "Held", "Removed"])]
        program, port = await an_mta(tmp_path, url, sink, streams)
        try:
            await asyncio.to_thread(send, port, ["later1", "later2"])
            await receiver.until(lambda: receiver.kinds().count("Deferred") >= 2)
            for command in ("hold", "remove"):
                words = (command, "--queue", url, "--recipient", "later1@dest.example")
                assert await (await Program.start(tmp_path, *words)).stop_by_itself() == 0
            await receiver.until(lambda: "Removed" in receiver.kinds())
        finally:
            assert await program.stop() == 0

    found = [each for each in receiver.events if each["type"] != "Deferred"]
    assert [(each["type"], each["data"]["recipient"]) for each in found] == [
        ("Held", "later1@dest.example"),
        ("Removed", "later1@dest.example"),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_again_and_again_each_outcome_has_its_event(kind: str, tmp_path: Path) -> None:
    async with a_queue(kind, tmp_path) as url, EventReceiver() as receiver, Sink() as sink:
        streams = [webhook(receiver, addresses="Plain", kinds=["Delivered"])]
        accepted = list[str]()
        for life in range(4):
            program, port = await an_mta(tmp_path, url, sink, streams)
            names = [f"life{life}mail{n}" for n in range(60)]
            sending = asyncio.create_task(asyncio.to_thread(send, port, names))
            mails, events = len(sink.mails), len(receiver.events)
            if life % 2:  # while events are being sent
                await receiver.until(lambda events=events: len(receiver.events) > events + 10)  # type: ignore[misc]
            else:  # between the next hop's reply and the event
                await receiver.until(lambda mails=mails: len(sink.mails) > mails + 10)  # type: ignore[misc]
            await program.kill()
            accepted += await sending
        program, _ = await an_mta(tmp_path, url, sink, streams)

        def recipients() -> Counter[str]:
            found = (each["data"]["recipient"].partition("@")[0] for each in receiver.events)
            return Counter(found)

        try:
            await receiver.until(lambda: set(accepted) <= recipients().keys())
        finally:
            await program.stop()

    arrived = Counter(to.partition("@")[0] for mail in sink.mails for to in mail.recipients)
    assert set(accepted) <= arrived.keys()
    assert recipients().keys() <= arrived.keys()
    assert len(accepted) >= 4 * 8


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sink_that_hangs_or_fails_keeps_back_no_mail_and_gets_all_later(
    kind: str, tmp_path: Path
) -> None:
    async with (
        a_queue(kind, tmp_path) as url,
        EventReceiver(lambda _: 500) as receiver,
        Sink() as sink,
    ):
        receiver.gate.clear()
        streams = [webhook(receiver, kinds=["Delivered"])]
        program, port = await an_mta(tmp_path, url, sink, streams)
        try:
            names = [f"mail{n}" for n in range(30)]
            assert await asyncio.to_thread(send, port, names) == names
            await receiver.until(lambda: len(sink.mails) == 30)
            await receiver.held.wait()
            assert receiver.events == []
            receiver.gate.set()  # from now on it answers, and fails
            await receiver.until(lambda: bool(receiver.refused))
            receiver.status = lambda _: 200
            await receiver.until(lambda: len(receiver.events) >= 30)
        finally:
            await program.stop()

    assert len({each["id"] for each in receiver.events}) == 30


@pytest.mark.needs("rabbitmq", "cassandra", "s3")
async def test_an_exchange_gets_events_by_their_type(tmp_path: Path) -> None:
    exchange = f"postroad.events-{servers.fresh()}"
    async with (
        a_queue("distributed", tmp_path) as url,
        Sink(refusing) as sink,
        bound_queue(exchange, "#.Failed", "#.Delivered") as taken,
    ):
        streams = [{"name": "bus", "amqp": {"exchange": exchange}, "kinds": TYPES}]
        program, port = await an_mta(tmp_path, url, sink, streams)
        try:
            assert await asyncio.to_thread(send, port, ["b", "no"]) == ["b", "no"]
            found = [await taken() for _ in range(2)]
        finally:
            await program.stop()

    assert sorted(each["type"] for each in found) == ["Delivered", "Failed"]
    queue = url.partition("//")[2]
    assert {each["data"]["queue"] for each in found} == {queue}


TYPES = ["Delivered", "Failed"]


async def test_a_directory_has_no_exchange(tmp_path: Path) -> None:
    streams = [{"name": "bus", "amqp": {"exchange": "postroad.events"}}]
    file = delivery_file(tmp_path, streams)
    program = await Program.start(
        tmp_path,
        *("mta", "--queue", f"embedded://{tmp_path / 'store'}", "--listen", "127.0.0.1:0"),
        *("--relay", "127.0.0.1:1", "--delivery", str(file)),
    )

    assert await program.stop_by_itself() != 0
    assert "give webhook or file in place of amqp" in program.log.read_text()


async def test_a_stream_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    async with EventReceiver() as receiver, Sink() as sink:
        program, port = await an_mta(tmp_path, f"embedded://{tmp_path / 'store'}", sink, [])
        try:
            await asyncio.to_thread(send, port, ["before"])
            await receiver.until(lambda: len(sink.mails) == 1)
            delivery_file(tmp_path, [webhook(receiver, kinds=["Delivered"], addresses="Plain")])
            program.process.send_signal(1)  # SIGHUP
            while "delivery read again" not in program.log.read_text():
                await asyncio.sleep(0.05)
            await asyncio.to_thread(send, port, ["after"])
            await receiver.until(lambda: bool(receiver.events))
        finally:
            await program.stop()

    assert [each["data"]["recipient"] for each in receiver.events] == ["after@dest.example"]


async def test_receivers_in_processes_of_their_own_have_events_too(tmp_path: Path) -> None:
    async with EventReceiver() as receiver, Sink() as sink:
        program, port = await an_mta(
            tmp_path,
            f"embedded://{tmp_path / 'store'}",
            sink,
            [webhook(receiver)],
            *("--receivers", "2"),
        )
        try:
            names = [f"mail{n}" for n in range(10)]
            assert await asyncio.to_thread(send, port, names) == names
            await receiver.until(lambda: len(receiver.events) >= 20)
        finally:
            await program.stop()

    assert Counter(receiver.kinds()) == {"Accepted": 10, "Delivered": 10}
