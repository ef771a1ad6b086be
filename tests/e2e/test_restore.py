"""A namespace that a tool for backups brings back, without owners and under other uids, is ready by
itself, and has its mail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.kubectl import KubectlFailed, Manifest, eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

KINDS = (
    *("secrets", "configmaps", "serviceaccounts", "services", "replicasets", "deployments"),
    *("poddisruptionbudgets", "queueclusters", "mailqueues"),
)
RESTORED = ("name", "namespace", "labels", "annotations", "finalizers")
"""Metadata that a tool brings back."""

GIVEN = ("clusterIP", "clusterIPs", "healthCheckNodePort")
"""What a Service gets from the cluster, which a tool leaves out."""

OURS = "app.kubernetes.io/managed-by"
UNLABELLED = ("secrets", "queueclusters", "mailqueues")


def backup(sandbox: Sandbox) -> list[Manifest]:
    """Return the resources, their Secrets, and the children of each kind."""
    saved = []
    for kind in KINDS:
        for each in sandbox.kubectl.list(kind, sandbox.namespace):
            labels = each["metadata"].get("labels", {})
            if labels.get(OURS) != "postroad" and kind not in UNLABELLED:
                continue
            each["metadata"] = {n: v for n, v in each["metadata"].items() if n in RESTORED}
            if kind == "services":
                each["spec"] = {n: v for n, v in each["spec"].items() if n not in GIVEN}
            saved.append(each)
    return saved


def lose(sandbox: Sandbox) -> None:
    """Delete the namespace, and make it again with the servers in it."""
    kubectl, namespace = sandbox.kubectl, sandbox.namespace
    kubectl("delete", "namespace", namespace, "--timeout=150s", timeout=160)

    def gone() -> bool:
        with pytest.raises(KubectlFailed, match="NotFound"):
            kubectl("get", "namespace", namespace)
        return True

    eventually(gone, within_seconds=60)
    metadata = {"name": namespace}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    sandbox.stack.publish(namespace)
    sandbox.stack.kubernetes.publish(namespace, "sink", sandbox.sink.port, 2525)


def owners(sandbox: Sandbox) -> set[str]:
    """Return the uids of the owners of all children; empty for one without."""
    kinds = set(KINDS) - {"secrets", "replicasets", "queueclusters", "mailqueues"}
    return {
        owner["uid"]
        for kind in kinds
        for each in sandbox.kubectl.list(kind, sandbox.namespace)
        if each["metadata"].get("labels", {}).get(OURS) == "postroad"
        for owner in each["metadata"].get("ownerReferences", [{"uid": ""}])
    }


def test_a_restored_namespace_is_ready_by_itself_and_has_its_mail(sandbox: Sandbox) -> None:
    stopped: dict[str, Any] = {"workers": sandbox.workers(0)}
    sandbox.apply(sandbox.mail_queue(**stopped))
    sandbox.wait_ready()
    waiting = [f"w{number}@inn.example" for number in range(20)]
    mails = [SampleMail("a@origin.example", [each], b"Subject: x\r\n\r\n") for each in waiting]
    with sandbox.smtp() as port:
        assert {reply.code for reply in Sender("127.0.0.1", port).send_all(mails)} == {250}
    saved = backup(sandbox)
    assert {each["kind"] for each in saved} >= {"MailQueue", "Deployment", "ConfigMap", "Service"}
    lose(sandbox)

    for each in saved:
        sandbox.kubectl("create", "-f", "-", stdin=json.dumps(each))
    sandbox.wait_ready()

    found = sandbox.kubectl.get("mailqueue", "outgoing", sandbox.namespace)
    assert owners(sandbox) == {found["metadata"]["uid"]}
    assert sandbox.size() == len(waiting)
    sandbox.apply(sandbox.mail_queue())
    eventually(lambda: sandbox.sink.has_all(waiting), within_seconds=120)
