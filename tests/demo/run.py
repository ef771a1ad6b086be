"""One run of the demo in a cluster: the operator, a QueueCluster and a MailQueue, mail in, mail
out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import stack
from demo.forecast import Bar
from demo.report import print_mails
from demo.sample_mails import DemoMail, Summary, note_received, send
from stack.progress import Progress
from support.console_accounts import account_with_role
from support.installation import OPERATOR_NAMESPACE, ROOT, Installation
from support.kubectl import (
    Kubectl,
    KubectlFailed,
    TooLate,
    eventually,
    manifests,
)
from support.sink_process import ReceivedMail

CLUSTER, QUEUE, POSTMASTER = "main", "outgoing", "postmaster"


FAILURES = (stack.StackError, KubectlFailed, TooLate, OSError, subprocess.TimeoutExpired)


class DemoFailed(Exception):
    """A step of the demo failed; the message says which, and where to look."""


class Target(Protocol):
    """A cluster in which the demo runs."""

    namespace: str
    progress: Progress
    bar: Bar | None

    @property
    def kubectl(self) -> Kubectl: ...
    def start_servers(self) -> None: ...
    def installation(self) -> Installation: ...
    def prepare_namespace(self, installation: Installation) -> None: ...
    def sink(self) -> AbstractContextManager[Any]: ...
    def received(self, sink: Any) -> Iterator[ReceivedMail]: ...
    def next_commands(self) -> list[str]: ...
    def stop_servers(self) -> bool: ...
    @property
    def logs_hint(self) -> str: ...


class Demo:
    """One run. Each step is a method, and prints its time."""

    def __init__(self, target: Target, mails: list[DemoMail], logs: Path) -> None:
        self.target = target
        self.mails = mails
        self.logs = logs
        self.namespace = target.namespace

    def run(self) -> Summary:
        """Do it all."""
        with self.step("servers", "RabbitMQ, Cassandra, S3 and Kubernetes"):
            self.target.start_servers()
            self.kubectl = self.target.kubectl
        with self.step("image", "image of postroad"):
            self.installation = self.target.installation()
        with self.step("operator", "operator"):
            self.installation.install()
        with self.step("resources", "QueueCluster and MailQueue"):
            self.apply()
        with self.target.sink() as sink:
            with self.step(
                "mail", f"{len(self.mails)} mails by SMTP to the Service {QUEUE}-intake"
            ):
                self.send()
            self.show_waiting()
            with self.step("delivery", "two workers deliver them"):
                self.deliver(sink)
        return Summary.of(self.mails)

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        if self.target.bar:
            self.target.bar.begin(name, time.monotonic())
        try:
            with self.target.progress.step(title):
                yield
        except FAILURES as error:
            raise DemoFailed(f"{title}: {error}\n{self.save_logs()}") from error

    def apply(self) -> None:
        """Apply the samples, with the demo's servers in the QueueCluster, workers at rest."""
        self.target.prepare_namespace(self.installation)
        cluster = self.installation.queue_cluster(self.namespace, "postroad", CLUSTER)
        cluster["spec"]["console"] = {}
        # A kubeconfig may have a certificate and no token, which the console wants.
        self.kubectl.apply(cluster, *account_with_role(self.namespace, POSTMASTER, "admin"))
        samples = manifests(ROOT / "manifests" / "samples")
        queue = next(each for each in samples if each["kind"] == "MailQueue")
        queue["metadata"]["namespace"] = self.namespace
        queue["spec"]["workers"]["replicas"] = 0
        self.kubectl.apply(queue)
        self.installation.wait_ready("mailqueue", QUEUE, self.namespace, within_seconds=180)

    def send(self) -> None:
        with self.kubectl.forwarded(self.namespace, f"service/{QUEUE}-intake", 2525) as port:
            send(self.mails, "127.0.0.1", port)
        for mail in self.mails:
            if mail.accepted_at is None:
                print(f"  not accepted: {mail.file.name}: {mail.reply}")

    def show_waiting(self) -> None:
        """Show the queue as a mail administrator sees it, from inside the intake's pod."""
        pod = f"deployment/{QUEUE}-intake"
        print(self.kubectl("exec", "-n", self.namespace, pod, "--", "postroad", "size"))
        print(self.kubectl("exec", "-n", self.namespace, pod, "--", "postroad", "browse"))

    def deliver(self, sink: object) -> None:
        """Scale the workers up; wait for every accepted mail, then a little for duplicates."""
        self.kubectl("scale", "mailqueue", QUEUE, "-n", self.namespace, "--replicas=2")
        accepted = [mail for mail in self.mails if mail.accepted_at]
        try:
            eventually(
                lambda: self.arrived(sink) >= len(accepted),
                within_seconds=120 + len(accepted) / 10,
            )
        except TooLate:
            print("  not all mails came in time", flush=True)
        self.arrived(sink)
        try:  # the operator refreshes the size every 30 s; a duplicate would come meanwhile
            eventually(lambda: self.size() == 0, within_seconds=90)
        except TooLate:
            print(f"  the queue still holds {self.size()} mails", flush=True)
        self.arrived(sink)

    def size(self) -> object:
        return self.kubectl.get("mailqueue", QUEUE, self.namespace)["status"].get("size")

    def arrived(self, sink: object) -> int:
        received = self.target.received(sink)
        note_received(self.mails, ((each.recipient, each.at, each.content) for each in received))
        return sum(bool(mail.received_at) for mail in self.mails)

    def show(self, summary: Summary) -> None:
        """Print each mail's times, the summary and the next commands."""
        print_mails(self.mails)
        print(self.kubectl("get", "mailqueue,queuecluster", "-n", self.namespace))
        print(*self.target.next_commands(), sep="\n")
        print(summary)

    def save_logs(self) -> str:
        """Save the cluster's state and logs after a failure; return where."""
        self.logs.mkdir(parents=True, exist_ok=True)
        mine = ("-n", self.namespace)
        questions = {
            "pods.txt": ("get", "pods", "-o", "wide", *mine),
            "events.txt": ("get", "events", "--sort-by=.lastTimestamp", *mine),
            "operator.txt": ("get", "pods,events", "-n", OPERATOR_NAMESPACE),
            "operator.log": (
                *("logs", "-n", OPERATOR_NAMESPACE, "--prefix", "--tail=-1"),
                *("-l", "app.kubernetes.io/component=operator"),
            ),
            "intake.log": ("logs", *mine, f"deployment/{QUEUE}-intake"),
            "worker.log": ("logs", *mine, f"deployment/{QUEUE}-worker"),
            "queue.yaml": ("get", "qc,mq", *mine, "-o", "yaml"),
        }
        for name, question in questions.items():
            (self.logs / name).write_text(self.ask(question))
        return f"logs: {self.logs.relative_to(ROOT)}/{self.target.logs_hint}"

    def ask(self, question: tuple[str, ...]) -> str:
        try:
            return self.target.kubectl(*question)
        except (KubectlFailed, subprocess.SubprocessError, stack.StackError, OSError) as error:
            return f"{error}\n"

    def clean_up(self) -> None:
        """Remove what this run made."""
        print("\nremoving what the demo started …", flush=True)
        if self.target.stop_servers():
            return
        for kind, name in (("mailqueue", QUEUE), ("queuecluster", CLUSTER)):
            delete = ("delete", kind, name, "-n", self.namespace, "--ignore-not-found")
            self.ask((*delete, "--timeout=60s"))
        for name in (self.namespace, OPERATOR_NAMESPACE):
            self.ask(("delete", "namespace", name, "--ignore-not-found", "--timeout=60s"))
        lines = self.target.next_commands()
        first = next(at for at, line in enumerate(lines) if line.startswith("Remove it:"))
        print(*lines[first:], sep="\n")
