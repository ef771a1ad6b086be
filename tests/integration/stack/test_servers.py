"""RabbitMQ, Cassandra and S3 keep their data and ports over every command except `down`."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
import pika
import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster

from stack import processes
from stack.local import Stack
from stack.native import NativeServer
from stack.server import State


@dataclass(frozen=True)
class Probe:
    """The functions that leave something durable on a server and find it again."""

    write: Callable[[dict[str, str]], None]
    read: Callable[[dict[str, str]], bytes]


def channel(environment: dict[str, str]) -> Any:
    parameters = pika.URLParameters(environment["POSTROAD_RABBITMQ_URI"])
    return pika.BlockingConnection(parameters).channel()


def publish(environment: dict[str, str]) -> None:
    opened = channel(environment)
    opened.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
    opened.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    opened.basic_publish("", "kept", b"a letter", properties)
    opened.connection.close()


def consume(environment: dict[str, str]) -> bytes:
    opened = channel(environment)
    _, _, body = opened.basic_get("kept", auto_ack=False)
    opened.connection.close()
    return bytes(body)


def session(environment: dict[str, str]) -> Any:
    login = PlainTextAuthProvider(
        environment["POSTROAD_CASSANDRA_USERNAME"], environment["POSTROAD_CASSANDRA_PASSWORD"]
    )
    return Cluster(
        [environment["POSTROAD_CASSANDRA_CONTACT_POINTS"]],
        port=int(environment["POSTROAD_CASSANDRA_PORT"]),
        auth_provider=login,
    ).connect()


def insert(environment: dict[str, str]) -> None:
    opened = session(environment)
    opened.execute(
        "CREATE KEYSPACE kept WITH replication = {'class': 'NetworkTopologyStrategy',"
        f" '{environment['POSTROAD_CASSANDRA_LOCAL_DATACENTER']}': 1}}"
    )
    opened.execute("CREATE TABLE kept.letters (id int PRIMARY KEY, body blob)")
    opened.execute("INSERT INTO kept.letters (id, body) VALUES (1, textAsBlob('a letter'))")
    opened.cluster.shutdown()


def select(environment: dict[str, str]) -> bytes:
    opened = session(environment)
    row = opened.execute("SELECT body FROM kept.letters WHERE id = 1").one()
    opened.cluster.shutdown()
    return bytes(row.body)


def store(environment: dict[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=environment["POSTROAD_S3_ENDPOINT"],
        region_name=environment["POSTROAD_S3_REGION"],
        aws_access_key_id=environment["POSTROAD_S3_ACCESS_KEY"],
        aws_secret_access_key=environment["POSTROAD_S3_SECRET_KEY"],
    )


def put(environment: dict[str, str]) -> None:
    client = store(environment)
    client.create_bucket(Bucket="kept")
    client.put_object(Bucket="kept", Key="letter", Body=b"a letter")


def get(environment: dict[str, str]) -> bytes:
    body = store(environment).get_object(Bucket="kept", Key="letter")["Body"]
    return bytes(body.read())


PROBES = {
    "rabbitmq": Probe(publish, consume),
    "cassandra": Probe(insert, select),
    "s3": Probe(put, get),
}


@pytest.fixture(params=PROBES, scope="module")
def server(
    request: pytest.FixtureRequest, own_stack: Stack, prepared: Callable[[str], NativeServer]
) -> NativeServer:
    """A running server with something durable on it."""
    made = prepared(request.param)
    own_stack.up([made.name])
    PROBES[made.name].write(made.environment())
    return made


def test_a_second_up_is_quick_and_changes_nothing(
    server: NativeServer, quickest_up: Callable[[str], float]
) -> None:
    before = (server.pid, server.environment())

    assert quickest_up(server.name) < 1
    assert (server.pid, server.environment()) == before


def test_what_was_written_survives_a_kill(own_stack: Stack, server: NativeServer) -> None:
    before = server.environment()

    server.kill()
    killed = server.state()
    own_stack.up([server.name])

    assert killed is State.STOPPED
    assert server.environment() == before
    assert PROBES[server.name].read(before) == b"a letter"


def test_what_was_written_survives_a_restart(server: NativeServer) -> None:
    server.restart()

    assert PROBES[server.name].read(server.environment()) == b"a letter"


def test_a_paused_server_does_not_answer_until_it_is_resumed(server: NativeServer) -> None:
    server.pause()
    paused = (server.state(), server.answers())
    server.resume()
    server.wait_ready(timeout_seconds=30)

    assert paused == (State.PAUSED, False)
    assert server.state() is State.RUNNING


def test_up_wakes_a_paused_server(own_stack: Stack, server: NativeServer) -> None:
    pid = server.pid
    server.pause()

    own_stack.up([server.name])

    assert (server.state(), server.pid) == (State.RUNNING, pid)


def test_a_start_that_was_cut_short_is_made_good(own_stack: Stack, server: NativeServer) -> None:
    (server.directory / "started").unlink()
    cut_short = server.state()

    own_stack.up([server.name])

    assert cut_short is State.STARTING
    assert PROBES[server.name].read(server.environment()) == b"a letter"


def test_down_ends_a_frozen_server_and_leaves_nothing(
    own_stack: Stack, server: NativeServer
) -> None:
    server.pause()

    own_stack.down([server.name])

    assert processes.members(server.directory) == []
    assert not server.directory.exists()
    assert server.state() is State.ABSENT


def test_a_stack_that_lost_its_shell_runs_on(own_stack: Stack, server: NativeServer) -> None:
    """The servers are in sessions of their own, so a hang-up of ours does not reach them."""
    own_stack.up([server.name])
    leaders = [process for process in processes.members(server.directory) if process.leads_session]

    assert leaders
    assert all(process.session == process.pid for process in leaders)
    assert processes.send(leaders[0], signal.SIGCONT)
