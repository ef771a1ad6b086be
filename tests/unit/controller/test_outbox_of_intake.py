"""An intake with an outbox: a StatefulSet, whose volumes outlive it; the other kind runs on until
it is ready."""

from __future__ import annotations

from typing import Any

import yaml

from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    MAIL_QUEUE,
    STATEFUL_SET,
)
from postroad.controller.pods.manifests import INTAKE, wanted_children
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.intake_settings.intake_file import IntakeFile
from postroad.ports.kubernetes import Object
from support import resources
from support.manual_loop import move, run
from support.resources import intake, workers
from support.running_controller import NAMESPACE, RunningController, running_controller


def built(present: Object | None = None, **outbox: Any) -> dict[str, Any]:
    wanted = resources.mail_queue(NAMESPACE, intake=intake(outbox=outbox))
    wanted["metadata"] |= {"uid": "u1", "generation": 1}
    cluster = QueueClusterSpec.model_validate(resources.queue_cluster(NAMESPACE)["spec"])
    context = PodContext(cluster, "postroad:1")
    children = wanted_children(Queue.of(wanted), context, (INTAKE,), present=present)
    (found,) = (child for kind, child in children if kind is STATEFUL_SET)
    assert DEPLOYMENT not in [kind for kind, _ in children]
    return found


def claim(found: dict[str, Any]) -> dict[str, Any]:
    (claim,) = found["spec"]["volumeClaimTemplates"]
    return dict(claim["spec"])


def test_each_pod_has_a_volume_that_nothing_deletes() -> None:
    spec = built(size="1Gi", storageClassName="fast")["spec"]

    policy = spec["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert claim({"spec": spec}) == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str((1 << 30) + (128 << 20))}},
        "storageClassName": "fast",
    }
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 50
    assert pod["securityContext"]["fsGroup"] == 10001
    (container,) = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts["outbox"] == "/var/lib/postroad"
    assert "storageClassName" not in claim(built(size="1Gi"))


def test_volumes_keep_the_size_that_they_were_made_with() -> None:
    first = built(size="1Gi", storageClassName="fast")

    assert claim(built(first, size="5Gi")) == claim(first)
    assert claim(built(first, size=0)) == claim(first)
    assert built(first, size=0)["spec"]["template"] != first["spec"]["template"]


def test_an_outbox_replaces_no_pods_of_those_without() -> None:
    found = IntakeFile.model_validate({"listeners": intake()["listeners"]}).fixed

    assert isinstance(found, list)
    assert len(found) == 2


def test_pods_get_a_file_with_the_outbox() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            outbox = {"size": "1Gi", "when": "First", "storageClassName": "fast"}
            await operator.declare(intake=intake(outbox=outbox, replicas=1))

            data = operator.found(CONFIG_MAP, "outgoing-intake")["data"]
            file = yaml.safe_load(data["intake.yaml"])
            assert file["outbox"] == {"size": 1 << 30, "when": "First"}
            assert IntakeFile.model_validate(file).outbox is not None
            assert operator.condition("IntakeReady")["status"] == "True"
            assert operator.found()["status"]["intake"]["ready"] == 1

    run(scene())


def kinds(operator: RunningController) -> list[str]:
    return [
        each
        for each in ("deployments", "statefulsets")
        if operator.at(each, NAMESPACE, "outgoing-intake") is not None
    ]


def test_the_other_kind_runs_on_until_the_new_one_is_ready() -> None:
    async def scene() -> None:
        async with running_controller(broken={"never:1"}) as operator:
            await operator.declare(workers=workers(), intake=intake(replicas=1))
            assert kinds(operator) == ["deployments"]

            await operator.change({"image": "never:1"})
            await operator.change({"intake": {"outbox": {"size": "1Gi"}}})
            await move(60)
            assert kinds(operator) == ["deployments", "statefulsets"]

            await operator.change({"image": "good:1"})
            await move(60)
            assert kinds(operator) == ["statefulsets"]
            assert operator.condition("IntakeReady")["status"] == "True"

            await operator.change({"intake": {"outbox": {"size": 0}}})
            await operator.change({"intake": {"outbox": None}})
            await move(60)
            assert kinds(operator) == ["deployments"]

    run(scene())


def test_an_intake_that_is_no_longer_declared_goes_and_so_do_pods_at_a_deletion() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(intake=intake(outbox={"size": 0}))
            assert kinds(operator) == ["statefulsets"]
            await operator.change({"intake": None})
            await move(60)
            assert kinds(operator) == []

            await operator.change({"intake": intake(outbox={"size": "1Gi"})})
            await move(60)
            assert kinds(operator) == ["statefulsets"]
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            assert kinds(operator) == []

    run(scene())
