"""The health of resources of each kind in each state, as the tools of GitOps read it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops import flux as tools
from gitops import health
from gitops.flux import Flux
from gitops.git_repository import served
from stack import Stack
from support.kubectl import KubectlFailed, Manifest, eventually
from support.repository import ROOT
from support.resources import task
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("gitops", "rabbitmq", "cassandra", "s3", "kubernetes", "git"),
    pytest.mark.timeout(1500, func_only=True),
]

PAGE = ROOT / "docs" / "operator" / "gitops.md"
HEAD = "| state | Ready | `kubectl wait` | kstatus | Flux | Argo CD |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True)
class State:
    """An object in a state: the name of its record, the kind, its own name, and a reason that its
    condition Ready has there (empty: it has no condition)."""

    name: str
    kind: str
    object: str
    reason: str


STATES = (
    State("queue_new", "mailqueue", "new", ""),
    State("queue_ready", "mailqueue", "ready", "AsDeclared"),
    State("queue_starting", "mailqueue", "starting", "PodsNotReady"),
    State("queue_refused", "mailqueue", "refused", "SliceWindowGrows"),
    State("queue_without_cluster", "mailqueue", "alone", "ClusterNotFound"),
    State("queue_paused", "mailqueue", "paused", "PausedByUser"),
    State("queue_deleted", "mailqueue", "deleted", "ConfirmationNeeded"),
    State("cluster_new", "queuecluster", "new", ""),
    State("cluster_ready", "queuecluster", "main", "AsDeclared"),
    State("cluster_without_server", "queuecluster", "away", "BlobsUnavailable"),
    State("cluster_without_login", "queuecluster", "login", "CredentialsRefused"),
    State("cluster_paused", "queuecluster", "paused", "PausedByUser"),
    State("task_new", "mailqueuetask", "new", ""),
    State("task_without_queue", "mailqueuetask", "alone", "QueueNotFound"),
    State("task_of_a_paused_queue", "mailqueuetask", "paused", "QueuePaused"),
    State("task_running", "mailqueuetask", "running", "Running"),
    State("task_waiting", "mailqueuetask", "waiting", "AnotherTask"),
    State("task_completed", "mailqueuetask", "completed", "AsDeclared"),
    State("task_failed", "mailqueuetask", "failed", "RunFailed"),
    State("schedule", "mailqueuetask", "daily", "AsDeclared"),
    State("schedule_paused", "mailqueuetask", "off", "AsDeclared"),
)


KINDS = {each.lower(): each for each in ("MailQueue", "QueueCluster", "MailQueueTask")}


def play(sandbox: Sandbox) -> None:
    """Bring resources into each of the states, except that one is refused later."""
    idle: Mapping[str, Any] = {"workers": None, "intake": None}
    cluster = sandbox.installation.queue_cluster

    def a_cluster(name: str, *, s3: Mapping[str, Any] | None = None, **spec: Any) -> Manifest:
        made = cluster(sandbox.namespace, f"{sandbox.keyspace}_{name}", name=name)
        made["spec"] |= spec
        made["spec"]["s3"] |= s3 or {}
        return made

    wrong = {
        "apiVersion": "v1",
        "kind": "Secret",
        "stringData": {"accessKey": "a", "secretKey": "b"},
    }
    wrong["metadata"] = {"name": "wrong", "namespace": sandbox.namespace}
    sandbox.apply(
        wrong,
        a_cluster("new", operatorClass="of-no-operator"),
        a_cluster("away", s3={"url": "http://nowhere.invalid:9000"}),
        a_cluster("login", s3={"secretRef": {"name": "wrong"}}),
        a_cluster("paused", paused=True),
        sandbox.mail_queue("new", clusterRef={"name": "new"}, **idle),
        sandbox.mail_queue("ready", **idle),
        sandbox.mail_queue("refused", **idle),
        sandbox.mail_queue("alone", clusterRef={"name": "none"}, **idle),
        sandbox.mail_queue("paused", paused=True, **idle),
        sandbox.mail_queue("starting", intake=None, workers=too_large(sandbox.workers(1))),
        sandbox.mail_queue("deleted", workers=None, deletionPolicy="Delete"),
    )
    for name in ("refused", "deleted", "ready"):
        sandbox.wait_ready(name)
    # As Flux makes anew what it may not change: only the operator can refuse it then.
    sandbox.kubectl("delete", "mailqueue", "refused", "-n", sandbox.namespace, timeout=120)
    wider = {"sliceWindow": "90m", "bucketCount": 3}
    sandbox.apply(sandbox.mail_queue("refused", view=wider, **idle))
    with sandbox.smtp("deleted") as port:
        mail = SampleMail("a@origin.example", ["r@inn.example"], b"Subject: x\r\n\r\n")
        assert [reply.code for reply in Sender("127.0.0.1", port).send_all([mail])] == [250]
    sandbox.kubectl("delete", "mailqueue", "deleted", "-n", sandbox.namespace, "--wait=false")
    play_tasks(sandbox)


def play_tasks(sandbox: Sandbox) -> None:
    """Create tasks, which count mail alone, of the queues that are in their states."""

    def a_task(name: str, of: str, **spec: Any) -> Manifest:
        counting = {"operation": "Purge", "dryRun": True, "queueRef": {"name": of}}
        return task(sandbox.namespace, name, **counting, **spec)

    workers = sandbox.workers(0)
    port = {"name": "POSTROAD_CASSANDRA_PORT", "value": "none"}
    workers["template"] = {"spec": {"containers": [{"name": "worker", "env": [port]}]}}
    sandbox.apply(
        sandbox.mail_queue("broken", intake=None, workers=workers),
        a_task("new", "new"),
        a_task("alone", "none"),
        a_task("paused", "paused"),
        a_task("running", "starting"),
        a_task("completed", "ready"),
        a_task("failed", "broken"),
        a_task("daily", "ready", schedule="@yearly"),
        a_task("off", "ready", schedule="@yearly", paused=True),
    )
    sandbox.apply(a_task("waiting", "starting"))


def too_large(workers: Manifest) -> Manifest:
    """Return workers that no node has room for."""
    requests = {"resources": {"requests": {"cpu": "1000"}}}
    container = {"name": "worker", **requests}
    return workers | {"template": {"spec": {"containers": [container]}}}


def reached(sandbox: Sandbox, state: State) -> Manifest:
    """Wait until an object is in its state, and return it."""

    def there() -> Manifest:
        found = sandbox.kubectl.get(state.kind, state.object, sandbox.namespace)
        status = found["status"]
        conditions = {each["type"]: each["reason"] for each in status.get("conditions", [])}
        assert conditions.get("Ready", "") == state.reason, conditions
        assert not state.reason or status["observedGeneration"] == found["metadata"]["generation"]
        return found

    found: Manifest = eventually(there, within_seconds=420)  # a Job that fails starts six pods
    return found


def record(found: Manifest) -> Manifest:
    """Return what a verdict needs of an object."""
    metadata = {name: found["metadata"][name] for name in ("name", "generation")}
    if "deletionTimestamp" in found["metadata"]:
        metadata["deletionTimestamp"] = NEVER
    conditions = [
        {**each, "lastTransitionTime": NEVER, "message": each["message"].replace(namespace, "mail")}
        for namespace in [found["metadata"]["namespace"]]
        for each in found["status"].get("conditions", [])
        if each["type"] in SUMMARIES
    ]
    status = {"observedGeneration": found["status"]["observedGeneration"]}
    spec = {name: value for name, value in found["spec"].items() if name == "paused"}
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": metadata,
        "spec": spec,
        "status": status | ({"conditions": conditions} if conditions else {}),
    }


NEVER = "2026-01-01T00:00:00Z"
SUMMARIES = ("Ready", "Reconciling", "Stalled", "Paused")


def waited(sandbox: Sandbox, state: State) -> str:
    """Return whether `kubectl wait` finds the object ready."""
    named = f"{state.kind}/{state.object}"
    ready = ("wait", "--for=condition=Ready", named, "-n", sandbox.namespace, "--timeout=1s")
    try:
        sandbox.kubectl(*ready)
    except KubectlFailed as error:
        told = str(error)
    else:
        return "ready"
    assert "timed out" in told
    return "waits"


@pytest.fixture
def flux(sandbox: Sandbox, running_stack: Stack, tmp_path: Path) -> Iterator[Flux]:
    """Flux that follows a repository with a folder for each state, which has nothing in it."""
    _, _, kubeconfig = running_stack.kubernetes.kubectl.command()
    with (
        served(tmp_path / "git") as repository,
        tools.running(sandbox.kubectl, Path(kubeconfig), tmp_path / "flux") as made,
    ):
        for state in STATES:
            name = state.name.replace("_", "-")
            metadata = {"name": name, "namespace": sandbox.namespace}
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            repository.commit({f"{name}/about.yaml": yaml.safe_dump(about)}, f"{name}: begin")
        made.follow(repository, sandbox.namespace)
        yield made
        for kind in ("kustomizations", "gitrepositories"):
            sandbox.kubectl("delete", kind, "--all", "-n", sandbox.namespace, timeout=120)


def by_flux(flux: Flux, sandbox: Sandbox) -> dict[str, str]:
    """Return by state what a Kustomization becomes that waits for the object, for 30 s, which is
    the shortest that Flux does."""
    names = {state.name: state.name.replace("_", "-") for state in STATES}
    for state in STATES:
        check = {
            "apiVersion": "postroad.dev/v1beta1",
            "kind": KINDS[state.kind],
            "name": state.object,
        }
        checks = [check | {"namespace": sandbox.namespace}]
        flux.carry_out(
            *(names[state.name], sandbox.namespace),
            wait=False,
            healthChecks=checks,
            timeout="30s",
            retryInterval="10m",
        )

    def verdict(name: str) -> str:
        ready = flux.kubectl.condition("kustomization", name, sandbox.namespace, "Ready")
        if ready.get("status") == "True":
            return "ready"
        assert ready.get("reason") == "HealthCheckFailed", ready
        return "waits, then fails" if "timeout" in ready["message"] else "fails"

    return {
        state: str(eventually(partial(verdict, name), within_seconds=120))
        for state, name in names.items()
    }


def test_each_state_is_read_alike_by_the_tools_and_the_page_says_how(
    sandbox: Sandbox, flux: Flux
) -> None:
    play(sandbox)
    found = {state.name: reached(sandbox, state) for state in STATES}
    records = {name: record(each) for name, each in found.items()}
    told = dict(zip(found, health.verdicts(list(records.values())), strict=True))
    of_flux = by_flux(flux, sandbox)
    rows, cases = [], []
    for state in STATES:
        verdict, path = told[state.name], f"testdata/{state.name}.yaml"
        wanted = {"status": verdict.health, "message": verdict.message}
        cases.append({"healthStatus": wanted, "inputPath": path})
        kept(health.SCRIPTS / path, records[state.name])
        tools_say = (waited(sandbox, state), verdict.kstatus, of_flux[state.name], verdict.health)
        rows.append(row(state, records[state.name], tools_say))
    kept(health.SCRIPTS / "health_test.yaml", {"tests": cases})
    table = HEAD + "".join(rows)
    page = PAGE.read_text()
    if os.environ.get("POSTROAD_WRITE_DOCS"):
        before, _, after = page.partition(HEAD)
        rest = after[after.index("\n\n") :] if "\n\n" in after else "\n"
        PAGE.write_text(before + table.rstrip("\n") + rest)
    assert table in PAGE.read_text()
    confirmed = "postroad.dev/confirm-deletion=deleted"
    sandbox.kubectl("annotate", "mailqueue", "deleted", "-n", sandbox.namespace, confirmed)


def row(state: State, found: Manifest, verdicts: Sequence[str]) -> str:
    """Return the line of the page's table about a state."""
    conditions = {each["type"]: each for each in found["status"].get("conditions", [])}
    ready = conditions.get("Ready", {"status": "none", "reason": ""})
    told = f"{ready['status']} `{ready['reason']}`" if ready["reason"] else "none"
    cells = " | ".join([state.name.replace("_", " "), told, *verdicts])
    return f"| {cells} |\n"


def kept(path: Path, found: Manifest) -> None:
    """Compare a file with what was found, but for messages, which have numbers and addresses; write
    it where the documents are written anew."""
    if os.environ.get("POSTROAD_WRITE_DOCS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(found, sort_keys=False, width=100))
    assert without_messages(yaml.safe_load(path.read_text())) == without_messages(found)


def without_messages(found: Any) -> Any:
    if isinstance(found, list):
        return [without_messages(each) for each in found]
    if isinstance(found, dict):
        return {n: without_messages(each) for n, each in found.items() if n != "message"}
    return found
