"""A whole Kubernetes of one node: real pods, images, probes, Services, DNS and volumes.

It runs in network, mount and pid namespaces of its own, as a kind node does. One private link joins
it to the machine; the link's addresses come from the range reserved for tests (RFC 2544). Pods
reach the cluster, and of the machine only what is forwarded to them (`publish`).

It differs from a real cluster: one node; kubelet and DNS run as processes; no NetworkPolicy; no
load balancers; every process in the namespaces may reach the kubelet.
"""

import contextlib
import ipaddress
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from stack import cluster_files, control_groups, folders, golang, kube, processes
from stack.cache import Entry
from stack.cluster import Cluster, script
from stack.cluster_files import API_PORT, Network
from stack.configuration_files import write
from stack.errors import MissingRequirement, StackError, StepFailed
from stack.native import NativeServer
from stack.records import Record
from stack.server import POLL_SECONDS

TEST_RANGE = ipaddress.ip_network("198.18.0.0/15")
PARTS = (
    *("containerd", "etcd", "apiserver", "controllers", "scheduler"),
    *("kubelet", "proxy", "dns", "forwarder"),
)


class Kubernetes(Cluster, NativeServer):
    """The cluster, run by this machine as root."""

    ready_seconds: ClassVar[float] = 400
    """An emulated machine took 224 s, and 237 s beside the other servers."""

    debian = (
        *("containerd", "runc", "containernetworking-plugins", "nftables", "iproute2"),
        *("util-linux", "openssl", "gcc", "libc6-dev"),
    )

    @property
    def network(self) -> Network:
        """The link between the machine and the cluster."""
        facts = self.record.facts
        return Network(self.mark, facts["host"], facts["node"])

    @property
    def mark(self) -> str:
        """The name of everything that this cluster has outside of its folder."""
        return f"pr-{folders.fingerprint(self.directory)}"

    @property
    def gateway(self) -> str:
        """Our end of the link."""
        return self.network.host

    @property
    def endpoint(self) -> str:
        """Where the API server listens."""
        return self.network.server

    @property
    def main_log(self) -> Path:
        """The output of the node's first process."""
        return self.directory / "node.log"

    @property
    def logs(self) -> list[Path]:
        """A log for each part."""
        return [self.main_log, *(self.directory / f"{part}.log" for part in PARTS)]

    def entries(self) -> Sequence[Entry]:
        """Kubernetes' program, what builds it, and the image of a pod's sandbox."""
        return (*golang.toolchain(), kube.program(), kube.pause_image())

    def facts(self) -> dict[str, str]:
        """Choose addresses that nothing else has."""
        host, node = _free_pair(self.mark)
        return {"host": host, "node": node}

    def check_machine(self) -> None:
        """Refuse a user who is not root, and a machine without the kubelet's controllers."""
        if os.geteuid() != 0:
            raise MissingRequirement(
                "a native Kubernetes needs root: rootless use is not supported (or use a Docker"
                " engine)"
            )
        control_groups.check()
        super().check_machine()

    def launch(self, record: Record) -> None:
        """Make the namespaces, join them to the machine, and let the node follow its plan."""
        network = self.network
        credentials = self.directory / "credentials"
        inside = Path("/run/stack/credentials")
        kube.write_credentials(credentials, record, network.server, seen_as=inside)
        write(
            self.kubeconfig,
            kube.kubeconfig(record, "admin", network.server, credentials / "apiserver.crt"),
        )
        cluster_files.write_files(self.directory, network)
        shutil.copyfile(kube.pause_image().path / "pause.tar", self.directory / "pause.tar")
        program = kube.program().path / "kube"
        plan = cluster_files.plan(self.directory, program, network)
        plan_path = write(self.directory / "plan.json", json.dumps(plan, indent=1))
        control_groups.make(network.name)
        processes.start(
            self.directory,
            [
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", *script("node"), plan_path),
            ],
            self.main_log,
        )
        self.wait_until(lambda: self.node_pid is not None, timeout_seconds=20)
        self._join(network)

    @property
    def node_pid(self) -> int | None:
        """The first process inside the namespaces, as the machine numbers it."""
        here = Path("/proc/self/ns/net").readlink()
        alive = processes.members(self.directory)
        leaders = {process.pid for process in alive if process.leads_session}
        for process in alive:
            with contextlib.suppress(OSError):
                there = Path(f"/proc/{process.pid}/ns/net").readlink()
                if process.parent in leaders and there != here:
                    return process.pid
        return None

    def _join(self, network: Network) -> None:
        _ip("link", "add", network.name, "type", "veth", "peer", "name", "eth0",
            "netns", str(self.node_pid))  # fmt: skip
        _ip("address", "add", f"{network.host}/30", "dev", network.name)
        _ip("link", "set", network.name, "up")

    def answers(self) -> bool:
        """Ask whether it is ready and its node takes pods."""
        record = self.record
        authority = self.directory / "credentials" / "apiserver.crt"
        address = (self.network.node, API_PORT)
        return kube.asked(
            address,
            authority,
            record.secrets["admin"],
            lambda api: api.serves() and api.node_is_ready(cluster_files.NODE),
        )

    def after_start(self, record: Record) -> None:
        """Add DNS and volumes, and let pods reach what is published."""
        self.kubectl("apply", "-f", str(self.directory / "addons.yaml"))
        link = self.directory / "bin" / "kubectl"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(kube.program().path / "kubectl")
        self.start_forwarder()

    def end(self) -> None:
        """Kill all its processes and pods, and remove what the kernel keeps of them.

        Raises:
            StackError: something of it stays in use.
        """
        super().end()
        deadline = time.monotonic() + 20
        # The kernel can remove a control group a moment after its pods are gone.
        while groups := control_groups.left(self.mark):
            for group in groups:
                with contextlib.suppress(OSError):
                    group.rmdir()
            if time.monotonic() > deadline:
                raise StackError(f"control groups stay in use: {groups}")
            time.sleep(POLL_SECONDS)
        if Path(f"/sys/class/net/{self.mark}").exists():
            # The kernel removes it after its other end, with a delay.
            subprocess.run(["ip", "link", "delete", self.mark], capture_output=True, check=False)

    def stop(self) -> None:
        """Kill it: a node without its processes cannot be stopped in an orderly way."""
        self.end()

    def load_image(self, archive: Path) -> None:
        """Give the cluster the images of an archive, unless it was given this very file before.

        Raises:
            StepFailed: containerd refused it.
        """
        # One mark per image name, whose archives lie together: the one loaded last counts.
        mark = self.directory / "loaded" / folders.fingerprint(archive.parent.parent)
        identity = f"{archive} {archive.stat().st_mtime_ns}"
        if mark.exists() and mark.read_text() == identity:
            return
        log = self.directory / "images.log"
        with archive.open("rb") as content, log.open("wb") as output:
            code = subprocess.run(
                [*self._inside(), "ctr", "-n", "k8s.io", "images", "import", "-"],
                stdin=content,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code:
            raise StepFailed(f"loading {archive.name}", log)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(identity)

    def _inside(self) -> list[str]:
        pid = self.node_pid
        if pid is None:
            raise StackError("kubernetes does not run")
        return ["nsenter", "--target", str(pid), "--mount", "--net", "--pid"]


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise StackError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from error


def _free_pair(seed: str) -> tuple[str, str]:
    """Return two addresses of a network that no link of this machine has."""
    answer = subprocess.run(
        ["ip", "-json", "address"], capture_output=True, text=True, check=True
    ).stdout
    taken = {
        ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for link in json.loads(answer)
        for address in link.get("addr_info", ())
        if address["family"] == "inet"
    }
    candidates = random.Random(seed)
    while True:
        offset = candidates.randrange(TEST_RANGE.num_addresses // 4) * 4
        network = ipaddress.ip_network(f"{TEST_RANGE[offset]}/30")
        if not any(network.overlaps(other) for other in taken):
            return str(network[1]), str(network[2])
