"""The console of a QueueCluster: what the operator makes of `spec.console`, which MailQueues it
serves, who may ask for reviews, and what is left without it."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from postroad.controller.kubernetes.api import (
    APPLIED_HASH,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    CONSOLE,
    DEPLOYMENT,
    MAIL_QUEUE,
    MANAGED_BY,
    NETWORK_POLICY,
    QUEUE_CLUSTER,
    SERVICE,
    SERVICE_ACCOUNT,
)
from postroad.controller.pods.console_pods import FILE, KINDS
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.memory.kubernetes.world import ObjectPlace
from support.resources import mail_queue, queue_cluster
from support.running_controller import NAMESPACE, RunningController, running_controller

BINDING: Object = {
    "apiVersion": CLUSTER_ROLE_BINDING.api_version,
    "kind": CLUSTER_ROLE_BINDING.name,
    "metadata": {"name": "postroad-console"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "postroad-console",
    },
}


async def declare(operator: RunningController, console: Any, *, bound: bool = True) -> None:
    if bound:
        await operator.user.create(CLUSTER_ROLE_BINDING, BINDING)
    await operator.declare()
    await change(operator, console)


async def change(operator: RunningController, console: Any) -> None:
    spec = {"spec": {"console": console}}
    assert await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", spec)
    await move(30)


def child(operator: RunningController, kind: Any) -> Object | None:
    return operator.at(kind.plural, NAMESPACE, "main-console")


def condition(operator: RunningController) -> dict[str, Any]:
    return dict(operator.condition("ConsoleReady", QUEUE_CLUSTER, "main"))


async def subjects(operator: RunningController) -> list[dict[str, str]]:
    found = await operator.user.get(CLUSTER_ROLE_BINDING, None, "postroad-console")
    assert found
    return list(found.get("subjects") or [])


def bindings_read(operator: RunningController) -> int:
    return len([each for each in operator.calls if CLUSTER_ROLE_BINDING.plural in each])


def queues(operator: RunningController) -> dict[str, Any]:
    found = child(operator, CONFIG_MAP)
    assert found
    served: dict[str, Any] = json.loads(found["data"][FILE])
    return served


def test_a_console_is_made_follows_its_queues_and_goes() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {"networkPolicy": {"enabled": True}})

            for kind in KINDS:
                made = child(operator, kind)
                assert made, kind
                (owner,) = made["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"]) == ("QueueCluster", "main")
            assert condition(operator)["status"] == "True"
            status = operator.found(QUEUE_CLUSTER, "main")["status"]
            assert status["console"] == {"ready": 1, "desired": 1}
            account = {"kind": "ServiceAccount", "name": "main-console", "namespace": NAMESPACE}
            assert await subjects(operator) == [account]

            assert set(queues(operator)) == {f"{NAMESPACE}/outgoing"}
            await operator.user.create(MAIL_QUEUE, mail_queue(NAMESPACE, "later"))
            await move(30)
            assert set(queues(operator)) == {f"{NAMESPACE}/outgoing", f"{NAMESPACE}/later"}
            shown = queues(operator)[f"{NAMESPACE}/outgoing"]["conditions"]
            ready = operator.condition("Ready")
            assert ["Ready", ready["status"], ready["reason"]] in shown
            assert not {each[0] for each in shown if each[1] == "True"} - {"Ready"}
            later = operator.found(MAIL_QUEUE, "later")
            assert queues(operator)[f"{NAMESPACE}/later"]["uid"] == later["metadata"]["uid"]
            await operator.user.delete(MAIL_QUEUE, later)
            await move(60)
            assert set(queues(operator)) == {f"{NAMESPACE}/outgoing"}

            await change(operator, None)
            assert [kind.name for kind in KINDS if child(operator, kind)] == []
            assert await subjects(operator) == []
            assert not condition(operator).get("status")
            assert "console" not in operator.found(QUEUE_CLUSTER, "main")["status"]

    run(scene())


def test_what_another_process_deletes_of_a_console_is_made_again() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {})
            for kind in (SERVICE, DEPLOYMENT, CONFIG_MAP):
                found = child(operator, kind)
                assert found
                await operator.user.delete(kind, found)
                await move(30)
                assert child(operator, kind), kind

    run(scene())


@pytest.mark.parametrize("declared", [True, False])
def test_a_console_without_an_owner_is_that_of_the_next_queue_cluster(declared: bool) -> None:
    """As after a restore from a backup, or `kubectl delete --cascade=orphan`."""

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {"networkPolicy": {"enabled": True}})
            place = ObjectPlace(QUEUE_CLUSTER.plural, NAMESPACE, "main")
            cluster = queue_cluster(NAMESPACE)
            if declared:
                cluster["spec"] = operator.found(QUEUE_CLUSTER, "main")["spec"]
            for kind in KINDS:
                left = deepcopy(child(operator, kind))
                assert left
                del left["metadata"]["ownerReferences"]
                at = ObjectPlace(kind.plural, NAMESPACE, "main-console")
                operator.kubernetes._write(at, left)
            operator.kubernetes._remove(place)
            await operator.create(cluster)
            await move(60)

            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"
            uid = operator.found(QUEUE_CLUSTER, "main")["metadata"]["uid"]
            for kind in KINDS:
                found = child(operator, kind)
                assert (found is not None) is declared, kind
                if found:
                    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == [uid]

    run(scene())


def test_all_names_of_a_console_that_others_have_are_in_one_message() -> None:
    tags = {MANAGED_BY: "postroad", CONSOLE: "other"}
    applied = {"labels": tags, "annotations": {APPLIED_HASH: "of another"}}

    async def scene() -> None:
        async with running_controller() as operator:
            for kind in (CONFIG_MAP, SERVICE):
                type_meta = {"apiVersion": kind.api_version, "kind": kind.name}
                metadata = {"name": "main-console", "namespace": NAMESPACE} | applied
                await operator.user.create(kind, {**type_meta, "metadata": metadata})
            await declare(operator, {})

            found = condition(operator)
            assert (found["status"], found["reason"]) == ("False", "NameTaken")
            assert "not this QueueCluster's" in found["message"]
            assert "have: ConfigMap main-console, Service main-console;" in found["message"]
            for kind in (CONFIG_MAP, SERVICE):
                other = child(operator, kind)
                assert other
                await operator.user.delete(kind, other)
            await move(600)
            assert condition(operator)["status"] == "True"

    run(scene())


def test_the_rights_of_a_console_go_with_its_queue_cluster() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {})
            assert len(await subjects(operator)) == 1
            await operator.user.delete(QUEUE_CLUSTER, operator.found(QUEUE_CLUSTER, "main"))
            await move(30)
            assert await subjects(operator) == []

            asked = bindings_read(operator)
            await move(20 * 60)
            assert bindings_read(operator) == asked, "once is enough"

    run(scene())


def test_the_rights_of_a_console_are_taken_once_that_is_allowed() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {})
            refused = ("get", CLUSTER_ROLE_BINDING.plural)
            operator.api.refused.add(refused)
            await operator.user.delete(QUEUE_CLUSTER, operator.found(QUEUE_CLUSTER, "main"))
            await move(30)
            operator.api.refused.remove(refused)
            assert len(await subjects(operator)) == 1
            await move(70)
            assert await subjects(operator) == []

    run(scene())


def test_a_console_without_the_right_to_reviews_says_what_gives_it() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {}, bound=False)
            found = condition(operator)
            assert found["status"] == "False"
            assert "consoles=true" in found["message"]
            assert operator.condition("Ready")["status"] == "True", "mail goes on"

    run(scene())


def test_a_mail_queue_of_the_cluster_s_name_keeps_its_pods_apart() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {"networkPolicy": {"enabled": True}})
            await operator.user.create(MAIL_QUEUE, mail_queue(NAMESPACE, "main"))
            await move(60)
            policy, deployment = child(operator, NETWORK_POLICY), child(operator, DEPLOYMENT)
            assert policy
            assert deployment
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert labels["app.kubernetes.io/name"] != "postroad"
            assert "app.kubernetes.io/instance" not in labels
            selected = policy["spec"]["podSelector"]["matchLabels"]
            assert selected.items() <= labels.items()

    run(scene())


def test_a_pod_has_its_placement_hosts_and_account() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(
                operator,
                {
                    "hosts": ["console.example.org"],
                    "serviceAccount": {"name": "reviewer"},
                    "pod": {"nodeSelector": {"pool": "infra"}, "logLevel": "Debug"},
                    "oidc": {
                        "issuer": "https://issuer.example:8443",
                        "clientId": "postroad",
                        "secretRef": {"name": "client", "key": "secret"},
                        "tls": {"caRef": {"kind": "ConfigMap", "name": "authorities"}},
                    },
                    "networkPolicy": {"enabled": True},
                },
            )
            deployment = child(operator, DEPLOYMENT)
            assert deployment
            pod = deployment["spec"]["template"]["spec"]
            assert pod["nodeSelector"]["pool"] == "infra"
            assert pod["serviceAccountName"] == "reviewer"
            (container,) = pod["containers"]
            assert "--host=console.example.org" in container["args"]
            assert f"--audience=postroad.dev/consoles/{NAMESPACE}/main" in container["args"]
            folder = "/etc/postroad/oidc"
            assert container["args"][-3:] == [
                "--issuer=https://issuer.example:8443",
                "--client=postroad",
                f"--issuer-files={folder}",
            ]
            assert {"name": "oidc", "mountPath": folder, "readOnly": True} in container[
                "volumeMounts"
            ]
            (volume,) = (each for each in pod["volumes"] if each["name"] == "oidc")
            secret, authorities = (next(iter(s.items())) for s in volume["projected"]["sources"])
            item = {"key": "secret", "path": "clientSecret"}
            assert secret == ("secret", {"name": "client", "items": [item]})
            item = {"key": "ca.crt", "path": "ca.crt"}
            assert authorities == ("configMap", {"name": "authorities", "items": [item]})
            policy = child(operator, NETWORK_POLICY)
            assert policy
            ports = [each["port"] for each in policy["spec"]["egress"][-1]["ports"]]
            assert ports == [443, 6443, 8443]
            environment = {each["name"]: each["value"] for each in container["env"]}
            assert environment["POSTROAD_LOG_LEVEL"] == "DEBUG"
            assert "POSTROAD_RABBITMQ_URI" in environment
            assert child(operator, SERVICE_ACCOUNT) is None
            assert (await subjects(operator))[0]["name"] == "reviewer"
            assert "s3cr3t" not in json.dumps(deployment)

    run(scene())
