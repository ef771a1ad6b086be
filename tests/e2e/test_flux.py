"""A git repository that Flux carries out: what a commit becomes, a refused one, a pruned queue, and
an operator that is upgraded and rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops import flux as tools
from gitops.flux import Flux
from gitops.git_repository import Repository, served
from stack import Stack, kube
from support.chart import CHART, helm
from support.installation import Installation
from support.kubectl import KubectlFailed, Manifest, eventually
from support.repository import ROOT
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("gitops", "rabbitmq", "cassandra", "s3", "kubernetes", "helm", "git"),
    pytest.mark.timeout(900, func_only=True),
]


@pytest.fixture(scope="module")
def flux(
    installation: Installation, running_stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flux]:
    _, _, kubeconfig = running_stack.kubernetes.kubectl.command()
    folder = tmp_path_factory.mktemp("flux")
    with tools.running(installation.kubectl, Path(kubeconfig), folder) as made:
        yield made


@dataclass
class Mail:
    """A repository whose folder `mail` has a MailQueue `outgoing`, and Flux that follows it."""

    sandbox: Sandbox
    flux: Flux
    repository: Repository

    def declare(self, **changes: Any) -> str:
        """Commit the MailQueue with changed parts of its spec; return the revision."""
        queue = self.sandbox.mail_queue(**changes)
        return self.repository.commit(
            {"mail/outgoing.yaml": yaml.safe_dump(queue)}, "mail: declare"
        )

    def carried_out(self, revision: str) -> None:
        self.flux.carried_out("mail", self.sandbox.namespace, revision)

    def refused(self, revision: str) -> str:
        return self.flux.refused("mail", self.sandbox.namespace, revision)


@pytest.fixture
def mail(sandbox: Sandbox, flux: Flux, tmp_path: Path) -> Iterator[Mail]:
    with served(tmp_path / "git") as repository:
        made = Mail(sandbox, flux, repository)
        # It stays when all else is removed: git keeps no empty folder, Flux refuses a missing one.
        about = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"owner": "postmaster"}}
        about["metadata"] = {"name": "about", "namespace": sandbox.namespace}
        revision = repository.commit({"mail/about.yaml": yaml.safe_dump(about)}, "mail: begin")
        flux.follow(repository, sandbox.namespace)
        flux.carry_out("mail", sandbox.namespace)
        made.carried_out(revision)
        try:
            yield made
        finally:
            for kind in ("kustomizations", "gitrepositories"):
                sandbox.kubectl("delete", kind, "--all", "-n", sandbox.namespace, timeout=120)


def send(sandbox: Sandbox, *recipients: str) -> None:
    mails = [SampleMail("a@origin.example", [each], b"Subject: x\r\n\r\n") for each in recipients]
    with sandbox.smtp() as port:
        assert [str(r) for r in Sender("127.0.0.1", port).send_all(mails) if r.code != 250] == []


def test_a_commit_is_carried_out_a_refused_one_fails_by_name_and_its_revert_heals(
    mail: Mail,
) -> None:
    sandbox = mail.sandbox
    mail.carried_out(mail.declare())
    assert sandbox.condition("Ready")["status"] == "True"
    # What the operator writes beside it is no difference.
    declared = yaml.safe_dump(sandbox.mail_queue())
    assert sandbox.kubectl("diff", "--server-side", "-f", "-", stdin=declared) == ""

    refusal = mail.refused(mail.declare(view={"sliceWindow": "90m", "bucketCount": 3}))
    assert "sliceWindow" in refusal, refusal
    assert "keep 1h or choose a divisor" in refusal, refusal
    assert sandbox.condition("Ready")["status"] == "True"

    mail.carried_out(mail.repository.revert("mail: keep the slices"))
    send(sandbox, "after@inn.example")
    eventually(lambda: sandbox.sink.has_all(["after@inn.example"]), within_seconds=60)


def test_a_pruned_queue_keeps_its_mail_and_gets_it_back_with_the_next_commit(mail: Mail) -> None:
    sandbox = mail.sandbox
    stopped = {"workers": sandbox.workers(0)}
    mail.carried_out(mail.declare(**stopped))
    waiting = [f"w{number}@inn.example" for number in range(20)]
    send(sandbox, *waiting)
    assert sandbox.size() == len(waiting)

    mail.carried_out(mail.repository.commit({"mail/outgoing.yaml": None}, "mail: remove the queue"))
    with pytest.raises(KubectlFailed, match="NotFound"):
        sandbox.kubectl.get("mailqueue", "outgoing", sandbox.namespace)

    mail.carried_out(mail.declare(**stopped))
    assert sandbox.size() == len(waiting)
    mail.carried_out(mail.declare())
    eventually(lambda: sandbox.sink.has_all(waiting), within_seconds=120)


def test_a_forced_refused_commit_makes_the_queue_anew_and_its_mail_stays(mail: Mail) -> None:
    # With `force`, Flux deletes what cannot be changed, and creates it again.
    sandbox, place = mail.sandbox, mail.sandbox.namespace
    stopped = {"workers": sandbox.workers(0)}
    mail.carried_out(mail.declare(**stopped))
    send(sandbox, "kept@inn.example")
    before = uid(sandbox)

    mail.flux.carry_out("mail", place, force=True)
    wider = {"view": {"sliceWindow": "90m", "bucketCount": 3}, **stopped}
    message = mail.refused(mail.declare(**wider))
    assert uid(sandbox) != before, message
    accepted = sandbox.condition("ConfigurationAccepted")
    assert accepted["status"] == "False"
    assert "sliceWindow" in accepted["message"]
    assert sandbox.size() == 1

    mail.carried_out(mail.declare())
    eventually(lambda: sandbox.sink.has_all(["kept@inn.example"]), within_seconds=120)


def uid(sandbox: Sandbox) -> str:
    found: Manifest = sandbox.kubectl.get("mailqueue", "outgoing", sandbox.namespace)
    return str(found["metadata"]["uid"])


def test_an_operator_is_upgraded_and_rolled_back_by_commits_while_mail_waits(mail: Mail) -> None:
    sandbox, repository, place = mail.sandbox, mail.repository, mail.sandbox.namespace
    kubectl = sandbox.kubectl
    image, _, tag = sandbox.installation.image.rpartition(":")
    operator = f"postroad-operator-{place}"

    def rendered(**values: object) -> str:
        return helm(
            *("template", place, CHART, "--namespace", place, "--no-hooks"),
            *("--kube-version", kube.kubernetes_version()),
            *("--set", f"image.repository={image},image.tag={tag},class={place}"),
            *("--set", "crds.install=false,aggregatedRoles.create=false"),
            *[f"--set={name}={value}" for name, value in values.items()],
        )

    first = repository.commit({"operator/all.yaml": rendered(replicas=1)}, "operator: install")
    mail.flux.carry_out("operator", place)
    mail.flux.carried_out("operator", place, first)
    ours = sandbox.installation.queue_cluster(place, f"{sandbox.keyspace}_ours", name="ours")
    ours["spec"]["operatorClass"] = place
    repository.commit({"mail/ours.yaml": yaml.safe_dump(ours)}, "mail: declare the servers")
    stopped = {"clusterRef": {"name": "ours"}, "workers": sandbox.workers(0)}
    mail.carried_out(mail.declare(**stopped))
    waiting = [f"w{number}@inn.example" for number in range(200)]
    send(sandbox, *waiting)
    pods = {each["metadata"]["uid"] for each in sandbox.pods("intake")}

    def log_level() -> str:
        found = kubectl.get("deployment", operator, place)["spec"]["template"]["spec"]
        return str(found["containers"][0])

    upgraded = repository.commit(
        {"operator/all.yaml": rendered(replicas=2, logLevel="DEBUG")}, "operator: upgrade"
    )
    mail.flux.carried_out("operator", place, upgraded)
    assert "DEBUG" in log_level()
    back = repository.revert("operator: roll back")
    mail.flux.carried_out("operator", place, back)
    assert "DEBUG" not in log_level()
    mail.carried_out(back)
    assert {each["metadata"]["uid"] for each in sandbox.pods("intake")} == pods
    assert sandbox.size() == len(waiting)

    mail.carried_out(mail.declare(clusterRef={"name": "ours"}))
    eventually(lambda: sandbox.sink.has_all(waiting), within_seconds=180)
    # The queue and its servers go before the operator that has to let them go.
    empty = repository.commit({"mail/ours.yaml": None, "mail/outgoing.yaml": None}, "mail: remove")
    mail.carried_out(empty)


def test_the_examples_are_accepted_by_the_definitions_of_flux_and_argo_cd(flux: Flux) -> None:
    folder = ROOT / "manifests" / "gitops"
    examples = [*(folder / "flux").rglob("*.yaml"), *(folder / "argo-cd").glob("*.yaml")]
    assert len(examples) >= 7
    flux.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argocd"}})
    for each in examples:
        strict = ("apply", "--dry-run=server", "--validate=strict", "-f", str(each))
        assert "(server dry run)" in flux.kubectl(*strict)
