"""`python -m demo [--mail DIR]`: the main job, from `kubectl apply` to delivered mail.

Brings the local stack up, installs the operator into its Kubernetes, applies a QueueCluster and a
MailQueue, sends mail by SMTP through the intake's Service, shows it waiting in the queue, lets the
workers deliver it to a sink, and prints what became of each mail. All servers stay up for a closer
look; `make clean` removes them. Ctrl-C removes what the demo started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stack
from demo.forecast import Bar, Machine, forecast
from demo.report import print_mails
from demo.sample_mails import SAMPLES, Summary, note_received, read_mails, send
from stack.progress import Progress
from support.installation import OPERATOR_NAMESPACE, ROOT, Installation, build_image, image_name
from support.kubectl import Kubectl, KubectlFailed, TooLate, eventually, manifests
from support.sink_process import SinkProcess

NAMESPACE, CLUSTER, QUEUE = "mail", "main", "outgoing"
LOGS = ROOT / "build" / "demo"


class DemoFailed(Exception):
    """A step of the demo failed; the message says which, and where to look."""


class Demo:
    """One run. Each step is a method, and prints its time."""

    def __init__(self, mail: Path) -> None:
        self.mails = read_mails(mail)
        if not self.mails:
            raise DemoFailed(f"{mail} holds no .eml files: give a folder of mails by MAIL=dir")
        self.progress = Progress(title=lambda: f"demo: {self.bar.text(time.monotonic())} ")
        self.stack = stack.Stack(progress=self.progress)
        self.stack.check()
        self.was_running = bool(self.stack.running())
        expected = forecast(self.machine())
        self.bar = Bar(expected)
        print(f"demo: {expected}", flush=True)

    def machine(self) -> Machine:
        """Look at what this machine has, and what has to be made first."""
        servers = [self.stack.server(name) for name in stack.DEFAULT]
        missing = {name for server in servers for name in server.missing()}
        missing.update(self.stack.missing_of_image(ROOT, image_name()))
        return Machine(
            cores=os.cpu_count() or 1,
            load=os.getloadavg()[0],
            missing=sorted(missing),
            servers_run=len(self.stack.running(stack.DEFAULT)) == len(servers),
        )

    def run(self) -> Summary:
        """Do it all."""
        with self.step("servers", "RabbitMQ, Cassandra, S3 and Kubernetes"):
            self.stack.up()
            self.kubectl = Kubectl(self.stack.kubernetes.kubectl.command())
        with self.step("image", "image of this source"):
            image = build_image(self.stack)
        self.installation = Installation(self.kubectl, self.stack.environment(), image)
        with self.step("operator", "operator"):
            self.installation.install()
        with self.step("resources", "QueueCluster and MailQueue"):
            self.apply()
        with SinkProcess(LOGS / "sink") as sink:
            self.stack.kubernetes.publish(NAMESPACE, "sink", sink.port, 2525)
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
        self.bar.begin(name, time.monotonic())
        try:
            with self.progress.step(title):
                yield
        except (stack.StackError, KubectlFailed, TooLate, OSError) as error:
            raise DemoFailed(f"{title}: {error}\n{self.save_logs()}") from error

    def apply(self) -> None:
        """Apply the samples, with this machine's servers in the QueueCluster, workers at rest."""
        self.installation.namespace(NAMESPACE)
        self.stack.publish(NAMESPACE)
        self.kubectl.apply(
            self.installation.queue_cluster(NAMESPACE, keyspace="postroad", name=CLUSTER)
        )
        samples = manifests(ROOT / "manifests" / "samples")
        queue = next(each for each in samples if each["kind"] == "MailQueue")
        queue["spec"]["workers"]["replicas"] = 0
        self.kubectl.apply(queue)
        self.installation.wait_ready("mailqueue", QUEUE, NAMESPACE, within_seconds=180)

    def send(self) -> None:
        with self.kubectl.forwarded(NAMESPACE, f"service/{QUEUE}-intake", 2525) as port:
            send(self.mails, "127.0.0.1", port)
        for mail in self.mails:
            if mail.accepted_at is None:
                print(f"  not accepted: {mail.file.name}: {mail.reply}")

    def show_waiting(self) -> None:
        """Show the queue as a mail administrator sees it, from inside the intake's pod."""
        pod = f"deployment/{QUEUE}-intake"
        print(self.kubectl("exec", "-n", NAMESPACE, pod, "--", "postroad", "size"))
        print(self.kubectl("exec", "-n", NAMESPACE, pod, "--", "postroad", "browse"))

    def deliver(self, sink: SinkProcess) -> None:
        """Scale the workers up; wait for every accepted mail, then a little for duplicates."""
        self.kubectl("scale", "mailqueue", QUEUE, "-n", NAMESPACE, "--replicas=2")
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
        return self.kubectl.get("mailqueue", QUEUE, NAMESPACE)["status"].get("size")

    def arrived(self, sink: SinkProcess) -> int:
        note_received(self.mails, ((each.recipient, each.at, each.content) for each in sink.each()))
        return sum(bool(mail.received_at) for mail in self.mails)

    def show(self, summary: Summary) -> None:
        """Print each mail's times, the summary and the next commands."""
        print_mails(self.mails)
        print(self.kubectl("get", "mailqueue,queuecluster", "-n", NAMESPACE))
        print("Look around:  cd tests")
        print(f"              python3 -m stack kubectl get mq -n {NAMESPACE}")
        print(f"              python3 -m stack kubectl describe mq {QUEUE} -n {NAMESPACE}")
        print(f"              python3 -m stack kubectl logs -n {NAMESPACE} deploy/{QUEUE}-worker")
        print("Remove it:    make clean")
        print(summary)

    def save_logs(self) -> str:
        """Save the cluster's state and logs after a failure; return where."""
        LOGS.mkdir(parents=True, exist_ok=True)
        questions = {
            "pods.txt": ("get", "pods", "-A", "-o", "wide"),
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            "operator.log": (
                *("logs", "-n", OPERATOR_NAMESPACE, "--prefix", "--tail=-1"),
                *("-l", "app.kubernetes.io/component=operator"),
            ),
            "intake.log": ("logs", "-n", NAMESPACE, f"deployment/{QUEUE}-intake"),
            "worker.log": ("logs", "-n", NAMESPACE, f"deployment/{QUEUE}-worker"),
            "queue.yaml": ("get", "qc,mq", "-n", NAMESPACE, "-o", "yaml"),
        }
        for name, question in questions.items():
            (LOGS / name).write_text(self.ask(question))
        return f"logs: {LOGS.relative_to(ROOT)}/ and `cd tests && python3 -m stack logs`"

    def ask(self, question: tuple[str, ...]) -> str:
        try:
            return self.kubectl(*question)
        except (KubectlFailed, subprocess.SubprocessError, AttributeError) as error:
            return f"{error}\n"

    def clean_up(self) -> None:
        """Remove what this run started."""
        print("\nremoving what the demo started …", flush=True)
        if not self.was_running:
            self.stack.down()
            return
        for kind, name in (("mailqueue", QUEUE), ("queuecluster", CLUSTER)):
            self.ask(("delete", kind, name, "-n", NAMESPACE, "--ignore-not-found", "--timeout=60s"))
        for name in (NAMESPACE, OPERATOR_NAMESPACE):
            self.ask(("delete", "namespace", name, "--ignore-not-found", "--timeout=60s"))


def main() -> int:
    """Run the demo; returns 0 only when every mail accepted was delivered once."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--mail", type=Path, default=SAMPLES, help="a folder of .eml files")
    options = parser.parse_args()
    demo: Demo | None = None
    try:
        demo = Demo(options.mail)
        summary = demo.run()
        demo.show(summary)
        return 0 if summary.is_good else 1
    except (DemoFailed, stack.StackError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if demo:
            demo.clean_up()
        return 130
    finally:
        if demo:
            demo.progress.close()


if __name__ == "__main__":
    sys.exit(main())
