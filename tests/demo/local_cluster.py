"""The demo on this machine: the local stack's servers and Kubernetes, whatever the environment
names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import stack
from demo.forecast import Bar, Machine, forecast
from demo.run import POSTMASTER
from stack import exports
from stack.progress import Progress
from support.installation import ROOT, Installation, build_image, image_name
from support.kubectl import Kubectl
from support.sink_process import ReceivedMail, SinkProcess


def unused(environment: Mapping[str, str]) -> str:
    """Return the line about variables that name other servers; empty where there are none."""
    names = sorted({exports.LEADING[name] for name in exports.all_given(environment)})
    if not names:
        return ""
    current = "; `make demo CLUSTER=current` uses its cluster" if "KUBECONFIG" in names else ""
    return f"not used: {', '.join(names)}. The demo starts servers of its own{current}"


class LocalCluster:
    """The stack of this machine."""

    namespace = "mail"

    def __init__(self, logs: Path) -> None:
        self.bar: Bar | None = None
        self.progress = Progress(
            title=lambda: f"demo: {self.bar.text(time.monotonic())} " if self.bar else "demo:"
        )
        if line := unused(os.environ):
            print(f"demo: {line}", flush=True)
        self._kubeconfig_is_set = bool(exports.given("kubernetes", os.environ))
        self.stack = stack.Stack(
            environment=exports.without_given(os.environ), progress=self.progress
        )
        self.stack.check()
        self._was_running = bool(self.stack.running())
        self._logs = logs
        expected = forecast(self._machine())
        self.bar = Bar(expected)
        print(f"demo: {expected}", flush=True)

    def _machine(self) -> Machine:
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

    @property
    def kubectl(self) -> Kubectl:
        """kubectl with the stack's own kubeconfig."""
        return Kubectl(self.stack.kubernetes.kubectl.command())

    def start_servers(self) -> None:
        """Start the servers that do not run."""
        self.stack.up()

    def installation(self) -> Installation:
        """Build the image of this source, and return the means of installing it."""
        image = build_image(self.stack)
        return Installation(self.kubectl, self.stack.environment(), image)

    def prepare_namespace(self, installation: Installation) -> None:
        """Make the namespace, and let its pods reach the servers."""
        installation.namespace(self.namespace)
        self.stack.publish(self.namespace)

    @contextmanager
    def sink(self) -> Iterator[SinkProcess]:
        """Run the sink on this machine, where pods reach it as `sink:2525`."""
        with SinkProcess(self._logs / "sink") as sink:
            self.stack.kubernetes.publish(self.namespace, "sink", sink.port, 2525)
            yield sink

    def received(self, sink: SinkProcess) -> Iterator[ReceivedMail]:
        """Yield what the sink received so far."""
        return sink.each()

    def next_commands(self) -> list[str]:
        """Return lines about what can be looked at, and removed."""
        own = "env -u KUBECONFIG " if self._kubeconfig_is_set else ""
        kubectl, queue = f"{own}python3 -m stack kubectl", f"-n {self.namespace}"
        opened = f"mailqueue console outgoing --service-account {POSTMASTER}"
        return [
            "Look around:  cd tests",
            f"              {kubectl} get mq {queue}",
            f"              {kubectl} describe mq outgoing {queue}",
            f"              {kubectl} logs {queue} deploy/outgoing-worker",
            f"Its console:  {kubectl} {opened} {queue}",
            "Remove it:    make clean",
        ]

    def stop_servers(self) -> bool:
        """Remove the servers if this demo started them; return whether it did."""
        if not self._was_running:
            self.stack.down()
        return not self._was_running

    @property
    def logs_hint(self) -> str:
        """Where else to look after a failure."""
        return " and `cd tests && python3 -m stack logs`"
