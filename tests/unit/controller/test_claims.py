"""Of two that want one object of a server, the second takes nothing until the first is gone.

Over the API server and all servers in memory, at production intervals.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from postroad.adapters.memory.servers import MemoryWorld
from postroad.controller.cluster.claims import Ruling, judge
from postroad.controller.kubernetes.api import ADOPT, DEPLOYMENT, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.controller.reads import PATIENCE
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Kind, Object
from support import resources
from support.manual_loop import move, run
from support.memory.fault_injection import Fault, Step
from support.running_controller import NAMESPACE, RunningController, running_controller

CONFLICT = "ResourceConflict"
MINUTE, AT_ONCE = 60, 5
GONE_FOR_GOOD = PATIENCE.total_seconds()
BETWEEN_CHECKS = 5 * MINUTE + 13
"""Behind which no routine check comes at once."""

ME, OTHER = Claimant("one", "mail", "main"), Claimant("one", "mail", "other")


def of_queue(claimant: Claimant, queue: str) -> Claimant:
    return Claimant(claimant.kubernetes, claimant.namespace, claimant.name, queue)


@pytest.mark.parametrize(
    ("found", "adopted", "former", "is_gone", "ruling"),
    [
        (Claim.of(ME, 1), "", (), False, Ruling.KEEP),
        (Claim.of(OTHER, 1), "", (), False, Ruling.LEAVE),
        (Claim.of(OTHER, 1), "", (), True, Ruling.TAKE),
        (Claim.of(OTHER, 3), f"{OTHER.token}-3", (), False, Ruling.TAKE),
        (Claim.of(OTHER, 5), f"{OTHER.token}-3", (), False, Ruling.LEAVE),
        (Claim.of(OTHER, 3), OTHER.token, (), False, Ruling.LEAVE),
        (Claim.of(OTHER, 1), "", (OTHER.token,), False, Ruling.LEAVE),
        (Claim("", None), "", ("",), False, Ruling.LEAVE),
    ],
)
def test_the_ruling_about_a_keyspace(
    found: Claim, adopted: str, former: tuple[str, ...], is_gone: bool, ruling: Ruling
) -> None:
    assert judge(found, ME, adopted=adopted, former=former, is_gone=is_gone) is ruling


MINE, THEIRS = of_queue(ME, "mail.outgoing"), of_queue(OTHER, "mail.outgoing")
NEIGHBOUR = of_queue(ME, "mail-out.going")


@pytest.mark.parametrize(
    ("found", "adopted", "former", "is_gone", "ruling"),
    [
        (Claim.of(MINE), "", (), False, Ruling.KEEP),
        (Claim(ME.token, None), "", (), False, Ruling.KEEP),
        (Claim.of(THEIRS), "", (), False, Ruling.LEAVE),
        (Claim.of(THEIRS), "", (OTHER.token,), False, Ruling.TAKE),
        (Claim(OTHER.token, None), "", (OTHER.token,), False, Ruling.TAKE),
        (Claim.of(THEIRS), "", (), True, Ruling.LEAVE),
        (Claim.of(THEIRS), OTHER.token, (), False, Ruling.TAKE),
        (Claim.of(NEIGHBOUR), "", (ME.token,), False, Ruling.LEAVE),
        (Claim.of(NEIGHBOUR), "", (), True, Ruling.TAKE),
    ],
)
def test_the_ruling_about_a_queue(
    found: Claim, adopted: str, former: tuple[str, ...], is_gone: bool, ruling: Ruling
) -> None:
    """A queue goes with its keyspace. What a claimant that is gone kept of it is mail whose rows
    are in another keyspace."""
    assert judge(found, MINE, adopted=adopted, former=former, is_gone=is_gone) is ruling


def cluster(
    name: str, lifetime: str, keyspace: str = "postroad", prefix: str = "postroad-"
) -> Object:
    made = resources.queue_cluster(NAMESPACE, name)
    made["spec"]["cassandra"] |= {"rowLifetime": lifetime, "keyspace": keyspace}
    made["spec"]["s3"]["bucketPrefix"] = prefix
    return made


def queue(name: str, of: str, **spec: object) -> Object:
    return resources.mail_queue(NAMESPACE, name, clusterRef={"name": of}, **spec)


async def declare(operator: RunningController, *wanted: Object) -> None:
    """Create resources one after the other."""
    for each in wanted:
        await operator.create(each)
        await move(10)


async def adopt(operator: RunningController, kind: Kind, name: str, claim: str) -> None:
    """Annotate a resource."""
    change = {"metadata": {"annotations": {ADOPT: claim}}}
    assert await operator.user.patch(kind, NAMESPACE, name, change)


def is_ready(operator: RunningController, kind: Kind, name: str) -> bool:
    return bool(operator.condition("Ready", kind, name)["status"] == "True")


def claim_in(message: str) -> str:
    """Return the id that a message offers for adoption."""
    return message.partition(f"{ADOPT}=")[2].rstrip(")")


@pytest.mark.parametrize(("first", "second"), [("main", "other"), ("other", "main")])
def test_of_two_queueclusters_over_one_keyspace_the_second_changes_nothing(
    first: str, second: str
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in resources.secrets(NAMESPACE):
                await operator.create(each)
            await declare(operator, cluster(first, "300h"), queue("one", first))
            options = operator.world.schema.options
            await declare(
                operator, cluster(second, "200h"), queue("two", second, workers=resources.workers())
            )

            for _ in range(3):
                await move(2 * MINUTE)
                for kind, name in ((QUEUE_CLUSTER, first), (MAIL_QUEUE, "one")):
                    assert is_ready(operator, kind, name)
                refused = operator.condition("ViewReady", QUEUE_CLUSTER, second)
                assert refused["reason"] == CONFLICT
                assert f"{NAMESPACE}/{first}" in refused["message"]
                assert operator.condition("Stalled", QUEUE_CLUSTER, second)["status"] == "True"
                assert "tables" not in operator.found(QUEUE_CLUSTER, second)["status"]
                for which in ("BrokerReady", "ViewReady", "BlobsReady", "WorkersReady"):
                    assert operator.condition(which, MAIL_QUEUE, "two")["reason"] == CONFLICT
            assert operator.world.schema.options == options
            assert not operator.events("Repaired")
            assert not operator.world.queues("mail.two").declared
            assert not operator.world.bucket("postroad-mail-two").is_created
            assert operator.at(DEPLOYMENT.plural, NAMESPACE, "two-worker") is None

    run(scene())


def test_the_second_takes_over_when_the_first_is_deleted() -> None:
    """Not within moments; then its MailQueues at once after it, with the queues that were kept."""

    async def scene() -> None:
        async with running_controller() as operator:
            for each in resources.secrets(NAMESPACE):
                await operator.create(each)
            await declare(operator, cluster("main", "300h"), queue("kept", "main"))
            await declare(operator, cluster("other", "200h"), queue("two", "other"))
            await move(BETWEEN_CHECKS)

            await operator.delete(MAIL_QUEUE, "kept")
            await operator.delete(QUEUE_CLUSTER, "main")
            waited = 0
            while not is_ready(operator, QUEUE_CLUSTER, "other"):
                await move(1)
                waited += 1
            assert GONE_FOR_GOOD <= waited <= GONE_FOR_GOOD + 1.5 * MINUTE
            await move(AT_ONCE)
            assert is_ready(operator, MAIL_QUEUE, "two")

            await declare(operator, queue("kept", "other"))
            assert is_ready(operator, MAIL_QUEUE, "kept")
            assert operator.world.schema.options is not None
            assert operator.world.schema.options.row_lifetime == timedelta(hours=200)

    run(scene())


@pytest.mark.parametrize("gap", [1, 5, 500])
def test_a_queuecluster_that_is_replaced_beside_one_that_waits_keeps_its_keyspace(gap: int) -> None:
    """As by `kubectl replace --force`, or by Argo CD."""

    async def scene() -> None:
        async with running_controller() as operator:
            for each in resources.secrets(NAMESPACE):
                await operator.create(each)
            await declare(operator, cluster("main", "300h"), cluster("other", "200h"))
            await move(BETWEEN_CHECKS)
            await operator.delete(QUEUE_CLUSTER, "main")
            await move(gap)
            await operator.create(cluster("main", "300h"))
            await move(GONE_FOR_GOOD + BETWEEN_CHECKS)

            assert is_ready(operator, QUEUE_CLUSTER, "main")
            assert operator.condition("ViewReady", QUEUE_CLUSTER, "other")["reason"] == CONFLICT
            assert operator.world.schema.options is not None
            assert operator.world.schema.options.row_lifetime == timedelta(hours=300)

    run(scene())


def test_a_keyspace_is_kept_for_the_mailqueues_that_refer_to_a_queuecluster_that_is_gone() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in resources.secrets(NAMESPACE):
                await operator.create(each)
            await declare(operator, cluster("main", "300h"), queue("kept", "main"))
            await declare(operator, cluster("other", "200h"))
            await operator.delete(QUEUE_CLUSTER, "main")
            await move(AT_ONCE)
            (event,) = operator.events("InUse")
            assert f"{NAMESPACE}/kept" in event["note"]
            await move(5 * GONE_FOR_GOOD)
            refused = operator.condition("ViewReady", QUEUE_CLUSTER, "other")
            assert refused["reason"] == CONFLICT
        async with running_controller(beside=operator) as second:
            await move(2 * GONE_FOR_GOOD)
            assert second.condition("ViewReady", QUEUE_CLUSTER, "other")["reason"] == CONFLICT

            await second.delete(MAIL_QUEUE, "kept")
            await move(GONE_FOR_GOOD + 1.5 * MINUTE)
            assert is_ready(second, QUEUE_CLUSTER, "other")

    run(scene())


def test_what_a_missing_queuecluster_has_is_adopted_at_once_and_else_the_message_has_the_time() -> (
    None
):
    async def scene() -> None:
        async with running_controller() as operator:
            for each in resources.secrets(NAMESPACE):
                await operator.create(each)
            await declare(operator, cluster("main", "300h"), cluster("other", "200h"))
            await operator.delete(QUEUE_CLUSTER, "main")
            await move(MINUTE + AT_ONCE)
            message = operator.condition("ViewReady", QUEUE_CLUSTER, "other")["message"]
            assert "the other, which does not exist, has been gone for 10m" in message

            await adopt(operator, QUEUE_CLUSTER, "other", claim_in(message))
            await move(AT_ONCE)
            assert is_ready(operator, QUEUE_CLUSTER, "other")

    run(scene())


def test_a_first_that_may_not_be_looked_up_counts_as_there() -> None:
    """By an operator whose Role ends at its namespace."""

    def refuse(step: Step) -> Fault | None:
        if step.operation == f"get queueclusters {NAMESPACE}/main":
            raise KubernetesRefused("forbidden")
        return None

    async def scene() -> None:
        async with running_controller(namespaces=(NAMESPACE,)) as first:
            await first.declare()
            async with running_controller(namespaces=("team",), beside=first) as second:
                second.api.faults.plan = refuse
                for each in (*resources.secrets("team"), resources.queue_cluster("team")):
                    await second.create(each)
                await move(MINUTE)

                found = second.at(QUEUE_CLUSTER.plural, "team", "main")
                assert found is not None
                assert found["status"]["conditions"][0]["reason"] == CONFLICT

    run(scene())


def test_a_right_that_a_claim_lacks_leaves_unknown_whether_cassandra_is_ready() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.api.refused.add(("get", "namespaces"))
            for each in (*resources.secrets(NAMESPACE), resources.queue_cluster(NAMESPACE)):
                await operator.create(each)
            await operator.create(resources.mail_queue(NAMESPACE))
            await move(10)

            for kind, name in ((QUEUE_CLUSTER, "main"), (MAIL_QUEUE, "outgoing")):
                view = operator.condition("ViewReady", kind, name)
                assert (view["status"], view["reason"]) == ("Unknown", "KubernetesRefused")
                assert "namespaces is forbidden: cannot get it" in view["message"]
                ready = operator.condition("Ready", kind, name)
                assert (ready["status"], ready["reason"]) == ("False", "KubernetesRefused")
            assert operator.condition("BrokerReady", QUEUE_CLUSTER, "main")["status"] == "True"

            operator.api.refused.clear()
            await move(MINUTE)
            assert is_ready(operator, MAIL_QUEUE, "outgoing")

    run(scene())


async def two(
    stack: AsyncExitStack, *, keyspace: str = "postroad", prefix: str = "postroad-"
) -> tuple[RunningController, RunningController]:
    """Start operators of two Kubernetes clusters over the same servers; each has a QueueCluster
    `main`, the second with this keyspace and these buckets. Only the first has a MailQueue,
    `outgoing`."""
    one = await stack.enter_async_context(running_controller("one"))
    another = await stack.enter_async_context(running_controller("another", one.world))
    another.keyspaces["other"] = one.world.other_keyspace()
    await one.declare()
    for each in (*resources.secrets(NAMESPACE), cluster("main", "200h", keyspace, prefix)):
        await another.create(each)
    await move(10)
    return one, another


def test_another_kubernetes_cluster_gets_a_keyspace_that_was_released() -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            one, another = await two(stack)
            refused = another.condition("ViewReady", QUEUE_CLUSTER, "main")
            assert refused["reason"] == CONFLICT
            assert "uid-of-one" in refused["message"]

            await one.delete(MAIL_QUEUE, "outgoing")
            await one.delete(QUEUE_CLUSTER, "main")
            await move(GONE_FOR_GOOD - MINUTE)
            assert not is_ready(another, QUEUE_CLUSTER, "main")
            await move(3.5 * MINUTE)

            assert is_ready(another, QUEUE_CLUSTER, "main")

    run(scene())


def test_an_administrator_lets_another_kubernetes_cluster_adopt_a_keyspace() -> None:
    """With the queues in it, also while the first operator still runs: that one then takes nothing
    any more, however often it looks."""

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            one, another = await two(stack)
            await another.create(resources.mail_queue(NAMESPACE))
            await move(BETWEEN_CHECKS)
            assert another.condition("Ready")["reason"] == CONFLICT
            message = another.condition("ViewReady", QUEUE_CLUSTER, "main")["message"]

            await adopt(another, QUEUE_CLUSTER, "main", claim_in(message))
            await move(AT_ONCE)
            assert is_ready(another, QUEUE_CLUSTER, "main")
            assert is_ready(another, MAIL_QUEUE, "outgoing")
            await move(2 * MINUTE)

            for _ in range(3):
                assert is_ready(another, QUEUE_CLUSTER, "main")
                assert is_ready(another, MAIL_QUEUE, "outgoing")
                assert one.condition("ViewReady", QUEUE_CLUSTER, "main")["reason"] == CONFLICT
                assert one.condition("Ready")["reason"] == CONFLICT
                assert "tables" not in one.found(QUEUE_CLUSTER, "main")["status"]
                await move(2 * MINUTE)
            back = claim_in(one.condition("ViewReady", QUEUE_CLUSTER, "main")["message"])
            await adopt(one, QUEUE_CLUSTER, "main", back)
            await move(5 * MINUTE)
            assert is_ready(one, QUEUE_CLUSTER, "main")
            assert another.condition("ViewReady", QUEUE_CLUSTER, "main")["reason"] == CONFLICT

    run(scene())


def test_a_queue_of_another_keyspace_is_not_taken() -> None:
    """Two installations over one vhost: their consumers would take each other's messages."""

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            one, another = await two(stack, keyspace="other", prefix="other-")
            assert is_ready(another, QUEUE_CLUSTER, "main")
            await another.create(resources.mail_queue(NAMESPACE, workers=resources.workers()))
            await move(7 * MINUTE)

            refused = another.condition("BrokerReady")
            assert refused["reason"] == another.condition("ViewReady")["reason"] == CONFLICT
            assert "uid-of-one" in refused["message"]
            assert "configuration" not in another.found()["status"]
            assert not another.world.bucket("other-mail-outgoing").is_created
            assert another.at(DEPLOYMENT.plural, NAMESPACE, "outgoing-worker") is None
            assert is_ready(one, MAIL_QUEUE, "outgoing")

            await adopt(another, MAIL_QUEUE, "outgoing", claim_in(refused["message"]))
            await move(AT_ONCE)
            assert is_ready(another, MAIL_QUEUE, "outgoing")
            await move(5 * MINUTE)
            assert one.condition("BrokerReady")["reason"] == CONFLICT

    run(scene())


def test_two_queues_whose_buckets_have_one_name_have_it_one_after_the_other() -> None:
    """`mail.out-going` and `mail-out.going`."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            allowed = {"allowedNamespaces": {"from": "All"}}
            await operator.user.patch(QUEUE_CLUSTER, "mail", "main", {"spec": allowed})
            reference = {"name": "main", "namespace": "mail"}
            for each in resources.secrets("mail-out"):
                await operator.create(each)
            await declare(
                operator,
                resources.mail_queue("mail-out", "going", clusterRef=reference),
                resources.mail_queue("mail", "out-going", deletionPolicy="Delete"),
            )
            refused = operator.condition("BlobsReady", MAIL_QUEUE, "out-going")
            assert refused["reason"] == CONFLICT
            assert "MailQueue mail-out/going" in refused["message"]
            assert "configuration" not in operator.found(MAIL_QUEUE, "out-going")["status"]

            first = operator.at(MAIL_QUEUE.plural, "mail-out", "going")
            assert first is not None
            await move(BETWEEN_CHECKS)
            await operator.user.delete(MAIL_QUEUE, first)
            await move(AT_ONCE)
            await operator.create(resources.mail_queue("mail-out", "going", clusterRef=reference))
            await move(GONE_FOR_GOOD + BETWEEN_CHECKS)
            refused = operator.condition("BlobsReady", MAIL_QUEUE, "out-going")
            assert refused["reason"] == CONFLICT, "the first was only replaced"

            first = operator.at(MAIL_QUEUE.plural, "mail-out", "going")
            assert first is not None
            await operator.user.delete(MAIL_QUEUE, first)
            await move(GONE_FOR_GOOD + 1.5 * MINUTE)
            assert is_ready(operator, MAIL_QUEUE, "out-going")
            await operator.delete(MAIL_QUEUE, "out-going")
            await move(20)
            assert not operator.world.bucket("postroad-mail-out-going").is_created

    run(scene())


def test_the_deletion_of_a_queue_that_another_adopted_deletes_nothing() -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            one, another = await two(stack)
            await one.change({"deletionPolicy": "Delete"})
            await move(MINUTE)
            message = another.condition("ViewReady", QUEUE_CLUSTER, "main")["message"]
            await adopt(another, QUEUE_CLUSTER, "main", claim_in(message))
            await another.create(resources.mail_queue(NAMESPACE))
            await move(3 * MINUTE)

            await one.delete(MAIL_QUEUE, "outgoing")
            await move(4 * MINUTE)

            (event,) = one.events("LeftBehind")
            assert "uid-of-another" in event["note"]
            assert is_ready(another, MAIL_QUEUE, "outgoing")
            assert await another.connected[-1].broker(QueueName(NAMESPACE, "outgoing")).exists()
            assert not another.events("QueuesWereMissing")

    run(scene())


def test_the_deletion_of_a_queue_deletes_no_queue_and_no_bucket_of_another_keyspace() -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            one, another = await two(stack, keyspace="other")
            await one.change({"deletionPolicy": "Delete"})
            await another.create(resources.mail_queue(NAMESPACE))
            await move(2 * MINUTE)
            claim = claim_in(another.condition("BrokerReady")["message"])
            await adopt(another, MAIL_QUEUE, "outgoing", claim)
            await move(2 * MINUTE)
            bucket = another.world.bucket("postroad-mail-outgoing")
            bucket.objects["mail.outgoing/bytes"] = b"of the other"

            await one.delete(MAIL_QUEUE, "outgoing")
            await move(4 * MINUTE)

            (event,) = one.events("LeftBehind")
            assert event["note"].count("is claimed by MailQueue mail/outgoing") == 2
            assert another.world.queues("mail.outgoing").declared
            assert "mail.outgoing/bytes" in bucket.objects
            assert is_ready(another, MAIL_QUEUE, "outgoing")

    run(scene())


def test_claims_cost_a_request_a_minute_at_rest() -> None:
    """For a QueueCluster: its MailQueues go with it."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            for number in range(20):
                await operator.create(queue(f"queue-{number}", "main"))
            await move(MINUTE)
            operator.faults.steps.clear()

            await move(4 * MINUTE)

            claims = [each for each in operator.faults.steps if "claim" in each.operation]
            assert len([each for each in claims if each.server == "view"]) <= 5
            assert len(claims) <= 5 + 21

    run(scene())


def test_a_world_with_another_keyspace_has_the_same_broker_and_buckets() -> None:
    """What the tests above stand on."""

    async def scene() -> None:
        async with running_controller() as operator:
            world: MemoryWorld = operator.world.other_keyspace()
            assert world.queues("mail.one") is operator.world.queues("mail.one")
            assert world.bucket("one") is operator.world.bucket("one")
            assert world.schema is not operator.world.schema

    run(scene())


def test_two_queueclusters_that_are_replaced_again_later_keep_what_each_has() -> None:
    """The first absence of the one that has the keyspace is no part of the second one."""

    async def scene() -> None:
        async with running_controller() as operator:
            first, second = (
                resources.queue_cluster(NAMESPACE, each) for each in ("main", "second")
            )
            for each in (*resources.secrets(NAMESPACE), first):
                await operator.create(each)
            await move(10)
            await operator.create(second)
            await move(70)
            await operator.delete(QUEUE_CLUSTER, "main")
            await move(3)
            await operator.delete(QUEUE_CLUSTER, "second")
            await operator.create(first)
            await move(3600)

            await operator.delete(QUEUE_CLUSTER, "main")
            await operator.create(second)
            await move(5)
            await operator.create(first)
            await move(70)

            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"
            ready = operator.condition("Ready", QUEUE_CLUSTER, "second")
            assert ready["reason"] == "ResourceConflict"

    run(scene())
