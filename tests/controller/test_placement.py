"""Placement, Service and ServiceAccount of a MailQueue, as a real API server takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CRON_JOB,
    DEPLOYMENT,
    MAIL_QUEUE,
    NETWORK_POLICY,
    SERVICE,
    SERVICE_ACCOUNT,
)
from postroad.errors import KubernetesError, KubernetesRefused
from postroad.ports.kubernetes import Kind, Object
from support.resources import intake, mail_queue, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")

POD: dict[str, Any] = {
    "labels": {"team": "mail"},
    "annotations": {"example.org/scrape": "true"},
    "resources": {"requests": {"cpu": "0.5", "memory": "256Mi"}, "limits": {"memory": "1024Mi"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [
        {"key": "mail", "operator": "Exists"},
        {"key": "mail", "value": "x", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
    ],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"team": "mail"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
    ],
    "priorityClassName": "mail",
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {"runAsUser": 2000, "fsGroup": 2000, "supplementalGroups": [7]},
    "env": [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "EMPTY", "value": ""},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "logLevel": "Warning",
}
BALANCER: dict[str, Any] = {
    "type": "LoadBalancer",
    "annotations": {"example.org/lb": "internal"},
    "loadBalancerClass": "example.org/lb",
    "externalTrafficPolicy": "Local",
    "sourceRanges": ["192.0.2.0/24"],
    "ipFamilies": ["IPv4"],
}


def whole(namespace: str, **placement: Any) -> Object:
    """Return a queue with all that has pods, placed alike."""
    return mail_queue(
        namespace,
        workers=workers() | placement,
        intake=intake() | placement,
        pipeline={
            "ages": {"schedule": "7 * * * *"},
            "addresses": {"keep": "None"},
            "image": "pipeline:1",
        }
        | placement,
    )


async def versions(operator: Running) -> Mapping[tuple[str, str], str]:
    """Return the resourceVersions of the children that run pods or lead to them."""
    return {
        (kind.name, each["metadata"]["name"]): each["metadata"]["resourceVersion"]
        for kind in (DEPLOYMENT, SERVICE, SERVICE_ACCOUNT, CRON_JOB)
        for each in await operator.api.list(kind, operator.namespace)
        if each["metadata"]["name"].startswith("outgoing")
    }


async def until(operator: Running, kind: Kind, name: str, path: str, expected: Any) -> Object:
    """Wait until a part of a child is as expected; return the child."""
    value: Any = None
    for _ in range(300):
        found = await operator.api.get(kind, operator.namespace, name)
        value = found or {}
        for each in path.split("."):
            value = value.get(each, {})
        if value == expected and found is not None:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{path} of {name} is {value}")


async def test_a_change_of_the_placement_rolls_pods_once_and_is_then_at_rest(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    await operator.apply(whole(operator.namespace))
    await operator.until_ready()
    before = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    assert before

    change = {part: {"pod": POD} for part in ("workers", "intake", "pipeline")}
    account = {"annotations": {"example.org/role": "mail"}}
    await operator.change(change | {"serviceAccount": account})
    for name in ("outgoing-worker", "outgoing-intake"):
        path = "spec.template.spec.priorityClassName"
        changed = await until(operator, DEPLOYMENT, name, path, "mail")
    path = "spec.jobTemplate.spec.template.spec.priorityClassName"
    await until(operator, CRON_JOB, "outgoing-ages", path, "mail")
    await operator.until_ready()
    await operator.settle()
    first = await versions(operator)
    await operator.settle()

    assert await versions(operator) == first
    assert await operator.events("Repaired") == []
    after = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    assert after
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    pod = changed["spec"]["template"]["spec"]
    assert len(pod["tolerations"]) == 3
    assert len(pod["topologySpreadConstraints"]) == 2
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "256Mi"}
    accounts = await operator.api.get(SERVICE_ACCOUNT, operator.namespace, "outgoing-queue")
    assert accounts
    assert accounts["metadata"]["annotations"]["example.org/role"] == "mail"


async def test_the_service_becomes_a_load_balancer_and_none_again(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers(), intake=intake()))
    await operator.until_ready()

    await operator.change({"intake": {"service": BALANCER}})
    found = await until(operator, SERVICE, "outgoing-intake", "spec.type", "LoadBalancer")
    assert found["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    assert found["spec"]["externalTrafficPolicy"] == "Local"
    assert found["metadata"]["annotations"]["example.org/lb"] == "internal"
    await operator.until_ready()
    await operator.settle()
    first = await versions(operator)
    await operator.settle()
    assert await versions(operator) == first

    await operator.change({"intake": {"service": None}})
    found = await until(operator, SERVICE, "outgoing-intake", "spec.type", "ClusterIP")
    assert (
        found["spec"]
        .keys()
        .isdisjoint({"loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy"})
    )
    assert "example.org/lb" not in found["metadata"]["annotations"]
    await operator.until_ready()


async def test_a_service_account_that_is_named_takes_the_place_of_the_operators(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers()))
    await operator.until_ready()

    await operator.change({"serviceAccount": {"name": "mail"}})

    path = "spec.template.spec.serviceAccountName"
    await until(operator, DEPLOYMENT, "outgoing-worker", path, "mail")
    await operator.until_gone(SERVICE_ACCOUNT, "outgoing-queue")


async def test_network_policies_come_and_go_with_their_switch(operator: Running) -> None:
    await operator.apply_cluster()
    queue = whole(operator.namespace)
    await operator.apply(queue | {"spec": queue["spec"] | {"networkPolicy": {"enabled": True}}})
    await operator.until_ready()
    await operator.settle()
    found = await operator.api.list(NETWORK_POLICY, operator.namespace)
    first = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}
    await operator.settle()

    again = await operator.api.list(NETWORK_POLICY, operator.namespace)
    assert first.keys() == {"outgoing-queue", "outgoing-intake", "outgoing-worker"}
    assert {
        each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in again
    } == first

    await operator.change({"networkPolicy": {"enabled": False}})
    for name in first:
        await operator.until_gone(NETWORK_POLICY, name)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "tolerations[0]"),
    ({"tolerations": [{"effect": "NoExecute"}]}, "tolerations[0]"),
    ({"affinity": {"podAffinity": {"required": []}}}, "podAffinity.required"),
    ({"labels": {"not a name": "x"}}, "labels"),
    ({"nodeSelector": {"disk": "-"}}, "nodeSelector"),
    ({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, "resources.requests"),
    ({"env": [{"name": "A", "valueFrom": {"fieldReff": {}}}]}, "fieldReff"),
)


async def test_what_the_api_server_refuses_of_pods_comes_back_with_the_field_to_correct(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers()))
    await operator.until_ready()

    for pod, said in REFUSED:
        nothing = dict.fromkeys(each for one, _ in REFUSED for each in one)
        await operator.change({"workers": {"pod": nothing | pod}})
        conditions = await operator.until(lambda found: found["WorkersReady"]["status"] == "False")
        ready = conditions["WorkersReady"]
        assert ready["reason"] == "KubernetesRefused"
        assert said in ready["message"]
        assert "correct spec.workers.pod" in ready["message"]
        assert conditions["Stalled"]["status"] == "True"

    await operator.change({"workers": {"pod": None}})
    await operator.until_ready()


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"tolerations": [{"effect": "NoEntry"}]}, "effect"),
        ({"tolerations": [{"tolerationSeconds": "60"}]}, "tolerationSeconds"),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z"}]}, "whenUnsatisfiable"),
        ({"topologySpreadConstraints": [{**POD["topologySpreadConstraints"][0]}] * 2}, "Duplicate"),
        ({"resources": {"requests": {"cpu": "two"}}}, "cpu"),
        ({"resources": {"limits": {"memory": "1 Gi"}}}, "memory"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"env": [{"value": "x"}]}, "name"),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "Duplicate"),
        ({"securityContext": {"runAsUser": "root"}}, "runAsUser"),
    ],
    ids=str,
)
async def test_a_wrong_value_is_refused_at_admission(
    api: ApiServer, namespace: str, pod: dict[str, Any], said: str
) -> None:
    with pytest.raises(KubernetesRefused, match=said):
        await api.create(MAIL_QUEUE, mail_queue(namespace, workers=workers() | {"pod": pod}))


@pytest.mark.parametrize(
    "pod",
    [
        {"nodeSelecter": {}},
        {"tolerations": [{"keys": "a"}]},
        {"affinity": {"nodeAfinity": {}}},
        {"resources": {"limit": {}}},
        {"securityContext": {"runAsUsr": 1}},
        {"env": [{"name": "A", "valueForm": {}}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("part", ["workers", "intake", "pipeline"])
async def test_a_field_that_no_pod_has_is_not_applied(
    api: ApiServer, namespace: str, part: str, pod: dict[str, Any]
) -> None:
    queue = whole(namespace)
    queue["spec"][part]["pod"] = pod

    with pytest.raises(KubernetesError, match="not declared in schema"):
        await api.apply(MAIL_QUEUE, queue)


async def test_the_class_of_a_load_balancer_cannot_be_changed(
    api: ApiServer, namespace: str
) -> None:
    queue = mail_queue(namespace, intake=intake(service=BALANCER))
    await api.create(MAIL_QUEUE, queue)

    change = {"spec": {"intake": {"service": {"loadBalancerClass": "example.org/other"}}}}
    with pytest.raises(KubernetesRefused, match="set type ClusterIP first"):
        await api.patch(MAIL_QUEUE, namespace, "outgoing", change)
