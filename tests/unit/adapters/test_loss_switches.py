"""Settings of the adapters that mail depends on, each of which could be turned without any error:
what is asked of the servers, and what their answers mean."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from botocore.exceptions import ClientError
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from pika import frame, spec

from postroad.adapters.cassandra import history, mark_statements, schema, statements
from postroad.adapters.cassandra.connection import Access, cluster_of
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.rabbitmq.connection import Channel
from postroad.adapters.rabbitmq.publisher import PublishedMessage, _Confirming
from postroad.adapters.rabbitmq.topology import (
    DUE,
    NEVER,
    SHARED,
    UNROUTED,
    Binding,
    declare,
    topology_of,
)
from postroad.adapters.s3 import store as parts
from postroad.adapters.s3.objects import translated
from postroad.domain.queues.names import DELAY_SECONDS, QueueName
from postroad.errors import BlobMissing, BlobsUnavailable, BrokerUnavailable, Unroutable
from postroad.ports.view import TableOptions

SECOND = timedelta(seconds=1)
ACCESS = Access(("127.0.0.1",), 9042, "dc1", "keyspace")
MESSAGE = PublishedMessage("work", UUID(int=1), b"body")
TOPOLOGY = topology_of(QueueName("mail", "outgoing"), 7)


# Cassandra


def test_every_read_and_write_is_a_quorum_of_the_local_data_center() -> None:
    cluster = cluster_of(ACCESS, SECOND, SECOND)
    profiles = cluster.profile_manager.profiles
    cluster.shutdown()

    profile = profiles[EXEC_PROFILE_DEFAULT]  # the others are the driver's, for graphs
    assert profile.consistency_level == ConsistencyLevel.LOCAL_QUORUM
    assert profile.serial_consistency_level == ConsistencyLevel.LOCAL_SERIAL


async def test_no_statement_is_prepared_with_a_level_below_the_profiles() -> None:
    """None is the profile's; SERIAL reads are stronger."""
    session = Session(ACCESS)
    levels = {}
    for module in (statements, mark_statements, history):
        for name, each in vars(module).items():
            if isinstance(each, Statement):
                driver = SimpleNamespace(
                    prepare=lambda _: SimpleNamespace(consistency_level=None, fetch_size=None)
                )
                prepared = await session._prepare_on_server(cast("Any", driver), each)
                levels[name] = (prepared.consistency_level, each.serial)
    await session.close()

    assert len(levels) > 30
    assert {(None, False), (ConsistencyLevel.LOCAL_SERIAL, True)} >= set(levels.values())


@pytest.mark.parametrize("condition", ["ending = null", "delivered_at = null", "purged_through ="])
def test_ending_is_written_only_where_no_other_mark_stands(condition: str) -> None:
    _, _, conditions = mark_statements.END.cql.partition(" IF ")

    assert condition in conditions


@pytest.mark.parametrize("table", ["deleted_mails", "deliveries"])
def test_marks_and_records_outlive_rows_that_were_written_to_live_longer(table: str) -> None:
    shorter = TableOptions({}, timedelta(days=7), timedelta(hours=6), timedelta(hours=3))
    before = schema.wanted(replace(shorter, row_lifetime=timedelta(days=14)))

    assert schema.options_of(table, before, shorter).row_lifetime == timedelta(days=14)
    assert schema.options_of("enqueued_mails", before, shorter).row_lifetime == timedelta(days=7)


@pytest.mark.parametrize("table", ["deleted_mails", "deliveries"])
def test_marks_and_records_that_never_expire_go_on_so(table: str) -> None:
    options = TableOptions({}, timedelta(days=7), timedelta(hours=6), timedelta(hours=3))
    never = (0, *schema.wanted(options)[1:])

    assert schema.wanted(schema.options_of(table, never, options)) == never
    assert schema.options_of("enqueued_mails", never, options) == options


def test_marks_live_longer_before_rows_do() -> None:
    order = schema.AGING_TABLES

    assert order.index("deleted_mails") < order.index("enqueued_mails")


# RabbitMQ


class Driver:
    """A channel of the driver that notes what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[spec.BasicProperties, bool]] = []

    def add_on_return_callback(self, callback: Any) -> None:
        self.returned = callback

    def basic_publish(
        self, _: str, __: str, ___: bytes, properties: spec.BasicProperties, mandatory: bool = False
    ) -> None:
        self.published.append((properties, mandatory))


def confirming() -> tuple[_Confirming, Driver]:
    driver = Driver()
    channel = SimpleNamespace(
        driver=driver, when_lost=[], when_outdated=[], is_outdated=False, lost=None
    )
    channel.outdate = lambda: setattr(channel, "is_outdated", True)
    return _Confirming(cast("Channel", channel)), driver


async def test_message_is_persistent_and_comes_back_when_no_queue_takes_it() -> None:
    channel, driver = confirming()

    confirm = channel.send("exchange", MESSAGE)

    [(properties, mandatory)] = driver.published
    assert properties.delivery_mode == 2
    assert mandatory
    driver.returned(None, None, properties, None)
    channel.on_confirm(frame.Method(1, spec.Basic.Ack(1)))
    with pytest.raises(Unroutable):
        await confirm


async def test_nack_is_no_confirm() -> None:
    channel, _ = confirming()
    confirm = channel.send("exchange", MESSAGE)

    channel.on_confirm(frame.Method(1, spec.Basic.Nack(1)))
    assert channel.channel.is_outdated, "the next message goes over another one"

    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(confirm, 60)


def test_dead_queue_drops_nothing_however_often_it_is_tried() -> None:
    [dead] = [each for each in TOPOLOGY.queues if each.name.endswith(".dead")]

    assert dead.arguments["x-delivery-limit"] == NEVER == 1_000_000_000
    assert "x-dead-letter-exchange" not in dead.arguments
    assert not {"x-max-length", "x-max-length-bytes", "x-message-ttl"} & dead.arguments.keys()


async def test_exchanges_and_queues_outlive_a_restart_of_the_broker() -> None:
    declared: dict[str, object] = {}

    class Recording:
        driver = SimpleNamespace(exchange_declare="exchange", queue_declare="queue", queue_bind="")

        async def call(self, method: str, name: str, *_: object, **arguments: object) -> None:
            if method:
                declared[f"{method} {name}"] = arguments.get("durable")

        send = call

    for each in (TOPOLOGY, SHARED):
        await declare(cast("Channel", Recording()), each)

    count = sum(len(each.exchanges) + len(each.queues) for each in (TOPOLOGY, SHARED))
    assert [*declared.values()] == [True] * count


def test_what_moves_on_is_kept_until_its_next_queue_has_it() -> None:
    queues = [*TOPOLOGY.queues, *SHARED.queues]
    moving = [each for each in queues if "x-dead-letter-exchange" in each.arguments]

    assert len(moving) == 1 + len(DELAY_SECONDS)
    for each in moving:
        assert each.arguments["x-dead-letter-strategy"] == "at-least-once"
        assert each.arguments["x-overflow"] == "reject-publish"
    assert {each.arguments["x-queue-type"] for each in queues} == {"quorum"}


def test_delayed_message_that_is_due_goes_to_its_own_work_queue_or_out_of_the_way() -> None:
    """A message that no queue takes would stay in its delay queue, before all others."""
    [work] = [each for each in TOPOLOGY.queues if each.name.endswith(".work")]
    exchanges = {each.name: each.arguments for each in SHARED.exchanges}

    assert Binding(DUE, "*.mail.outgoing") in work.bindings
    assert exchanges[DUE] == {"alternate-exchange": UNROUTED}
    assert [each.name for each in SHARED.queues if Binding(UNROUTED, "") in each.bindings]


# S3


def test_only_the_stores_own_word_says_that_bytes_are_missing() -> None:
    class NotFoundError(Exception):
        """What obstore raises for any 404."""

    proxy = NotFoundError("server returned 404 Not Found: <html>no such page</html>")
    store = NotFoundError("404 Not Found: <Error><Code>NoSuchKey</Code></Error>")

    assert isinstance(translated(proxy), BlobsUnavailable)
    assert translated(proxy).transient
    assert isinstance(translated(store), BlobMissing)


@pytest.mark.parametrize("code", ["ExistingObjectIsDirectory", "OperationAborted"])
def test_an_upload_that_conflicted_with_another_request_may_be_repeated(code: str) -> None:
    conflict = ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 409}},  # type: ignore[typeddict-item]
        "CompleteMultipartUpload",
    )

    assert isinstance(parts.translated(conflict), BlobsUnavailable)
    assert translated(Exception(f"409 Conflict: <Error><Code>{code}</Code></Error>")).transient
