"""Two releases of the chart under load, there and back again: nothing is lost and nothing comes
twice, or the way back is refused before it changes anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack
from stack import contexts
from support.chart import CHART, CRDS, HelmFailed
from support.chart_release import ChartRelease, new_release
from support.kubectl import Kubectl, Manifest, eventually, manifests
from support.mail_flow import duplicates, flowing
from support.releases import unpack_oldest
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("gitops", "rabbitmq", "cassandra", "s3", "kubernetes", "helm", "git"),
    pytest.mark.timeout(900, func_only=True),
]

CHECK = "charts/postroad/templates/rollback-check.yaml"
"""What refuses a rollback; of the releases before it none can."""

NEW_FIELD = "surge"
"""A field of workers that the later release alone has."""

WAITING = 200
FIRST = "1"
"""The revision of the release that is gone back to."""


@pytest.fixture
def older(sandbox: Sandbox, running_stack: stack.Stack, tmp_path: Path) -> tuple[Path, str]:
    """The chart and the image of the oldest release that refuses rollbacks and has these queues."""
    folder = tmp_path / "older"
    unpack_oldest(CHECK, sandbox.mail_queue()["spec"], folder)
    image = f"postroad:older-{contexts.digest(folder)[:12]}"
    running_stack.image(folder, image)
    return folder / "charts" / "postroad", image


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


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The chart of this source, with a field more."""
    chart = tmp_path / "newer"
    shutil.copytree(CHART, chart)
    path = chart / "files" / "crds" / "mailqueues.yaml"
    crd = yaml.safe_load(path.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["workers"]["properties"][NEW_FIELD] = {"type": "integer"}
    path.write_text(yaml.safe_dump(crd, width=1000))
    return chart


def has_new_field(kubectl: Kubectl) -> bool:
    """Return whether the CRD of MailQueues is that of the later release."""
    return f'"{NEW_FIELD}"' in kubectl("get", "crd", "mailqueues.postroad.dev", "-o", "json")


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
    sandbox: Sandbox, release: ChartRelease, older: tuple[Path, str], newer: Path
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
    assert not has_new_field(kubectl)
    waiting = [f"waiting-{number}@inn.example" for number in range(2 * WAITING)]
    send(sandbox, *waiting[:WAITING])

    with flowing(sandbox) as flow:
        release.put("upgrade", newer)
        follow(sandbox, newer_image)
        assert has_new_field(kubectl)
        send(sandbox, *waiting[WAITING:])
        flow.wait_for_more(20, within_seconds=60)

        release.helm("rollback", FIRST, "--wait")
        follow(sandbox, older_image)
        assert not has_new_field(kubectl)
        assert sandbox.size("waiting") == len(waiting)
        sandbox.apply(sandbox.mail_queue("waiting", **ours))
        eventually(lambda: sandbox.sink.has_all(waiting), within_seconds=120)
        flow.wait_for_more(20, within_seconds=60)
    contents = sandbox.sink.contents()
    assert [each for each in waiting if len(contents[each]) != 1] == []
    assert duplicates(sandbox, flow) == 0

    release.put("upgrade", newer)
    changed = {**sandbox.workers(1), NEW_FIELD: 2}
    sandbox.apply(sandbox.mail_queue("waiting", **ours, workers=changed))
    sandbox.wait_ready("waiting")
    before = state(sandbox, release)
    named = f"MailQueue {sandbox.namespace}/waiting: spec.workers.{NEW_FIELD} is unknown"
    with pytest.raises(HelmFailed, match=named):
        release.helm("rollback", FIRST, "--wait")
    assert state(sandbox, release) == before
    assert has_new_field(kubectl)


def state(sandbox: Sandbox, release: ChartRelease) -> list[Manifest]:
    """Return the specs that a rollback would change."""
    queue = sandbox.kubectl.get("mailqueue", "waiting", sandbox.namespace)
    return [queue["spec"], release.deployment()["spec"]]
