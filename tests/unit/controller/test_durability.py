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
    ("factor", "rabbitmq", "cassandra", "status", "said"),
    [
        (3, Checked("3.13"), Checked("5.0"), "True", "survives"),
        (1, Checked("3.13"), Checked("5.0"), "False", "replication factor 1 is below 3"),
        (3, Checked("3.13"), Checked("5.0", limits=too_few_copies(2)), "False", "factor 2"),
        (3, Checked("3.13", limits=too_few_nodes(1)), Checked("5.0"), "False", "1 node, fewer"),
        (3, Checked("3.13", unknown=("its nodes",)), Checked("5.0"), "Unknown", "its nodes"),
        (2, Checked("3.13", unknown=("its nodes",)), Checked("5.0"), "False", "factor 2"),
        (3, Checked("3.13"), AWAY, "Unknown", "cassandra: no answer"),
        (3, Checked("3.13", limits=too_few_nodes(2)), AWAY, "False", "2 nodes, fewer"),
    ],
)
def test_what_is_known_decides(
    factor: int, rabbitmq: Checked, cassandra: Checked, status: str, said: str
) -> None:
    found = durability(factor, {"rabbitmq": rabbitmq, "cassandra": cassandra})

    assert found.truth == status
    assert said in found.message
    assert found.is_good


def test_one_lack_is_in_the_message_once() -> None:
    checked = {"cassandra": Checked("5.0", limits=too_few_copies(1))}

    assert durability(1, checked).message.count("replication factor") == 1


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
