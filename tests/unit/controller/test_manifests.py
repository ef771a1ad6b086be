"""The shipped manifests say what the code means."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from postroad.controller.cluster_spec import QueueClusterSpec
from postroad.controller.spec import MailQueueSpec
from support.kubectl import manifests

ROOT = Path(__file__).parents[3]


def installed(kind: str) -> dict[str, Any]:
    documents = manifests(ROOT / "manifests" / "install.yaml")
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def test_the_operator_and_its_workers_run_the_image_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (container,) = installed("Deployment")["spec"]["template"]["spec"]["containers"]

    workers = {each["name"]: each["value"] for each in container["env"]}["POSTROAD_OPERATOR_IMAGE"]

    assert container["image"] == workers == f"postroad:{version}"


def test_the_role_grants_no_wildcard_and_never_lists_secrets() -> None:
    rules = installed("ClusterRole")["rules"]

    granted = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert "*" not in {part for pair in granted for part in pair}
    assert {verb for resource, verb in granted if resource == "secrets"} == {"get"}


def test_the_samples_are_what_the_operator_reads() -> None:
    samples = {each["kind"]: each for each in manifests(ROOT / "manifests" / "samples")}

    queue = MailQueueSpec.model_validate(samples["MailQueue"]["spec"])
    cluster = QueueClusterSpec.model_validate(samples["QueueCluster"]["spec"])

    assert queue.cluster_ref.name == samples["QueueCluster"]["metadata"]["name"]
    assert queue.workers is not None
    assert (queue.workers.handler.relay.host, queue.workers.handler.relay.port) == ("sink", 2525)
    assert cluster.rabbitmq.secret_ref.name == "rabbitmq"
    assert {each["metadata"].get("namespace", "mail") for each in samples.values()} == {"mail"}
