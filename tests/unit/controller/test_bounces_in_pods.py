"""What `spec.intake.bounces` becomes in the pods of the intake and of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroad.controller.kubernetes.api import SECRET
from postroad.domain.smtp.bounces import BounceClass
from support.built_pods import IntakePod, WorkerPod
from support.manual_loop import move, run
from support.resources import intake, secret, workers
from support.running_controller import NAMESPACE, running_controller
from support.spec_cases import MX, VERP

BY_MX = {"replicas": 0, "handler": {"mx": {}}}
BOUNCES: dict[str, Any] = VERP | {"suppress": ["NoMailbox", "Complaint"]}
DELIVERY: dict[str, Any] = {"routing": {"mx": {"verp": True}}, "suppression": {}}
SPEC: dict[str, Any] = {
    "workers": BY_MX,
    "intake": intake(listeners=[MX], bounces=BOUNCES),
    "delivery": DELIVERY,
}
GOOD = {"secret": "a secret of twenty-four octets"}
LONGER_THAN_A_FULL_RECONCILE = 400


def test_both_read_the_secret_that_the_resource_names_once(tmp_path: Path) -> None:
    (tmp_path / "intake").mkdir()
    (tmp_path / "worker").mkdir()
    incoming, outgoing = IntakePod(**SPEC), WorkerPod(**SPEC)

    bounces = incoming.read(tmp_path / "intake").bounces
    verp = outgoing.read(tmp_path / "worker").verp_secret

    assert bounces
    assert bounces.verp_secret.file
    assert verp
    assert verp.file
    assert incoming.secret_of(bounces.verp_secret.file) == outgoing.secret_of(verp.file) == "verp"
    assert bounces.classes == frozenset((BounceClass.NO_MAILBOX,))
    assert bounces.by_complaints


def test_the_intake_has_the_rules_of_the_list_without_the_secrets_of_workers() -> None:
    pod = IntakePod(**SPEC)

    assert pod.variables["POSTROAD_WORKER_DELIVERY_FILE"]
    decided = yaml.safe_load(
        pod.children["ConfigMap", "outgoing-delivery"]["data"]["delivery.yaml"]
    )
    assert "verpSecret" in decided
    named = [each["secret"]["secretName"] for each in pod.pod["volumes"] if "secret" in each]
    assert named.count("verp") == 1


def test_a_relay_signs_too(tmp_path: Path) -> None:
    pod = WorkerPod(**SPEC | {"workers": workers(), "delivery": {"suppression": {}}})

    assert pod.read(tmp_path).verp_secret


def test_without_bounces_no_pod_has_a_secret_of_them(tmp_path: Path) -> None:
    spec = SPEC | {"intake": intake(listeners=[MX], domains=[{"name": "a.example"}])}

    assert WorkerPod(**spec).read(tmp_path).verp_secret is None
    assert "verp" not in json.dumps(IntakePod(**spec).pod["volumes"])


@pytest.mark.parametrize("data", [{"secret": None}, {"secret": "c2VjcmV0LXdvcmQ="}])
def test_a_secret_that_cannot_sign_is_a_condition_of_both(data: dict[str, str | None]) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            good = secret(NAMESPACE, "verp", GOOD)
            await operator.create(good)
            await operator.declare(**SPEC)

            await operator.user.patch(SECRET, NAMESPACE, "verp", {"data": data})
            await move(LONGER_THAN_A_FULL_RECONCILE)
            for name in ("IntakeReady", "WorkersReady"):
                condition = operator.condition(name)
                assert (condition["status"], condition["reason"]) == ("False", "CredentialsMissing")
                assert "spec.intake.bounces.verpSecret.secretRef: " in condition["message"]
                assert "secret-word" not in condition["message"]

            await operator.user.patch(SECRET, NAMESPACE, "verp", {"data": good["data"]})
            await move(LONGER_THAN_A_FULL_RECONCILE)
            assert operator.condition("Ready")["status"] == "True"

    run(scene())
