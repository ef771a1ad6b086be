"""The way of a new user: the commands of the page about the installation, one after the other, and
a mail that is delivered. What is replaced in them is what the page or a sample says to replace."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stack import tools
from support.chart_release import ChartRelease, new_release
from support.kubectl import Manifest, eventually, manifests
from support.repository import ROOT
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes", "helm"),
    pytest.mark.timeout(600, func_only=True),
]

PAGE = ROOT / "docs" / "operator" / "install.md"
FIRST_BLOCK = re.compile(r"^## Install\n.*?^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECOND_OPERATOR = re.compile(r"^\| run a second operator \| `class=canary,(.*?)`", re.MULTILINE)


@pytest.fixture
def release(sandbox: Sandbox) -> Iterator[ChartRelease]:
    with new_release(sandbox) as made:
        yield made


def replaced(line: str, release: ChartRelease, samples: Path) -> str:
    """Return a command of the page with the reader's own names, and as a second operator of the
    cluster, beside that of the other tests."""
    repository, _, tag = release.sandbox.installation.image.rpartition(":")
    (more,) = SECOND_OPERATOR.findall(PAGE.read_text())
    line = line.replace("helm install postroad ", f"helm install {release.name} ")
    line = line.replace("helm test postroad ", f"helm test {release.name} ")
    line = line.replace("-n postroad-system", f"-n {release.namespace}")
    line = line.replace("-n mail", f"-n {release.sandbox.namespace}")
    line = line.replace("manifests/samples/", f"{samples}/")
    own = f"repository={repository},image.tag={tag},class={release.name},{more}"
    return line.replace("repository=registry.example.org/postroad", own)


def samples_of(release: ChartRelease) -> list[Manifest]:
    """Return the samples with the servers' credentials and data center, in the sandbox's namespace,
    where there is a QueueCluster of their name already."""
    sandbox, made = release.sandbox, []
    data_center = sandbox.installation.environment["POSTROAD_CASSANDRA_LOCAL_DATACENTER"]
    for each in manifests(ROOT / "manifests" / "samples"):
        if each["kind"] in ("Namespace", "Secret"):
            continue
        each["metadata"]["namespace"] = sandbox.namespace
        if each["kind"] == "QueueCluster":
            each["metadata"]["name"] = "ours"
            each["spec"]["operatorClass"] = release.name
            own = {"keyspace": f"{sandbox.keyspace}_ours", "localDatacenter": data_center}
            each["spec"]["cassandra"] |= own
        else:
            each["spec"]["clusterRef"]["name"] = "ours"
        made.append(each)
    return [*sandbox.installation.secrets(sandbox.namespace), *made]


def test_a_reader_installs_the_chart_by_the_page_and_mail_is_delivered(
    sandbox: Sandbox, release: ChartRelease, tmp_path: Path
) -> None:
    (tmp_path / "samples.yaml").write_text(yaml.safe_dump_all(samples_of(release)))
    (block,) = FIRST_BLOCK.findall(PAGE.read_text())
    lines = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    assert [line.split()[:2] for line in lines] == [
        ["helm", "install"],
        ["helm", "test"],
        ["kubectl", "apply"],
        ["kubectl", "get"],
    ]
    kubectl, _, kubeconfig = sandbox.kubectl_command()
    programs = f"{Path(kubectl).parent}:{tools.program('helm').parent}:{os.environ['PATH']}"
    for line in lines:
        subprocess.run(
            ["sh", "-c", replaced(line, release, tmp_path)],
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": kubeconfig, "PATH": programs},
            check=True,
            timeout=400,
        )

    sandbox.wait_ready()
    mail = SampleMail("a@origin.example", ["first@inn.example"], b"Subject: x\r\n\r\n")
    with sandbox.smtp() as port:
        assert [reply.code for reply in Sender("127.0.0.1", port).send_all([mail])] == [250]
    eventually(lambda: sandbox.sink.has_all(["first@inn.example"]), within_seconds=120)
