"""The demo in the cluster of the current context of kubectl: servers for trying in one namespace of
it, after the user has read what comes and agreed."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import yaml

from demo.consent import CLUSTER_KINDS, MARK, Found, Right, plan, refusal, removal, review, rights
from demo.forecast import WORK, Bar, Forecast
from demo.run import POSTMASTER
from stack.errors import StackError
from stack.progress import Progress
from support.installation import OPERATOR_NAMESPACE, ROOT, Installation
from support.kubectl import Kubectl, Manifest, manifests
from support.sink_process import TESTS, ReceivedMail

START_SECONDS = 600
"""How long the servers may take, images to be pulled included."""

PROGRAMS = ("support/__init__.py", "support/sasl_server.py", "support/sink.py")
RECEIVED = """\
import base64, json, os, pathlib
for path in sorted(pathlib.Path("/mails").glob("*.json")):
    content = base64.b64encode(path.with_suffix(".eml").read_bytes()).decode()
    print(json.dumps(json.loads(path.read_text()) | {"at": path.stat().st_mtime, "eml": content}))
"""


class CurrentCluster:
    """A cluster that the user names by kubectl's configuration."""

    def __init__(self, namespace: str, image: str, confirmed: str) -> None:
        """Look at the cluster, print what comes, and get the user's consent.

        Raises: StackError with the reason why the demo does not begin.
        """
        if not image:
            raise StackError(
                "name postroad's image that the cluster can pull: make demo CLUSTER=current"
                " IMAGE=registry.example.org/postroad:TAG (docker build, docker push; of kind:"
                " kind load docker-image)"
            )
        program = shutil.which("kubectl")
        if program is None:
            raise StackError("there is no kubectl in PATH")
        self.namespace = namespace
        self._image = image
        self._context = Kubectl([program])("config", "current-context").strip()
        self.kubectl = Kubectl([program, "--context", self._context])
        self._ask_user(confirmed)
        expected = Forecast({"servers": 150, "image": 0, **WORK}, ["the cluster pulls images"])
        bar = Bar(expected)
        self.bar: Bar | None = bar
        self.progress = Progress(title=lambda: f"demo: {bar.text(time.monotonic())} ")
        print(f"demo: {expected}", flush=True)

    def _ask_user(self, confirmed: str) -> None:
        wanted = self._manifests()
        found = self._look(wanted)
        print(plan(found, self.namespace, self._image, wanted), flush=True)
        if reason := refusal(found, self.namespace):
            raise StackError(reason)
        # The API server judges what no list of rights has: rights to be given away, policies.
        of_cluster = [each for each in wanted if each["kind"] in CLUSTER_KINDS]
        self.kubectl.apply(*of_cluster, dry_run=True)
        if confirmed == self._context:
            return
        agreed = f"CONFIRM={self._context}"
        if confirmed or not sys.stdin.isatty():
            raise StackError(f"nothing was changed. To agree: make demo CLUSTER=current {agreed} …")
        try:
            answer = input(f"Go on? yes, or {agreed} beforehand [no] ")
        except EOFError:
            answer = ""
        if answer.strip() != "yes":
            raise StackError("nothing was changed")

    def _manifests(self) -> list[Manifest]:
        folder = ROOT / "manifests"
        own = ("install", "executors", "consoles")
        files = [ROOT / "crds", *(folder / f"{each}.yaml" for each in own)]
        return [each for file in (*files, folder / "servers") for each in manifests(file)] + [
            *self._own_namespaces(),
            *self._sink_manifests(),
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rabbitmq"}},
        ]

    def _own_namespaces(self) -> list[Manifest]:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        return [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels},
            }
            for name in (OPERATOR_NAMESPACE, self.namespace)
        ]

    def _look(self, wanted: list[Manifest]) -> Found:
        config = json.loads(self.kubectl("config", "view", "--minify", "-o", "json"))
        found = Found(
            context=self._context,
            server=config["clusters"][0]["cluster"]["server"],
            namespaces={},
            has_crds=False,
            denied=self._denied(rights(wanted, self.namespace)),
        )
        if found.denied:
            return found  # nor may the user look, perhaps
        names = ("namespace", OPERATOR_NAMESPACE, self.namespace)
        shown = self.kubectl("get", *names, "--ignore-not-found", "-o", "json")
        document = json.loads(shown or '{"items": []}')
        crd = ("crd", "mailqueues.postroad.dev", "--ignore-not-found", "-o", "name")
        return replace(
            found,
            namespaces={
                each["metadata"]["name"]: each["metadata"].get("labels", {})
                for each in document.get("items", [document])
            },
            has_crds=bool(self.kubectl("get", *crd).strip()),
        )

    def _denied(self, wanted: list[Right]) -> list[Right]:
        text = yaml.safe_dump_all(map(review, wanted))
        line = ("-o", 'jsonpath={.status.allowed}{"\\n"}', "--request-timeout=15s")
        answers = self.kubectl("create", "--validate=false", "-f", "-", *line, stdin=text).split()
        return [right for right, answer in zip(wanted, answers, strict=True) if answer != "true"]

    def start_servers(self) -> None:
        """Apply the servers, and wait until they are ready."""
        self.kubectl.apply(*self._own_namespaces())
        names = [each["metadata"]["name"] for each in self._own_namespaces()]
        # Not applied: `manifests/install.yaml` has the namespace without it.
        self.kubectl("label", "namespace", *names, f"{MARK}=yes", "--overwrite")
        for each in self._installation().secrets(self.namespace):
            if not self._has_secret(each["metadata"]["name"]):
                self.kubectl.apply(each)
        servers = manifests(ROOT / "manifests" / "servers")
        self._apply_here(servers)
        for each in servers:
            if each["kind"] == "StatefulSet":
                self._wait(f"statefulset/{each['metadata']['name']}")

    def _has_secret(self, name: str) -> bool:
        found = ("get", "secret", name, "-n", self.namespace, "--ignore-not-found", "-o", "name")
        return bool(self.kubectl(*found).strip())

    def _apply_here(self, objects: list[Manifest]) -> None:
        for each in objects:
            each["metadata"]["namespace"] = self.namespace
        self.kubectl.apply(*objects)

    def _wait(self, name: str) -> None:
        wait = ("rollout", "status", name, "-n", self.namespace, f"--timeout={START_SECONDS}s")
        self.kubectl(*wait, timeout=START_SECONDS + 10)

    def _installation(self) -> Installation:
        drawn = secrets.token_hex(16)
        environment = {
            "POSTROAD_RABBITMQ_URI": f"amqp://postroad:{drawn}@rabbitmq",
            "POSTROAD_CASSANDRA_LOCAL_DATACENTER": "datacenter1",
            "POSTROAD_CASSANDRA_USERNAME": "postroad",
            "POSTROAD_CASSANDRA_PASSWORD": drawn,
            "POSTROAD_S3_REGION": "us-east-1",
            "POSTROAD_S3_ACCESS_KEY": "postroad",
            "POSTROAD_S3_SECRET_KEY": drawn,
        }
        return Installation(self.kubectl, environment, self._image)

    def installation(self) -> Installation:
        """Return the means of installing the image that the user named."""
        return self._installation()

    def prepare_namespace(self, installation: Installation) -> None:
        """Need nothing: the servers are in the namespace, with its Secrets."""

    @contextmanager
    def sink(self) -> Iterator[None]:
        """Run a new sink in the namespace, from the image of the operator."""
        old = ("delete", "deployment", "sink", "-n", self.namespace, "--ignore-not-found", "--wait")
        self.kubectl(*old)
        self._apply_here(self._sink_manifests())
        self._wait("deployment/sink")
        yield

    def _sink_manifests(self) -> list[Manifest]:
        labels = {"app.kubernetes.io/name": "sink"}
        files = {each.replace("/", "."): (TESTS / each).read_text() for each in PROGRAMS}
        paths = [{"key": each.replace("/", "."), "path": each} for each in PROGRAMS]
        container = {
            "name": "sink",
            "image": self._image,
            "command": ["python", "-m", "support.sink"],
            "args": ["--listen", "0.0.0.0:2525", "--store", "/mails"],
            "workingDir": "/sink",
            "env": [{"name": "PYTHONPATH", "value": "/sink"}],
            "readinessProbe": {"tcpSocket": {"port": 2525}, "periodSeconds": 1},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "volumeMounts": [
                {"name": "programs", "mountPath": "/sink"},
                {"name": "mails", "mountPath": "/mails"},
            ],
        }
        pod = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "programs", "configMap": {"name": "sink", "items": paths}},
                {"name": "mails", "emptyDir": {}},
            ],
        }
        metadata = {"name": "sink", "labels": labels}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": dict(metadata), "data": files},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": dict(metadata),
                "spec": {"selector": labels, "ports": [{"name": "smtp", "port": 2525}]},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": dict(metadata),
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            },
        ]

    def received(self, sink: None) -> Iterator[ReceivedMail]:
        """Yield what the sink received so far."""
        inside = ("-n", self.namespace, "deployment/sink", "--", "python", "-c", RECEIVED)
        for line in self.kubectl("exec", *inside).splitlines():
            mail = json.loads(line)
            at = datetime.fromtimestamp(mail["at"], UTC)
            content = base64.b64decode(mail["eml"])
            for recipient in mail["recipients"]:
                yield ReceivedMail(recipient, mail["sender"], at, content)

    def next_commands(self) -> list[str]:
        """Return lines about what can be looked at, and removed."""
        kubectl, queue = f"kubectl --context {self._context}", f"-n {self.namespace}"
        opened = f"kubectl-mailqueue console outgoing --service-account {POSTMASTER}"
        commands = [
            f"{kubectl} get mq,pods {queue}",
            f"{kubectl} describe mq outgoing {queue}",
            f"{kubectl} logs {queue} deploy/outgoing-worker",
            f".venv/bin/{opened} --context {self._context} {queue}",
        ]
        removing = removal(self._context, self.namespace)
        return [
            f"{title if first else '':14}{command}"
            for title, lines in (("Look around:", commands), ("Remove it:", removing))
            for first, command in ((each is lines[0], each) for each in lines)
        ]

    def stop_servers(self) -> bool:
        """Leave the cluster as it is: it was not started here."""
        return False

    @property
    def logs_hint(self) -> str:
        """Where else to look after a failure: the files have it all."""
        return ""
