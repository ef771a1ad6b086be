"""How much the operator asks of the API server: for a new queue, and at rest.

Intervals are those of production.
"""

from __future__ import annotations

from collections import Counter

import pytest

from postroad.adapters.memory.broker import MemoryBroker
from postroad.controller.kubernetes.api import CHILDREN
from postroad.controller.kubernetes.api import NAMESPACE as NAMESPACE_KIND
from support.manual_loop import move, run
from support.resources import intake, mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

MINUTES, NAMESPACES, QUEUES = 10, 100, 300
WRITES = {"create", "patch", "update", "delete"}


class Requests:
    """The requests of the operator since the last time they were counted."""

    def __init__(self, operator: RunningController) -> None:
        self._operator = operator
        self._seen = len(operator.calls)

    def count(self) -> Counter[str]:
        """Return how many of each `VERB KIND` there were."""
        new = self._operator.calls[self._seen :]
        self._seen += len(new)
        return Counter(" ".join(each.split()[:2]) for each in new)


def writes(requests: Counter[str]) -> int:
    return sum(number for what, number in requests.items() if what.split()[0] in WRITES)


async def declare_many(operator: RunningController, queues: int) -> None:
    """Declare a QueueCluster with so many MailQueues, and wait until all are ready."""
    for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
        await operator.create(each)
    for number in range(queues):
        await operator.create(mail_queue(NAMESPACE, f"q-{number}"))
    for _ in range(60):
        await move(20)
        names = [f"q-{number}" for number in range(queues)]
        if all(operator.condition("Ready", name=each)["status"] == "True" for each in names):
            break
    else:
        pytest.fail("queues are not ready")
    await move(60)


def test_a_new_queue_is_read_from_memory() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), intake=intake())
            await move(60)
            requests = Requests(operator)

            await operator.create(mail_queue(NAMESPACE, "new", workers=workers(), intake=intake()))
            await move(4)
            counted = requests.count()

            assert operator.condition("Ready", name="new")["status"] == "True"
            names_free = {f"get {each.plural}": counted[f"get {each.plural}"] for each in CHILDREN}
            made = {f"patch {each.plural}": counted[f"patch {each.plural}"] for each in CHILDREN}
            others = {"update mailqueues", "update queueclusters", "create events", "get secrets"}
            assert counted.keys() <= names_free.keys() | made.keys() | others
            orphans = 1  # whether a deletion left something behind under the name
            assert sum(names_free.values()) - orphans == sum(made.values()) == 7
            assert counted["update mailqueues"] <= 4
            assert counted["get secrets"] == 3, "of the check that counts the queues"

    run(scene())


def test_a_new_queue_asks_the_servers_only_what_it_needs() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await operator.create(each)
            await move(20)
            before, requests = len(operator.faults.steps), Requests(operator)

            await operator.create(mail_queue(NAMESPACE, "new"))
            await move(4)
            steps = operator.faults.steps[before:]

            assert operator.condition("Ready", name="new")["status"] == "True"
            asked = Counter(f"{each.server} {each.operation}" for each in steps)
            for of_the_cluster in ("view claim", "view create"):
                del asked[of_the_cluster]
            assert asked == {
                "broker claim": 1,
                "broker declare": 1,
                "blobs create": 1,
                "blobs get": 2,
                "blobs put_new": 1,
                "view limits": 4,
                "view load": 2,
                "view append": 1,
                "view advance": 1,
                "view server_times": 3,
                "view closed_slices": 1,
                "view occupied": 1,
                "view count_dead_letters": 1,
            }
            of_queue = requests.count() - Counter({"get secrets": 3, "update queueclusters": 1})
            assert of_queue == {
                "get configmaps": 2,
                "get serviceaccounts": 1,
                "patch configmaps": 1,
                "patch serviceaccounts": 1,
                "update mailqueues": 1,
                "create events": 2,
            }

    run(scene())


def test_copies_are_looked_for_of_queues_that_are_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    declare = MemoryBroker.declare

    async def recorded(broker: MemoryBroker, *, first: bool = False) -> None:
        seen.append(first)
        await declare(broker, first=first)

    monkeypatch.setattr(MemoryBroker, "declare", recorded)

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await operator.change({"view": {"bucketCount": 5}})
            await move(5)

    run(scene())
    assert seen == [True, False]


def test_at_rest_queues_cost_few_requests_and_no_write() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare_many(operator, QUEUES)
            requests = Requests(operator)

            await move(60 * MINUTES)
            counted = requests.count()

            assert writes(counted) == 0
            assert sum(counted.values()) < 60 * MINUTES, "fewer than two of each queue"
            assert counted["get secrets"] <= 40 * MINUTES, "for the cluster, not for its queues"

    run(scene())


@pytest.mark.parametrize("missing", ["rabbitmq", None], ids=["a Secret", "ambient credentials"])
def test_a_cluster_whose_credentials_are_missing_costs_no_more(missing: str | None) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in secrets(NAMESPACE):
                if each["metadata"]["name"] != missing:
                    await operator.create(each)
            cluster = queue_cluster(NAMESPACE)
            if missing is None:
                del cluster["spec"]["s3"]["secretRef"]
            await operator.create(cluster)
            await move(60)
            requests = Requests(operator)

            await move(60 * MINUTES)
            counted = requests.count()

            assert writes(counted) == 0
            assert sum(counted.values()) < 20 * MINUTES

    run(scene())


def test_queues_of_many_namespaces_cost_a_bounded_rate() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            selector = {"matchLabels": {"mail": "yes"}}
            allowed = {"from": "Selector", "selector": selector}
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE, allowedNamespaces=allowed)):
                await operator.create(each)
            reference = {"name": "main", "namespace": NAMESPACE}
            for number in range(NAMESPACES):
                name = f"ns-{number}"
                metadata = {"name": name, "labels": {"mail": "yes"}}
                kind = {"apiVersion": "v1", "kind": "Namespace"}
                await operator.user.create(NAMESPACE_KIND, {**kind, "metadata": metadata})
                for each in secrets(name):
                    await operator.create(each)
                await operator.create(mail_queue(name, clusterRef=reference, workers=workers()))
            await move(120)
            requests = Requests(operator)

            await move(60 * MINUTES)
            counted = requests.count()

            assert counted["get namespaces"] > NAMESPACES
            assert writes(counted) == 0
            assert sum(counted.values()) < 5 * 60 * MINUTES

    run(scene())
