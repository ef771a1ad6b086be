"""NetworkPolicies are those of what pods really connect to."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.controller.pods.manifests import declared_hash, labels, wanted_children
from postroad.controller.pods.network_policies import console_policy, network_policies
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from support import spec_cases
from support.resources import intake, relay

NAMES = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def context(**servers: Any) -> PodContext:
    cluster = {
        "rabbitmq": spec_cases.RABBITMQ,
        "cassandra": spec_cases.CASSANDRA,
        "s3": {},
    } | servers
    return PodContext(QueueClusterSpec.model_validate(cluster), "postroad:1")


def queue(handler: dict[str, Any] | None = None, *, enabled: bool = True, **spec: Any) -> Queue:
    metadata = {"namespace": "mail", "name": "out", "uid": "u1", "generation": 1}
    if handler is not None:
        spec["workers"] = {"handler": handler}
    declared = {"clusterRef": {"name": "main"}, "networkPolicy": {"enabled": enabled}} | spec
    return Queue.of({"metadata": metadata, "spec": declared})


def tcp(*ports: int | str) -> dict[str, Any]:
    return {"ports": [{"port": each, "protocol": "TCP"} for each in ports]}


def test_there_are_none_without_the_switch_and_pods_do_not_depend_on_it() -> None:
    without, with_them = queue({"mx": {}}, enabled=False), queue({"mx": {}})

    assert network_policies(without, context()) == {}
    assert declared_hash(without, context()) == declared_hash(with_them, context())
    kinds = {kind.name for kind, _ in wanted_children(with_them, context())}
    assert "NetworkPolicy" in kinds


def test_all_pods_may_reach_the_servers_names_and_each_other_and_show_metrics() -> None:
    servers = context(
        rabbitmq=spec_cases.RABBITMQ
        | {"url": "amqps://mq.example.org/%2F", "managementURL": "https://mq.example.org:15671"},
        cassandra=spec_cases.CASSANDRA | {"port": 19042},
        s3={"url": "http://s3:9000", "secretRef": {"name": "s3"}},
    )

    policy = network_policies(queue(), servers)["queue"]

    every = {"app.kubernetes.io/name": "postroad", "app.kubernetes.io/instance": "out"}
    each_other = [{"podSelector": {"matchLabels": every}}]
    assert policy["podSelector"] == {"matchLabels": every}
    assert policy["ingress"] == [tcp("health"), {"from": each_other}]
    assert policy["egress"] == [NAMES, tcp(5671, 9000, 15671, 19042), {"to": each_other}]
    assert tcp(443, 5672, 9042) in network_policies(queue(), context())["queue"]["egress"]


def test_pods_without_keys_of_s3_may_get_them_from_their_cloud() -> None:
    agents = [{"ipBlock": {"cidr": each}} for each in ("169.254.0.0/16", "fd00:ec2::/32")]
    asked = {"to": agents, **tcp(80)}
    keyless = context(s3={"url": "http://s3:9000"})
    with_keys = context(s3={"url": "http://s3:9000", "secretRef": {"name": "s3"}})

    egress = network_policies(queue(), keyless)["queue"]["egress"]
    of_a_console = console_policy(keyless.cluster, {})["egress"]

    assert asked in egress
    assert tcp(443, 5672, 9000, 9042) in egress, "STS, which takes the pod's own token"
    assert asked in of_a_console
    assert asked not in network_policies(queue(), with_keys)["queue"]["egress"]


def test_clients_may_reach_the_ports_of_the_intake_alone() -> None:
    found = network_policies(queue(intake=intake(listeners=LISTENERS)), context())

    assert found["intake"] == {
        "podSelector": {"matchLabels": labels(queue(), "intake")},
        "policyTypes": ["Ingress"],
        "ingress": [tcp("smtp", "smtps")],
    }
    assert "intake" not in network_policies(queue(), context())


@pytest.mark.parametrize(
    ("issuer", "egress"),
    [("https://id.example", tcp(443)), ("https://id.example:8443/realm", tcp(443, 8443))],
)
def test_an_intake_may_ask_its_issuer_for_keys(issuer: str, egress: object) -> None:
    users = {"oidc": spec_cases.OIDC | {"issuer": issuer}}

    found = network_policies(queue(intake=intake(users=users)), context())["intake"]

    assert found["egress"] == [egress]
    assert found["policyTypes"] == ["Ingress", "Egress"]


def test_an_intake_may_reach_what_it_asks_about_mails_and_recipients() -> None:
    hops = ({"host": "imap.mail", "port": 24}, {"host": "imap.other"}, {"socket": "/run/lmtp"})
    domains = [
        {"name": f"{number}.example", "recipients": {"callAhead": each}}
        for number, each in enumerate(hops)
    ]
    local = {"name": "local", "milter": "unix:/run/milter"}
    filters = [spec_cases.MILTER, spec_cases.HOOK_FILTER, local]
    asks = {"domains": domains, "filters": filters}
    function = {"name": "own", "function": "own.filters:check"}

    found = network_policies(queue(intake=intake(**asks)), context())["intake"]
    own = queue(intake=intake(filters=[function]), image="mine:1")

    assert found["egress"] == [tcp(24, 25, 8443, 11332)]
    assert network_policies(own, context())["intake"]["egress"] == [{}]


LISTENERS = [relay(), relay(name="smtps", port=465)]
IMPLICIT = {"tls": {"mode": "Implicit"}}
RULES: list[dict[str, Any]] = [
    {"name": "a", "domains": ["a.example"], "hops": [{"host": "h.example", "port": 2525}]},
    {"name": "b", "domains": ["b.example"], "mx": {}},
]


@pytest.mark.parametrize(
    ("handler", "delivery", "egress"),
    [
        ({"relay": {"host": "sink"}}, None, [tcp(25)]),
        ({"relay": {"host": "sink", "tls": {"mode": "Implicit"}}}, None, [tcp(465)]),
        ({"relay": {"host": "sink", "port": 587}}, None, [tcp(587)]),
        ({"relay": {"socket": "/run/lmtp"}}, None, None),
        ({"mx": {}}, None, [tcp(25, 443)]),
        ({"mx": {}}, {"routing": {"rules": RULES}}, [tcp(25, 443, 2525)]),
        ({"mx": {}}, {"routing": {"mx": IMPLICIT}}, [tcp(25, 443, 465)]),
        ({"mx": {}}, {"routing": {"rules": [RULES[1] | {"mx": IMPLICIT}]}}, [tcp(25, 443, 465)]),
        (
            {"mx": {}},
            {"routing": {"resolver": {"servers": ["127.0.0.1:5353", "192.0.2.1"]}}},
            [
                tcp(25, 443),
                {"ports": [{"port": 5353, "protocol": each} for each in ("UDP", "TCP")]},
            ],
        ),
        ({"webhook": spec_cases.WEBHOOK}, None, [tcp(443)]),
        ({"webhook": spec_cases.WEBHOOK | {"url": "http://app:8080/"}}, None, [tcp(8080)]),
        ({"function": {"name": "app:deliver"}}, None, [{}]),
    ],
    ids=str,
)
def test_workers_may_reach_what_they_deliver_to(
    handler: dict[str, Any], delivery: dict[str, Any] | None, egress: list[Any] | None
) -> None:
    found = network_policies(queue(handler, delivery=delivery), context())

    assert found.get("worker", {}).get("egress") == egress
    if egress is not None:
        assert found["worker"]["policyTypes"] == ["Egress"]


@pytest.mark.parametrize(
    ("catalog", "ports"),
    [
        ({"type": "JDBC", "uri": "jdbc:postgresql://db/lakes"}, [5432]),
        ({"type": "JDBC", "uri": "jdbc:mysql://db/lakes"}, None),
        ({"type": "REST", "uri": "http://catalog:8181/iceberg"}, [8181]),
        (
            {
                "type": "REST",
                "uri": "http://catalog:8181",
                "properties": {"oauth2-server-uri": "https://issuer/token"},
            },
            [443, 8181],
        ),
    ],
)
def test_jobs_may_reach_the_catalog_of_their_lake(
    catalog: dict[str, Any], ports: list[int] | None
) -> None:
    pipeline = {"addresses": {"keep": "None"}, "catalog": catalog}

    found = network_policies(queue(pipeline=pipeline), context())

    rule = {"ports": [{"port": each, "protocol": "TCP"} for each in ports or ()]}
    assert found["pipeline"]["egress"] == [{} if ports is None else rule]


def test_jobs_with_executors_may_reach_the_api_server_wherever_it_is() -> None:
    pipeline = {"addresses": {"keep": "None"}, "executors": {"instances": 1}}

    found = network_policies(queue(pipeline=pipeline), context())

    assert found["pipeline"]["egress"] == [{}]
    assert "pipeline" not in network_policies(queue(pipeline={}), context())
