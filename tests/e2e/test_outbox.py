"""An intake with an outbox in pods: its volume outlives them, and the way to and from it has no gap
in which mail is lost."""

from __future__ import annotations

import pytest

from support.installation import image_name
from support.kubectl import Manifest, eventually
from support.mail_flow import flowing
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(900, func_only=True),
]

KILLS = 3


CLAIM = "outbox-outgoing-intake-0"


def make_writable_claim(sandbox: Sandbox) -> None:
    """Make the claim of the first pod, with a volume that each user can write to: the folders that
    are volumes here are root's, and Kubernetes changes no owner of such a folder."""
    named = {"name": CLAIM, "namespace": sandbox.namespace}
    resources = {"requests": {"storage": "64Mi"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": resources}
    sandbox.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named, "spec": claim}
    )

    def is_bound() -> bool:
        found = sandbox.kubectl.get("persistentvolumeclaim", CLAIM, sandbox.namespace)
        return bool(found["status"].get("phase") == "Bound")

    # A pod that the scheduler meets before can wait in its queue for five minutes.
    eventually(is_bound, within_seconds=60)
    sandbox.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**named, "name": "writable"},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {"runAsUser": 0},
                "containers": [
                    {
                        "name": "writable",
                        "image": image_name(),
                        "command": ["python", "-c", "import os; os.chmod('/volume', 0o777)"],
                        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
                    }
                ],
                "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": CLAIM}}],
            },
        },
    )

    def is_done() -> bool:
        found = sandbox.kubectl.get("pod", "writable", sandbox.namespace)
        return bool(found["status"].get("phase") == "Succeeded")

    eventually(is_done, within_seconds=180)


def declared(sandbox: Sandbox, outbox: Manifest | None) -> Manifest:
    own = {} if outbox is None else {"outbox": outbox}
    return sandbox.mail_queue(intake={**sandbox.intake(1), **own})


def makers(sandbox: Sandbox) -> set[str]:
    listed = sandbox.kubectl(
        *("get", "deployments,statefulsets", "-n", sandbox.namespace, "-o", "name")
    )
    return {each.split("/")[0].split(".")[0] for each in listed.split() if "intake" in each}


def test_mail_in_the_outbox_of_a_killed_pod_arrives_and_an_outbox_comes_and_goes(
    sandbox: Sandbox,
) -> None:
    make_writable_claim(sandbox)
    sandbox.apply(declared(sandbox, None))
    sandbox.wait_ready()
    with flowing(sandbox) as flow:
        sandbox.apply(declared(sandbox, {"size": "64Mi", "when": "First"}))
        eventually(lambda: makers(sandbox) == {"statefulset"}, within_seconds=180)
        for _ in range(KILLS):
            flow.wait_for_more(50, within_seconds=120)
            sandbox.kubectl(
                *("delete", "pod", "outgoing-intake-0", "-n", sandbox.namespace),
                *("--force", "--grace-period=0"),
            )
        flow.wait_for_more(50, within_seconds=120)
        sandbox.apply(declared(sandbox, {"size": 0}))
        sandbox.apply(declared(sandbox, None))
        eventually(lambda: makers(sandbox) == {"deployment"}, within_seconds=180)
    claims = sandbox.kubectl("get", "pvc", "-n", sandbox.namespace, "-o", "name")
    assert claims.split() == [f"persistentvolumeclaim/{CLAIM}"]
