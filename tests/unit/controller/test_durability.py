"""What is known of the servers' copies becomes one unmistakable condition."""

from __future__ import annotations

import pytest

from postroad.adapters.cassandra.schema import copies
from postroad.bootstrap.cluster import too_few_copies, too_few_nodes
from postroad.controller.cluster.health import durability
from postroad.errors import ViewUnavailable
from postroad.ports.servers import Checked

AWAY = Checked(error=ViewUnavailable("the server did not answer in time"))


@pytest.mark.parametrize(
    ("rabbitmq", "cassandra", "status", "said"),
    [
        (Checked("3.13"), Checked("5.0"), "True", "survives"),
        (Checked("3.13"), Checked("5.0", limits=too_few_copies(1)), "False", "factor 1 is below 3"),
        (Checked("3.13"), Checked("5.0", limits=too_few_copies(2)), "False", "factor 2"),
        (Checked("3.13", limits=too_few_nodes(1)), Checked("5.0"), "False", "1 node, fewer"),
        (Checked("3.13", unknown=("its nodes",)), Checked("5.0"), "Unknown", "its nodes"),
        (
            Checked("3.13", unknown=("its nodes",)),
            Checked("5.0", limits=too_few_copies(2)),
            "False",
            "factor 2",
        ),
        (Checked("3.13"), AWAY, "Unknown", "cassandra: no answer"),
        (Checked("3.13", limits=too_few_nodes(2)), AWAY, "False", "2 nodes, fewer"),
    ],
)
def test_what_is_known_decides(
    rabbitmq: Checked, cassandra: Checked, status: str, said: str
) -> None:
    found = durability({"rabbitmq": rabbitmq, "cassandra": cassandra})

    assert found.truth == status
    assert said in found.message
    assert found.is_good


def test_three_are_enough() -> None:
    assert too_few_nodes(3) == too_few_copies(3) == too_few_copies(None) == ()
    assert too_few_nodes(2) == ("2 nodes, fewer than 3",)


@pytest.mark.parametrize(
    ("replication", "expected"),
    [
        ({"class": "SimpleStrategy", "replication_factor": "2"}, 2),
        ({"class": "NetworkTopologyStrategy", "dc1": "3", "dc2": "1"}, 3),
        ({"class": "NetworkTopologyStrategy", "dc2": "1"}, 0),
        ({"class": "NetworkTopologyStrategy", "dc1": "3/1"}, 3),
    ],
)
def test_copies_are_those_of_the_local_data_center(
    replication: dict[str, str], expected: int
) -> None:
    assert copies(replication, "dc1") == expected
