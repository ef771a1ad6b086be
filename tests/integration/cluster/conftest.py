"""One cluster for all tests of this folder; each test leaves it whole.

They run with `make test-cluster` only: a cluster takes two minutes and 2 GiB. POSTROAD_TEST_CLUSTER
names the folder of a cluster that stays up between runs (`python -m stack cluster up`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.clusters import Cluster
from stack.progress import Progress

CLUSTER_VARIABLE = "POSTROAD_TEST_CLUSTER"
OWN = "own"
"""The variable's value for a cluster that these tests start and end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2400))
            item.add_marker(pytest.mark.needs("cluster"))


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    chosen = os.environ[CLUSTER_VARIABLE]
    directory = tmp_path_factory.mktemp("cluster") if chosen == OWN else Path(chosen)
    cluster = Cluster(directory)
    try:
        yield Cluster.up(directory, progress=Progress())
    finally:
        if chosen == OWN:
            cluster.down()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """A whole cluster, whole again afterwards."""
    try:
        yield shared_cluster
    finally:
        shared_cluster.restore()
