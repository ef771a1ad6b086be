"""Changes that would make mail invisible are refused, at admission and again by the operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.installation import ROOT
from support.kubectl import Kubectl, KubectlFailed, Manifest, eventually, manifests
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]


def view(slice_window: str, bucket_count: int) -> Manifest:
    return {"sliceWindow": slice_window, "bucketCount": bucket_count}


def refusal(sandbox: Sandbox, wanted: Manifest) -> str:
    """Return why `kubectl apply` is refused."""
    with pytest.raises(KubectlFailed) as refused:
        sandbox.apply(sandbox.mail_queue(view=wanted))
    return str(refused.value)


def test_admission_refuses_and_past_a_bypassed_one_the_operator_does_and_the_queue_goes_on(
    sandbox: Sandbox,
) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    for wanted, field, allowed in (
        (view("25m", 3), "sliceWindow", "1h"),
        (view("2h", 3), "sliceWindow", "1h"),
        (view("1h", 2), "bucketCount", "3"),
    ):
        said = refusal(sandbox, wanted)
        assert field in said
        assert allowed in said

    with admission_without_rules(sandbox.kubectl):
        sandbox.apply(sandbox.mail_queue(view=view("25m", 3), workers=sandbox.workers(2)))
        refused = eventually(
            lambda: (
                sandbox.condition("ConfigurationAccepted").get("status") == "False"
                and sandbox.condition("ConfigurationAccepted")
            ),
            within_seconds=60,
        )
        eventually(lambda: len(sandbox.pods("worker")) == 2, within_seconds=60)
        status = sandbox.status()
        sandbox.apply(sandbox.mail_queue(view=view("30m", 4), workers=sandbox.workers(2)))
        sandbox.wait_ready()

    assert refused["reason"] == "SliceWindowDoesNotDivide"
    assert "30m" in refused["message"]
    assert status["configuration"]["sliceWindow"] == "1h"
    assert [entry["type"] for entry in status["history"]] == [
        "ConfigurationCreated",
        "ConfigurationRefused",
    ]
    assert any(c["type"] == "Stalled" and c["status"] == "True" for c in status["conditions"])
    mended = sandbox.status()
    assert mended["configuration"]["sliceWindow"] == "30m"
    assert mended["configuration"]["bucketCount"] == 4
    assert not any(c["type"] == "Stalled" for c in mended["conditions"])


@contextmanager
def admission_without_rules(kubectl: Kubectl) -> Iterator[None]:
    """Remove the CEL rules from the CRD, and restore them afterwards."""
    crds = [
        each for each in manifests(ROOT / "crds") if each["spec"]["names"]["kind"] == "MailQueue"
    ]
    kubectl.apply(*[without_rules(crd) for crd in crds])
    try:
        yield
    finally:
        kubectl.apply(*crds)


def without_rules(node: object) -> Manifest:
    """Return a copy of a schema without validation rules."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k != "x-kubernetes-validations"}
        return [strip(each) for each in value] if isinstance(value, list) else value

    stripped = strip(node)
    assert isinstance(stripped, dict)
    return stripped
