"""The chart in a real cluster, in a namespace that enforces the restricted standard: installed,
upgraded with mail on the way, and uninstalled."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.chart import CHART, CRDS, HelmFailed, helm
from support.chart_release import ChartRelease, new_release
from support.kubectl import Kubectl, KubectlFailed, eventually, manifests
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes", "helm"),
    pytest.mark.timeout(600, func_only=True),
]

COLUMN, FORMER_COLUMN = "Mails that wait.", "Mails that waited."
"""The description of a column in the CRD of this source, and in that of the chart before."""


@pytest.fixture
def release(sandbox: Sandbox) -> Iterator[ChartRelease]:
    with new_release(sandbox) as made:
        yield made


def send(port: int, *recipients: str) -> None:
    mails = [SampleMail("a@origin.example", [each], b"Subject: x\r\n\r\n") for each in recipients]
    replies = Sender("127.0.0.1", port).send_all(mails)
    assert [str(reply) for reply in replies if reply.code != 250] == []


def finalizers(kubectl: Kubectl, namespace: str) -> dict[str, list[str]]:
    """Return the finalizers of MailQueues and QueueClusters, by kind and name."""
    return {
        f"{kind}/{each['metadata']['name']}": each["metadata"].get("finalizers", [])
        for kind in ("mailqueue", "queuecluster")
        for each in kubectl.list(kind, namespace)
    }


def column_of_the_crd(kubectl: Kubectl) -> str:
    """Return the description of the column SIZE in the cluster's CRD of MailQueues."""
    found = json.loads(kubectl("get", "crd", "mailqueues.postroad.dev", "-o", "json"))
    (version,) = found["spec"]["versions"]
    (column,) = (each for each in version["additionalPrinterColumns"] if each["name"] == "Size")
    description: str = column["description"]
    return description


def former_chart(folder: Path) -> Path:
    """Return a chart whose CRD differs from that of this source."""
    shutil.copytree(CHART, folder)
    crd = folder / "files" / "crds" / "mailqueues.yaml"
    text = crd.read_text()
    assert COLUMN in text
    crd.write_text(text.replace(COLUMN, FORMER_COLUMN))
    return folder


def test_mail_flows_on_while_the_chart_is_upgraded_and_uninstalled(
    sandbox: Sandbox, release: ChartRelease, tmp_path: Path
) -> None:
    kubectl = sandbox.kubectl
    release.put("install", former_chart(tmp_path / "chart"), replicas=1)
    release.helm("test")
    assert column_of_the_crd(kubectl) == FORMER_COLUMN

    ours = {"name": "ours"}
    sandbox.apply(release.queue_cluster())
    sandbox.apply(sandbox.mail_queue(clusterRef=ours))
    sandbox.apply(
        sandbox.mail_queue(
            "erased",
            clusterRef=ours,
            workers=sandbox.workers(0),
            intake=sandbox.intake(0),
            deletionPolicy="Delete",
        )
    )
    sandbox.wait_ready()
    sandbox.wait_ready("erased")
    held = {
        "mailqueue/outgoing": [],
        "mailqueue/erased": ["postroad.dev/cleanup"],
        "queuecluster/main": [],
        "queuecluster/ours": ["postroad.dev/cleanup"],
    }
    eventually(lambda: finalizers(kubectl, sandbox.namespace) == held, within_seconds=90)
    before = {part: sandbox.pods(part)[0]["metadata"]["uid"] for part in ("worker", "intake")}

    # Upgraded: the operators, and the CRDs; the queue's pods go on.
    recipients: list[str] = []
    with sandbox.smtp() as port, ThreadPoolExecutor(1) as pool:
        upgrade = pool.submit(release.put, "upgrade", CHART, replicas=2, logLevel="DEBUG")
        while not upgrade.done() or len(recipients) < 10:
            recipients.append(f"r{len(recipients)}@inn.example")
            send(port, recipients[-1])
            time.sleep(0.1)
        upgrade.result()
    assert column_of_the_crd(kubectl) == COLUMN
    assert release.deployment()["status"]["readyReplicas"] == 2
    assert {part: sandbox.pods(part)[0]["metadata"]["uid"] for part in before} == before
    sandbox.apply(sandbox.mail_queue(clusterRef=ours, workers=sandbox.workers(2)))
    sandbox.wait_ready()
    assert len(sandbox.pods("worker")) == 2

    # Uninstalled, in the order of the documents: what is to be erased goes first.
    kubectl("delete", "mailqueue", "erased", "-n", sandbox.namespace, "--timeout=120s", timeout=130)
    eventually(lambda: not any(finalizers(kubectl, sandbox.namespace).values()), within_seconds=60)
    release.helm("uninstall", "--wait")
    eventually(lambda: release.left() == [], within_seconds=60)
    assert finalizers(kubectl, sandbox.namespace) == {
        "mailqueue/outgoing": [],
        "queuecluster/main": [],
        "queuecluster/ours": [],
    }
    for crd in manifests(CRDS):
        assert crd["metadata"]["name"] in kubectl("get", "crd", "-o", "name")
    with sandbox.smtp() as port:
        send(port, "last@inn.example")
    eventually(lambda: sandbox.sink.has_all([*recipients, "last@inn.example"]), within_seconds=120)
    kubectl(
        "delete", "mq/outgoing", "qc/ours", "-n", sandbox.namespace, "--timeout=60s", timeout=70
    )


def may(kubectl: Kubectl, account: str, verb: str, kind: str, namespace: str) -> bool:
    """Return whether a service account has a right in a namespace."""
    account = f"--as=system:serviceaccount:{account}"
    try:
        return kubectl("auth", "can-i", verb, kind, account, "-n", namespace).strip() == "yes"
    except KubectlFailed as answer:
        if str(answer) != "no":
            raise
        return False


def test_an_operator_of_one_namespace_has_its_rights_there_alone(
    sandbox: Sandbox, release: ChartRelease
) -> None:
    kubectl = sandbox.kubectl
    watched = {"watchNamespaces": [sandbox.namespace], "crds": {"install": False}}
    release.put("install", CHART, **watched)
    release.helm("test")
    sandbox.apply(release.queue_cluster())
    sandbox.apply(sandbox.mail_queue(clusterRef={"name": "ours"}))
    sandbox.wait_ready()
    with sandbox.smtp() as port:
        send(port, "r@inn.example")
    eventually(lambda: sandbox.sink.has_all(["r@inn.example"]), within_seconds=120)

    account = f"{release.namespace}:{release.operator}"
    for verb, kind in (("list", "mailqueues"), ("create", "deployments"), ("get", "secrets")):
        assert may(kubectl, account, verb, kind, sandbox.namespace)
        assert not may(kubectl, account, verb, kind, "default")
    # Another release of the class would lead by a Lease in its own namespace.
    values = f"image.repository=postroad,class={release.name}"
    alone = "crds.install=false,aggregatedRoles.create=false"
    place = ("--namespace", sandbox.namespace, "--kubeconfig", sandbox.kubectl_command()[2])
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        helm("install", "second", CHART, "--set", values, "--set", alone, *place)

    kubectl("delete", "mq", "outgoing", "-n", sandbox.namespace, "--timeout=60s", timeout=70)
    release.helm("uninstall", "--wait")
    eventually(lambda: release.left() == [], within_seconds=60)
