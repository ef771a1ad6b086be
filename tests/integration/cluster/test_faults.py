"""Every fault has the effect that its method names, as a client sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pika
import pytest
from botocore.exceptions import ClientError
from cassandra import RequestExecutionException
from cassandra.cluster import NoHostAvailable

from integration.cluster.clients import (
    ALL,
    ONE,
    QUORUM,
    amqp,
    cql,
    declare,
    drain,
    execute,
    make_letters,
    publish,
    store,
)
from servers import fresh
from stack import ports, processes
from stack.clusters import Cluster
from stack.clusters.network import namespaces
from stack.errors import NotPossible
from stack.server import State

HOUR = 3600


def eventually(condition: object, timeout: float = 120) -> None:
    """Wait until something holds, because other nodes notice a fault only after a while."""
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.5)


def test_a_killed_cassandra_node_is_gone_and_the_others_are_a_quorum(cluster: Cluster) -> None:
    keyspace = fresh()
    with cql(cluster, "cassandra-1", "cassandra-2") as session:
        make_letters(session, keyspace)
        cluster.kill("cassandra-3")
        assert cluster.state("cassandra-3") is State.STOPPED
        assert not ports.answers(9042, cluster.node("cassandra-3").host)

        execute(session, f"INSERT INTO {keyspace}.letters (id, body) VALUES (1, 'a')", QUORUM)
        with pytest.raises((RequestExecutionException, NoHostAvailable)):
            execute(session, f"INSERT INTO {keyspace}.letters (id, body) VALUES (2, 'b')", ALL)

        cluster.start("cassandra-3")
        cluster.settled()
        assert execute(session, f"SELECT body FROM {keyspace}.letters WHERE id = 1", ALL)


def test_a_killed_rabbitmq_node_is_gone_and_the_others_serve_its_queues(cluster: Cluster) -> None:
    queue = fresh()
    with amqp(cluster, "rabbitmq-1") as channel:
        declare(channel, queue)
        publish(channel, queue, "before")
    cluster.settled()
    cluster.kill("rabbitmq-1")
    assert not ports.answers(5672, cluster.node("rabbitmq-1").host)

    def is_confirmed() -> bool:
        try:
            with amqp(cluster) as channel:
                publish(channel, queue, "meanwhile")
        except pika.exceptions.AMQPError:
            return False  # refused while the others choose a leader
        return True

    eventually(is_confirmed)
    cluster.start("rabbitmq-1")
    cluster.settled()

    with amqp(cluster, "rabbitmq-1") as channel:
        assert drain(channel, queue) == {"before", "meanwhile"}
        channel.queue_delete(queue)


def test_all_nodes_killed_at_once_come_back_with_what_was_acknowledged(cluster: Cluster) -> None:
    queue, keyspace = fresh(), fresh()
    with amqp(cluster) as channel, cql(cluster, "cassandra-1") as session:
        declare(channel, queue)
        make_letters(session, keyspace)
        cluster.settled()
        for number in range(20):
            publish(channel, queue, str(number))
            statement = f"INSERT INTO {keyspace}.letters (id, body) VALUES ({number}, 'a')"
            execute(session, statement, QUORUM)
        for name in cluster.nodes:
            cluster.kill(name)
    cluster.start(*cluster.nodes)
    cluster.settled(300)

    with amqp(cluster) as channel, cql(cluster, "cassandra-2") as session:
        assert drain(channel, queue) == {str(number) for number in range(20)}
        assert len(execute(session, f"SELECT id FROM {keyspace}.letters", QUORUM)) == 20
        channel.queue_delete(queue)


def test_a_killed_gateway_leaves_the_other_one_with_all_objects(cluster: Cluster) -> None:
    bucket = fresh()
    client = store(cluster.environment())
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="a", Body=b"letter")

    cluster.kill("s3-1")

    for _ in range(4):
        assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"letter"


@pytest.mark.parametrize("name", ["cassandra-2", "rabbitmq-2", "s3-2"])
def test_a_paused_node_does_not_answer_until_it_is_resumed(cluster: Cluster, name: str) -> None:
    cluster.pause(name)

    assert cluster.state(name) is State.PAUSED
    assert not cluster.node(name).answers()

    cluster.resume(name)
    cluster.settled()
    assert cluster.state(name) is State.RUNNING


def test_a_partition_cuts_groups_off_from_each_other_alone(cluster: Cluster) -> None:
    keyspace = fresh()
    with cql(cluster, "cassandra-1") as session:
        make_letters(session, keyspace)
    statement = f"INSERT INTO {keyspace}.letters (id, body) VALUES (1, 'a')"
    with cql(cluster, "cassandra-2") as majority, cql(cluster, "cassandra-1") as minority:
        cluster.partition(["cassandra-1"], ["cassandra-2", "cassandra-3"])

        execute(majority, statement, QUORUM)
        with pytest.raises((RequestExecutionException, NoHostAvailable)):
            execute(minority, statement, QUORUM)
        assert cluster.cassandra("cassandra-1").accepts()  # the machine reaches nodes on both sides

        cluster.heal()
        cluster.settled()
        execute(minority, statement, ALL)


def test_a_ring_is_pairs_that_overlap(cluster: Cluster) -> None:
    ring = ["cassandra-1", "cassandra-2"], ["cassandra-2", "cassandra-3"]
    cluster.partition(*ring)

    assert reaches(cluster, "cassandra-1", "cassandra-2")
    assert reaches(cluster, "cassandra-2", "cassandra-3")
    assert not reaches(cluster, "cassandra-1", "cassandra-3")
    assert not reaches(cluster, "cassandra-3", "cassandra-1")


def test_a_one_way_partition_loses_what_one_side_sends(cluster: Cluster) -> None:
    cluster.partition(["cassandra-1"], ["cassandra-2"], one_way=True)

    assert datagram_arrives(cluster, "cassandra-2", "cassandra-1")
    assert not datagram_arrives(cluster, "cassandra-1", "cassandra-2")


def test_clients_are_cut_off_one_by_one(cluster: Cluster) -> None:
    environments = {name: cluster.environment(name) for name in ("alice", "bob")}
    cluster.partition(["alice"], ["cassandra-1"])
    target = cluster.node("cassandra-1").host

    answers = {name: run(CONNECT, each, target) for name, each in environments.items()}

    assert answers == {"alice": "no", "bob": "yes"}
    assert ports.answers(9042, target)


def test_the_machine_can_be_cut_off_from_nodes(cluster: Cluster) -> None:
    cluster.partition(["host"], ["rabbitmq-3"])

    assert not ports.answers(5672, cluster.node("rabbitmq-3").host)
    assert reaches(cluster, "rabbitmq-1", "rabbitmq-3", 5672)
    with amqp(cluster):  # the balancer connects to another node
        pass


def test_a_slow_node_answers_later_by_the_same_rules(cluster: Cluster) -> None:
    target = cluster.node("s3-1").host
    before = connecting_seconds(target, 9000)

    cluster.slow("s3-1", network=0.3)
    slow = connecting_seconds(target, 9000)
    cluster.slow("s3-1")
    after = connecting_seconds(target, 9000)

    assert slow >= 0.3
    assert max(before, after) < slow


@pytest.mark.parametrize("name", ["cassandra-1", "rabbitmq-1"])
def test_a_slow_disk_delays_what_is_acknowledged_after_a_sync(cluster: Cluster, name: str) -> None:
    queue, keyspace = fresh(), fresh()
    with cql(cluster, "cassandra-1") as session, amqp(cluster, "rabbitmq-1") as channel:
        make_letters(session, keyspace)
        declare(channel, queue)
        for each in cluster.nodes:  # of three, the two fast ones would be the quorum
            if each.startswith(name[:-1]):
                cluster.slow(each, disk=0.5)
        began = time.monotonic()
        if name == "cassandra-1":
            execute(session, f"INSERT INTO {keyspace}.letters (id, body) VALUES (1, 'a')", ALL)
        else:
            publish(channel, queue, "a")
        took = time.monotonic() - began
        channel.queue_delete(queue)

    assert took >= 0.5


def test_a_skewed_cassandra_node_has_another_time(cluster: Cluster) -> None:
    node = cluster.cassandra("cassandra-2")

    cluster.skew("cassandra-2", HOUR)

    with cql(cluster, "cassandra-2") as session:
        ((told,),) = execute(session, "SELECT toUnixTimestamp(now()) FROM system.local", ONE)
    assert told / 1000 - time.time() == pytest.approx(HOUR, abs=30)
    assert cluster.cassandra("cassandra-1").clock_seconds() == pytest.approx(time.time(), abs=30)
    cluster.skew("cassandra-2", HOUR, rate=20)
    eventually(lambda: node.clock_seconds() - time.time() > HOUR + 20)


def test_a_skewed_rabbitmq_node_has_another_time_also_after_a_restart(cluster: Cluster) -> None:
    node = cluster.rabbitmq("rabbitmq-2")

    cluster.skew("rabbitmq-2", -HOUR)
    assert node.clock_seconds() - time.time() == pytest.approx(-HOUR, abs=30)

    cluster.kill("rabbitmq-2")
    cluster.start("rabbitmq-2")
    assert node.clock_seconds() - time.time() == pytest.approx(-HOUR, abs=30)
    assert int(node.ctl("eval", "erlang:system_time(second).")) - time.time() < -HOUR + 30


def test_a_client_has_a_clock_of_its_own_which_changes_while_it_runs(cluster: Cluster) -> None:
    environment = cluster.environment("carol")
    cluster.skew("carol", HOUR)
    told = float(run("import time; print(time.time())", environment))
    assert told - time.time() == pytest.approx(HOUR, abs=30)

    asking = (
        "import time\nfor _ in range(3): input(); print(time.time(), time.monotonic(), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", asking],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        offsets = []
        for seconds in (0, -HOUR, HOUR):
            cluster.skew("carol", seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            offsets.append(round((wall - time.time()) / HOUR))
            assert monotonic == pytest.approx(time.monotonic(), abs=30)
    assert offsets == [0, -1, 1]


def test_a_store_refuses_the_signatures_of_a_client_whose_clock_is_wrong(cluster: Cluster) -> None:
    asking = (
        "import sys; from integration.cluster.clients import store; import os\n"
        "try: store(dict(os.environ)).list_buckets(); print('accepted')\n"
        "except Exception as error: print(type(error).__name__)"
    )
    environment = cluster.environment("dave")
    assert run(asking, environment) == "accepted"

    cluster.skew("dave", HOUR)

    assert run(asking, environment) == "ClientError"


def test_a_gateways_clock_cannot_be_changed(cluster: Cluster) -> None:
    with pytest.raises(NotPossible, match="skew its clients"):
        cluster.skew("s3-1", HOUR)


def test_a_full_disk_of_rabbitmq_blocks_publishers(cluster: Cluster) -> None:
    queue = fresh()
    with amqp(cluster, "rabbitmq-1") as channel:
        declare(channel, queue)
        publish(channel, queue, "before")
    cluster.fill_disk("rabbitmq-2")

    def is_blocked() -> bool:
        try:
            with amqp(cluster, "rabbitmq-1") as channel:
                publish(channel, queue, "full")
        except pika.exceptions.ConnectionBlockedTimeout:
            return True
        return False

    eventually(is_blocked)
    cluster.free_disk("rabbitmq-2")
    cluster.restart("rabbitmq-2")  # its Raft log ended when the disk was full
    eventually(lambda: not is_blocked())
    with amqp(cluster) as channel:
        channel.queue_delete(queue)


def test_a_full_disk_of_cassandra_refuses_writes(cluster: Cluster) -> None:
    keyspace = fresh()
    with cql(cluster, "cassandra-1", "cassandra-2") as session:
        make_letters(session, keyspace)
        cluster.fill_disk("cassandra-3")
        body = "x" * 500_000

        def is_refused() -> bool:
            statement = f"INSERT INTO {keyspace}.letters (id, body) VALUES (1, '{body}')"
            try:
                execute(session, statement, ALL)
            except Exception:
                return True
            execute(session, statement, QUORUM)
            return False

        eventually(is_refused)
        execute(session, f"SELECT id FROM {keyspace}.letters WHERE id = 1", QUORUM)

        cluster.free_disk("cassandra-3")
        cluster.kill("cassandra-3")
        cluster.start("cassandra-3")
        cluster.settled()
        assert execute(session, f"SELECT id FROM {keyspace}.letters WHERE id = 1", ALL)


def test_a_full_store_refuses_objects_and_keeps_those_it_has(cluster: Cluster) -> None:
    bucket = fresh()
    client = store(cluster.environment())
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="a", Body=b"letter")

    cluster.fill_disk("s3-1")

    with pytest.raises(ClientError):
        client.put_object(Bucket=bucket, Key="b", Body=os.urandom(2**20))
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"letter"
    cluster.free_disk("s3-1")
    client.put_object(Bucket=bucket, Key="b", Body=os.urandom(2**20))


def test_two_clusters_do_not_meet_and_down_leaves_nothing(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")
    other = Cluster.up(folder, cassandra=0, rabbitmq=0, s3=1)
    try:
        mark = other.mark
        assert other.network.subnet != cluster.network.subnet
        assert other.node("s3-1").answers()
        assert not reaches(other, "s3-1", "s3-1", 9000, cluster.node("s3-1").host)
    finally:
        other.down()

    assert not processes.members(folder, below=True)
    assert mark not in " ".join(path.name for path in Path("/sys/class/net").iterdir())
    assert not [name for name in namespaces() if name.startswith(mark)]
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not folder.exists()
    assert cluster.node("s3-1").answers()


CONNECT = (
    "import socket, sys\n"
    "try: socket.create_connection((sys.argv[1], 9042), 3); print('yes')\n"
    "except OSError: print('no')"
)


def run(program: str, environment: dict[str, str], *arguments: str) -> str:
    """Run Python as a client, and return its output."""
    command = [sys.executable, "-c", program, *arguments]
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def reaches(
    cluster: Cluster, one: str, other: str, port: int = 7000, host: str | None = None
) -> bool:
    """Tell whether a node can open a connection to another."""
    target = (host or cluster.node(other).host, port)
    program = f"import socket; socket.create_connection({target}, 2)"
    try:
        cluster.node(one).tool([sys.executable, "-c", program])
    except Exception:
        return False
    return True


def datagram_arrives(cluster: Cluster, one: str, other: str) -> bool:
    """Return whether a packet from one node reaches another, even if the reply is lost."""
    address = cluster.node(other).host
    receive = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(3);"
        f"s.bind(('{address}', 9999)); print('ready', flush=True); s.recv(9)"
    )
    send = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM);"
        f"s.sendto(b'packet', ('{address}', 9999))"
    )
    place = cluster.node(other).place
    command = [*place.network.inside(place.number), sys.executable, "-c", receive]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        try:
            cluster.node(one).tool([sys.executable, "-c", send])
        except Exception:
            pass  # a packet dropped on its way out is refused
        return receiver.wait() == 0


def connecting_seconds(host: str, port: int) -> float:
    """Return how long a connection takes."""
    began = time.monotonic()
    assert ports.answers(port, host, timeout_seconds=10)
    return time.monotonic() - began
