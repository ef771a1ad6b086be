"""Two releases of the chart under load, there and back again: nothing is lost and nothing comes
twice, or the way back is refused before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack
from stack import contexts
from support.chart import CHART, CRDS, HelmFailed
from support.chart_release import ChartRelease, new_release
from support.kubectl import Kubectl, Manifest, eventually, manifests
from support.mail_flow import duplicates, flowing
from support.releases import unpack_first_with
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes", "helm", "git"),
    pytest.mark.timeout(900, func_only=True),
]

CHECK = "charts/postroad/templates/rollback-check.yaml"
"""What refuses a rollback; of the releases before it none can."""

WAITING = 200
FIRST = "1"
"""The revision of the release that is gone back to."""


@pytest.fixture(scope="module")
def older(running_stack: stack.Stack, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The chart and the image of the oldest release whose chart refuses rollbacks."""
    folder = tmp_path_factory.mktemp("older")
    unpack_first_with(CHECK, folder)
    let_know_listeners(folder)
    image = f"postroad:older-{contexts.digest(folder)[:12]}"
    running_stack.image(folder, image)
    return folder / "charts" / "postroad", image


def let_know_listeners(folder: Path) -> None:
    """Let that release know `spec.intake.listeners`, of which it serves the listener of a sandbox:
    before the first release, the fields of an intake were others."""
    crd = folder / "charts" / "postroad" / "files" / "crds" / "mailqueues.yaml"
    start, _, rest = crd.read_text().partition(OLD_PORT)
    _, _, rest = rest.partition(OLD_TLS)
    crd.write_text(f"{start}{LISTENERS}{OLD_TLS}{rest}".replace(OLD_RULE, ""))
    model = folder / "operator" / "postroad" / "controller" / "spec" / "mailqueue.py"
    text = model.read_text()
    assert rest
    assert OLD_NETWORKS in text
    model.write_text(text.replace(OLD_NETWORKS, NETWORKS))


OLD_PORT = """\
                    port:
                      description: Port of the Service, and port that the pods listen on.
"""
OLD_TLS = """\
                    tls:
                      description: 'TLS with the clients of the intake,"""
OLD_RULE = """\
                  x-kubernetes-validations:
                    - rule: has(self.relayFrom)
                      message: >-
                        relayFrom is missing: list the networks whose clients may send
"""
LISTENERS = """\
                    listeners:
                      type: array
                      items: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
OLD_NETWORKS = """\
    relay_from: Annotated[list[parts.NetworkText], Field(min_length=1, max_length=64)] | None = None
"""
NETWORKS = """\
    listeners: list[dict[str, object]] = []
    relay_from: list[str] | None = ["127.0.0.0/8"]
"""


@pytest.fixture
def release(sandbox: Sandbox) -> Iterator[ChartRelease]:
    """A release; the CRDs are those of this source afterwards, whatever became of it."""
    with new_release(sandbox) as made:
        yield made
    sandbox.kubectl.apply(*manifests(CRDS))


def images(sandbox: Sandbox) -> set[str]:
    """Return the images of all pods of the queues."""
    return {
        container["image"]
        for name in ("outgoing", "waiting")
        for component in ("worker", "intake")
        for pod in sandbox.pods(component, name)
        for container in pod["spec"]["containers"]
    }


def knows_autoscaling(kubectl: Kubectl) -> bool:
    """Return whether the CRD of MailQueues is that of this source."""
    return "autoscaling" in kubectl("get", "crd", "mailqueues.postroad.dev", "-o", "json")


def send(sandbox: Sandbox, *recipients: str) -> None:
    content = b"Subject: x\r\n\r\nbody\r\n"
    mails = [SampleMail("a@origin.example", [each], content) for each in recipients]
    with sandbox.smtp("waiting") as port:
        replies = Sender("127.0.0.1", port).send_all(mails)
    assert [str(each) for each in replies if each.code != 250] == []


def follow(sandbox: Sandbox, image: str) -> None:
    """Wait until all pods of the queues have an image, and the queues are ready."""
    eventually(lambda: images(sandbox) == {image}, within_seconds=240)
    for name in ("outgoing", "waiting"):
        sandbox.wait_ready(name)


def test_two_releases_take_each_others_place_under_load(
    sandbox: Sandbox, release: ChartRelease, older: tuple[Path, str]
) -> None:
    kubectl, newer_image = sandbox.kubectl, sandbox.installation.image
    older_chart, older_image = older
    ours: Any = {"clusterRef": {"name": "ours"}}
    repository, _, tag = older_image.rpartition(":")
    release.put("install", older_chart, image={"repository": repository, "tag": tag})
    sandbox.apply(release.queue_cluster())
    sandbox.apply(sandbox.mail_queue(**ours))
    sandbox.apply(sandbox.mail_queue("waiting", **ours, workers=sandbox.workers(0)))
    follow(sandbox, older_image)
    assert not knows_autoscaling(kubectl)
    waiting = [f"waiting-{number}@inn.example" for number in range(2 * WAITING)]
    send(sandbox, *waiting[:WAITING])

    with flowing(sandbox) as flow:
        release.put("upgrade", CHART)
        follow(sandbox, newer_image)
        assert knows_autoscaling(kubectl)
        send(sandbox, *waiting[WAITING:])
        flow.wait_for_more(20, within_seconds=60)

        release.helm("rollback", FIRST, "--wait")
        follow(sandbox, older_image)
        assert not knows_autoscaling(kubectl)
        assert sandbox.size("waiting") == len(waiting)
        sandbox.apply(sandbox.mail_queue("waiting", **ours))
        eventually(lambda: sandbox.sink.has_all(waiting), within_seconds=120)
        flow.wait_for_more(20, within_seconds=60)

        release.put("upgrade", CHART)
        follow(sandbox, newer_image)
    contents = sandbox.sink.contents()
    assert [each for each in waiting if len(contents[each]) != 1] == []
    assert duplicates(sandbox, flow) == 0

    scaled = {**sandbox.workers(0), "autoscaling": {"minReplicas": 1, "maxReplicas": 2}}
    sandbox.apply(sandbox.mail_queue("waiting", **ours, workers=scaled))
    sandbox.wait_ready("waiting")
    before = state(sandbox, release)
    named = f"MailQueue {sandbox.namespace}/waiting: spec.workers.autoscaling is unknown"
    with pytest.raises(HelmFailed, match=named):
        release.helm("rollback", FIRST, "--wait")
    assert state(sandbox, release) == before
    assert knows_autoscaling(kubectl)


def state(sandbox: Sandbox, release: ChartRelease) -> list[Manifest]:
    """Return the specs that a rollback would change."""
    queue = sandbox.kubectl.get("mailqueue", "waiting", sandbox.namespace)
    return [queue["spec"], release.deployment()["spec"]]
