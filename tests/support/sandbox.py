"""A sandbox for one test in a real cluster: a namespace with everything that a MailQueue needs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import stack
from stack import patience
from support.installation import Installation
from support.kubectl import Kubectl, KubectlFailed, Manifest, eventually
from support.resources import relay
from support.sink_process import SinkProcess

_TROUBLE = re.compile(r'"level": "(warning|error|critical)"|mail refused|Traceback')


@dataclass
class Sandbox:
    """A namespace with the servers published in it, a QueueCluster `main` with a keyspace of its
    own, and a sink outside the cluster that is reached as `sink:2525`."""

    installation: Installation
    stack: stack.Stack
    namespace: str
    keyspace: str
    sink: SinkProcess

    @property
    def kubectl(self) -> Kubectl:
        return self.installation.kubectl

    def kubectl_command(self) -> list[str]:
        """Return kubectl's path, `--kubeconfig` and its path."""
        return self.stack.kubernetes.kubectl.command()

    def plugin(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl mailqueue …` in the namespace, with the cluster's kubectl."""
        kubectl, _, kubeconfig = self.kubectl_command()
        program = Path(sys.executable).with_name("kubectl-mailqueue")
        path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
        return subprocess.run(
            [str(program), *words, "--namespace", self.namespace],
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | {"KUBECONFIG": kubeconfig, "PATH": path},
        )

    def mail_queue(self, name: str = "outgoing", **spec: object) -> Manifest:
        """Return a MailQueue that delivers to the sink, with short retries. Parts that are None
        are left out."""
        parts = {
            "clusterRef": {"name": "main"},
            "view": {"sliceWindow": "1h", "bucketCount": 3},
            "retry": {"lanes": ["1s", "2s", "5s"], "maxAge": "1h"},
            "workers": self.workers(1),
            "intake": self.intake(1),
            **spec,
        }
        return {
            "apiVersion": "postroad.dev/v1beta1",
            "kind": "MailQueue",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {part: given for part, given in parts.items() if given is not None},
        }

    def workers(self, replicas: int) -> Manifest:
        """Return the `workers` of a spec that relay to the sink."""
        relay = {"host": "sink", "port": 2525, "tls": {"mode": "None"}}
        return {"replicas": replicas, "handler": {"relay": relay}, "concurrency": 20}

    def intake(self, replicas: int, *relay_from: str) -> Manifest:
        """Return the `intake` of a spec; by default it relays for forwarded ports (`smtp`)."""
        return {"replicas": replicas, "listeners": [relay(*relay_from or ["127.0.0.0/8"])]}

    def apply(self, *manifests: Manifest) -> None:
        self.kubectl.apply(*manifests)

    def wait_ready(self, name: str = "outgoing", within_seconds: float = 180) -> None:
        self.installation.wait_ready("mailqueue", name, self.namespace, within_seconds)

    def status(self, name: str = "outgoing") -> Manifest:
        found: Manifest = self.kubectl.get("mailqueue", name, self.namespace).get("status", {})
        return found

    def condition(self, condition: str, name: str = "outgoing") -> Manifest:
        return self.kubectl.condition("mailqueue", name, self.namespace, condition)

    def events(self, reason: str) -> list[Manifest]:
        """Return the Events of a reason in the namespace."""
        return [e for e in self.kubectl.list("events", self.namespace) if e["reason"] == reason]

    def postroad(self, *command: str, name: str = "outgoing") -> str:
        """Run `postroad …` in the intake's pod."""
        target = f"deployment/{name}-intake"
        return self.kubectl("exec", "-n", self.namespace, target, "--", "postroad", *command)

    def size(self, name: str = "outgoing") -> int:
        """Return how many mails wait, from `postroad size`."""
        return int(json.loads(self.postroad("size", "--json", name=name))["size"])

    def browse(self, name: str = "outgoing") -> list[Manifest]:
        """Return the waiting mails, from `postroad browse`."""
        lines = self.postroad("browse", "--json", name=name).splitlines()
        return [json.loads(line) for line in lines]

    def smtp(self, name: str = "outgoing") -> contextlib.AbstractContextManager[int]:
        """Forward a port to the intake's Service."""
        return self.kubectl.forwarded(self.namespace, f"service/{name}-intake", 2525)

    def pods(self, component: str, name: str = "outgoing") -> list[Manifest]:
        """Return the pods of a component that are not going away."""
        selector = f"app.kubernetes.io/instance={name},app.kubernetes.io/component={component}"
        found = self.kubectl.list("pods", self.namespace, selector)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]


@contextmanager
def new_sandbox(
    installation: Installation, running: stack.Stack, folder: Path
) -> Iterator[Sandbox]:
    """Create a sandbox; remove it with everything in it at the end."""
    namespace = f"e2e-{secrets.token_hex(3)}"
    keyspace = namespace.replace("-", "_")
    with SinkProcess(folder / "sink", defer_first="greylisted", refuse="unknown") as sink:
        installation.namespace(namespace)
        running.publish(namespace)
        running.kubernetes.publish(namespace, "sink", sink.port, 2525)
        installation.kubectl.apply(installation.queue_cluster(namespace, keyspace))
        try:
            yield Sandbox(installation, running, namespace, keyspace, sink)
        finally:
            _keep_logs(installation.kubectl, namespace, folder)
            _remove(installation.kubectl, namespace)


def _keep_logs(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    """Save the pods' logs, and print what went wrong, which pytest shows under a failed test."""
    for pod in kubectl.list("pods", namespace):
        name = pod["metadata"]["name"]
        try:
            said = kubectl("logs", name, "-n", namespace, "--tail=2000")
        except KubectlFailed as error:
            said = str(error)
        (folder / f"{name}.log").write_text(said)
        wrong = [line for line in said.splitlines() if _TROUBLE.search(line)]
        print(f"{name}:", *wrong[-20:], sep="\n  ")


def _remove(kubectl: Kubectl, namespace: str) -> None:
    for kind, seconds in (("mailqueue", 150), ("queuecluster", 60)):
        patient = f"--timeout={patience.stretched(seconds):.0f}s"
        kubectl("delete", kind, "--all", "-n", namespace, patient, timeout=seconds + 10)
    kubectl("delete", "namespace", namespace, "--wait=false")

    def gone() -> bool:
        try:
            kubectl("get", "namespace", namespace)
        except KubectlFailed:
            return True
        return False

    eventually(gone, within_seconds=90)
