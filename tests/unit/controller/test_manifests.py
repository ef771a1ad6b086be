"""The shipped manifests say what the code means."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from postroad.controller.kubernetes.api import LEASE
from postroad.controller.run.options import LEASE_NAMESPACE
from postroad.controller.run.program import LEASE_VERBS, missing_rights
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from stack.images import BASE
from support.kubectl import manifests
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

ROOT = Path(__file__).parents[3]


def installed(kind: str, name: str = "postroad-operator") -> dict[str, Any]:
    documents = manifests(ROOT / "manifests" / "install.yaml")
    (found,) = (
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def granted(role: str) -> set[tuple[str, str]]:
    return {
        (resource, verb)
        for rule in installed("ClusterRole", role)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_operator_and_its_workers_run_the_image_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (container,) = installed("Deployment")["spec"]["template"]["spec"]["containers"]

    env = {each["name"]: each.get("value") for each in container["env"]}
    workers = env["POSTROAD_OPERATOR_IMAGE"]

    assert container["image"] == workers == f"postroad:{version}"


def test_an_operator_that_takes_two_minutes_to_start_is_not_killed_meanwhile() -> None:
    (container,) = installed("Deployment")["spec"]["template"]["spec"]["containers"]

    probe = container["startupProbe"]

    assert probe["httpGet"] == container["livenessProbe"]["httpGet"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120


def test_the_image_has_one_base_that_a_build_can_name_by_digest() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()

    stages = {line.split(" AS ")[1] for line in lines if " AS " in line}
    bases = {line.split()[1] for line in lines if line.startswith("FROM ")} - stages

    assert bases == {"$BASE"}
    assert f"ARG BASE={BASE.rpartition('/')[2]}" in lines
    assert any("image.revision=$REVISION" in line for line in lines)


def test_pods_run_on_the_systems_that_the_image_is_for() -> None:
    pod = installed("Deployment")["spec"]["template"]["spec"]

    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_the_role_grants_no_wildcard_and_never_lists_secrets() -> None:
    operators = granted("postroad-operator")

    assert "*" not in {part for pair in operators for part in pair}
    assert {verb for resource, verb in operators if resource == "secrets"} == {"get"}


def test_the_operator_writes_secrets_only_with_a_role_that_is_applied_for_it() -> None:
    role, binding = manifests(ROOT / "manifests" / "users.yaml")
    operators = installed("ClusterRoleBinding")

    assert [each["verbs"] for each in role["rules"]] == [["create", "patch"]]
    assert [each["resources"] for each in role["rules"]] == [["secrets"]]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == operators["subjects"]


def test_the_operator_gives_rights_away_only_with_a_role_that_is_applied_for_it() -> None:
    rights = {(resource, verb) for resource, verb in granted("postroad-operator")}
    assert {verb for resource, verb in rights if resource == "rolebindings"} == {
        *("get", "list", "watch")
    }
    assert "bind" not in {verb for _, verb in rights}

    of_drivers, role, binding = manifests(ROOT / "manifests" / "executors.yaml")
    assert of_drivers["metadata"]["name"] == "postroad-pipeline"
    assert [each["verbs"] for each in role["rules"]] == [["create", "patch", "delete"], ["bind"]]
    assert role["rules"][1]["resourceNames"] == ["postroad-pipeline"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == installed("ClusterRoleBinding")["subjects"]


def test_consoles_may_ask_for_reviews_and_the_operator_gives_that_away_alone() -> None:
    of_consoles, role, binding, own = manifests(ROOT / "manifests" / "consoles.yaml")
    assert {verb for rule in of_consoles["rules"] for verb in rule["verbs"]} == {"create"}
    assert [each["resourceNames"] for each in role["rules"]] == [["postroad-console"]] * 2
    assert [each["verbs"] for each in role["rules"]] == [["get", "patch"], ["bind"]]
    assert "subjects" not in binding
    assert own["subjects"] == installed("ClusterRoleBinding")["subjects"]


def test_only_administrators_of_a_namespace_get_queue_clusters_by_their_role() -> None:
    reading, changing = {"get", "list", "watch"}, {"create", "update", "patch", "delete"}

    def kinds_in(role: str, verbs: set[str]) -> set[str]:
        return {resource for resource, verb in granted(role) if verb in verbs}

    assert kinds_in("postroad-view", reading) == {
        *("mailqueues", "mailqueuetasks", "queueclusters"),
        *("mailqueues/mails", "mailqueues/operations"),
    }
    assert kinds_in("postroad-admin", reading) == {"mailqueues/content"}
    assert kinds_in("postroad-view", changing) == set()
    assert kinds_in("postroad-edit", changing) == {
        *("mailqueues", "mailqueues/scale", "mailqueues/operations", "mailqueuetasks")
    }
    assert kinds_in("postroad-admin", changing) == {"queueclusters"}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    aggregated = {
        role: {
            label.removeprefix(prefix)
            for label in installed("ClusterRole", role)["metadata"]["labels"]
            if label.startswith(prefix)
        }
        for role in ("postroad-operator", "postroad-view", "postroad-edit", "postroad-admin")
    }
    assert aggregated == {
        "postroad-operator": set(),
        "postroad-view": {"view", "edit", "admin"},
        "postroad-edit": {"edit", "admin"},
        "postroad-admin": {"admin"},
    }


def test_the_rights_to_leases_are_those_that_an_election_uses_in_one_namespace_alone() -> None:
    granted = {
        (group, resource, verb)
        for rule in installed("Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert granted == {(LEASE.group, LEASE.plural, verb) for verb in LEASE_VERBS}
    assert installed("Role")["metadata"]["namespace"] == LEASE_NAMESPACE
    assert LEASE.plural not in str(installed("ClusterRole"))


async def test_each_right_that_is_missing_is_named() -> None:
    api = MemoryKubernetes(KubernetesWorld(ManualClock()))
    api.refused = {("patch", "leases"), ("watch", "services")}

    assert await missing_rights(api, "system", ["mail"]) == (
        "watch services in namespace mail",
        "patch leases in namespace system",
    )
    assert await missing_rights(api, "system") == (
        "watch services",
        "patch leases in namespace system",
    )


def test_two_operators_stand_on_different_nodes_and_one_always_stays() -> None:
    deployment, budget = installed("Deployment"), installed("PodDisruptionBudget")
    labels = deployment["spec"]["selector"]["matchLabels"]
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]

    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert (budget["spec"]["maxUnavailable"], spread["labelSelector"]["matchLabels"]) == (1, labels)


def test_the_samples_are_what_the_operator_reads() -> None:
    samples = {each["kind"]: each for each in manifests(ROOT / "manifests" / "samples")}

    queue = MailQueueSpec.model_validate(samples["MailQueue"]["spec"])
    cluster = QueueClusterSpec.model_validate(samples["QueueCluster"]["spec"])

    assert queue.cluster_ref.name == samples["QueueCluster"]["metadata"]["name"]
    assert queue.workers is not None
    assert queue.workers.handler.relay
    assert (queue.workers.handler.relay.host, queue.workers.handler.relay.port) == ("sink", 2525)
    assert cluster.rabbitmq.secret_ref.name == "rabbitmq"
    assert {each["metadata"].get("namespace", "mail") for each in samples.values()} == {"mail"}
