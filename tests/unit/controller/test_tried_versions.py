"""Versions of servers beside those that this release was tried with."""

from __future__ import annotations

import re

import pytest

from matrix.variants import HELM4, KUBERNETES, Cassandra41
from postroad.controller.cluster.health import MAX_VERSION, TRIED, tried, versions_of
from postroad.errors import ViewUnavailable
from postroad.ports.servers import Checked
from stack import kube, s3, tools
from stack.cassandra import Cassandra
from support.repository import ROOT

AWAY = Checked(error=ViewUnavailable("the server did not answer in time"))
VERSIONS = (ROOT / "docs" / "versions.md").read_text()


@pytest.mark.parametrize(
    ("rabbitmq", "cassandra", "truth", "message"),
    [
        ("3.10.8", "5.0.9", "True", "tried with these versions"),
        ("4.3.11", "5.0.9-SNAPSHOT", "True", "tried with these versions"),
        ("4.1.2", "5.0.9", "False", "rabbitmq 4.1.2: tried with 3.10, 4.0, 4.3"),
        ("4.30.1", "5.0.9", "False", "rabbitmq 4.30.1"),
        ("3.1", "5.0.9", "False", "rabbitmq 3.1: "),
        ("4.0.5", "4.1.7", "True", "tried with these versions"),
        ("3.10.8", "4.0.7", "False", "cassandra 4.0.7: tried with 4.1, 5.0"),
        ("5", "enterprise", "False", "rabbitmq 5: .*; cassandra enterprise: "),
        ("", "5.0.9", "Unknown", "not known of rabbitmq"),
        ("4.1.2", "", "False", "rabbitmq 4.1.2"),
    ],
)
def test_versions_of_a_series_that_tests_ran_with_are_tried(
    rabbitmq: str, cassandra: str, truth: str, message: str
) -> None:
    finding = tried(
        {
            "rabbitmq": Checked(rabbitmq) if rabbitmq else AWAY,
            "cassandra": Checked(cassandra) if cassandra else AWAY,
            "s3": Checked("memory"),
        }
    )

    assert finding.truth == truth
    assert re.search(message, finding.message)
    assert finding.advisory or truth == "True"


def test_ready_does_not_depend_on_versions() -> None:
    finding = tried({"rabbitmq": Checked("5.1"), "cassandra": Checked("6.0"), "s3": AWAY})

    assert finding.truth == "False"
    assert finding.is_good


def test_a_server_that_is_away_has_no_version_in_the_status() -> None:
    checked = {"rabbitmq": AWAY, "cassandra": Checked("5" * 200)}

    assert set(versions_of(checked)) == {"cassandra"}
    assert len(versions_of(checked)["cassandra"]) <= MAX_VERSION


def test_versions_that_the_operator_takes_for_tried_are_those_of_the_documents() -> None:
    table = VERSIONS.partition("| part | version |")[2].partition("\n\n")[0]
    part, found = "", dict[str, set[str]]()
    for line in table.splitlines()[2:]:
        first, version, _ = (each.strip() for each in line.strip("|").split("|"))
        part = first or part
        found.setdefault(part, set()).add(version)

    for server, name in (("rabbitmq", "RabbitMQ"), ("cassandra", "Cassandra")):
        series = {version.rpartition(".")[0] for version in found[name]}
        assert series == set(TRIED[server])
    legs = {each.version for each in KUBERNETES}
    assert found["Kubernetes"] - legs == {kube.kubernetes_version()}
    assert found["Cassandra"] == {Cassandra.version, Cassandra41.version}
    assert f"versitygw {s3.VERSITYGW[1]}" in found["S3"]
    assert found["Helm"] == {tools.HELM, HELM4}
