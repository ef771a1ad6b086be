"""A Docker engine of the stack's own: Debian's dockerd, in namespaces and with data of its own.

Its bridges, its firewall rules and the ports that it publishes lie in a network namespace, so that
the machine's own rules, and networks of other servers, stay as they are. Traffic and names leave
through slirp4netns, as this machine's. A command reaches what is published when it runs in that
namespace (`run`).
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stack import control_groups, folders, packages, processes
from stack.configuration_files import write
from stack.errors import MissingRequirement, StackError, StepFailed
from stack.progress import Progress
from stack.server import POLL_SECONDS

DEBIAN = ("docker.io", "slirp4netns", "iptables", "iproute2", "util-linux")
START_SECONDS, END_SECONDS = 60.0, 60.0
STATUS = Path("/proc/self/status")
RESOURCE_BIT = 24
"""CAP_SYS_RESOURCE in a set of capabilities (capabilities(7))."""

SLIRP_DNS = "10.0.2.3"
"""Where slirp4netns answers questions about names."""

INSIDE = """\
ip link set lo up
until ip -4 address show tap0 2>/dev/null | grep -q inet; do sleep 0.05; done
for network in 10.96.0.0/16 10.244.0.0/16; do ip route add unreachable $network; done
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet
mount --bind "$1/resolv.conf" "$(readlink -f /etc/resolv.conf)"
echo $$ >"$1/dockerd.pid"
shift
exec dockerd "$@"
"""
"""The first process of the namespaces: waits for the network, then becomes the engine.

The networks are those of kind's Services and pods. Before the rules of a new Service are in place,
a connection to it would leave the machine, and whatever answers outside would keep it."""

RUNC = """\
#!/bin/sh
# Docker asks for CAP_SYS_RESOURCE for privileged processes; root does not have it on this machine,
# so runc would refuse. It is taken out of what Docker asks.
before=
for argument; do
    case $before in
    --process | -p) file=$argument ;;
    --bundle | -b) file=$argument/config.json ;;
    *) file= ;;
    esac
    [ ! -f "$file" ] || sed -i 's/,"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",//g' "$file"
    before=$argument
done
exec /usr/sbin/runc "$@"
"""


class Engine:
    """The engine of one folder, running or not."""

    def __init__(self, folder: Path) -> None:
        """Take the folder with its images, containers and logs. Start nothing yet."""
        self.folder = folder

    @property
    def host(self) -> str:
        """Its address, as DOCKER_HOST."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def log(self) -> Path:
        """The output of dockerd."""
        return self.folder / "dockerd.log"

    def start(self, progress: Progress) -> None:
        """Start it unless it runs; returns when it answers.

        Raises:
            MissingRequirement: not root, or no Debian.
            StepFailed: it ended, or does not answer.
        """
        if self._answers():
            return
        if os.geteuid() != 0:
            raise MissingRequirement(
                "no Docker engine answers, and starting one needs root: start yours, or become root"
            )
        packages.ensure(DEBIAN, progress)
        with progress.step("docker: start an engine"):
            self.stop()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._launch()
            deadline = time.monotonic() + START_SECONDS
            while not self._answers():
                if time.monotonic() > deadline or not processes.members(self.folder):
                    raise StepFailed("docker: start an engine", self.log)
                time.sleep(POLL_SECONDS)

    def _launch(self) -> None:
        write(self.folder / "resolv.conf", f"nameserver {SLIRP_DNS}\n", 0o644)
        (self.folder / "dockerd.pid").unlink(missing_ok=True)
        options: list[str | Path] = [
            *("--data-root", self.folder / "data", "--exec-root", self.folder / "exec"),
            *("--pidfile", self.folder / "docker.pid", "--host", self.host),
            *("--config-file", write(self.folder / "daemon.json", "{}\n")),
            *("--dns", SLIRP_DNS, "--cgroup-parent", f"/{self._mark}"),
            # With cgroup v2, systemd would make the groups, and take no such name for their parent.
            *("--exec-opt", "native.cgroupdriver=cgroupfs"),
        ]
        if not has_resource_capability():
            runtime = write(self.folder / "runc", RUNC, 0o755)
            options += ["--add-runtime", f"fit={runtime}", "--default-runtime", "fit"]
            options += ["--oom-score-adjust", "0"]
        control_groups.make(self._mark)
        control_groups.weigh(self._mark)
        own = ("unshare", "--net", "--mount", "--propagation", "private")
        inside = ("sh", "-ec", INSIDE, "sh", self.folder, *options)
        processes.start(self.folder, [*own, *inside], self.log)
        deadline = time.monotonic() + START_SECONDS
        while (pid := self._pid_in_namespace()) is None:
            if time.monotonic() > deadline:
                raise StepFailed("docker: start an engine", self.log)
            time.sleep(POLL_SECONDS)
        network = ("--configure", "--mtu=65520", "--disable-host-loopback", str(pid), "tap0")
        processes.start(self.folder, ["slirp4netns", *network], self.folder / "slirp.log")

    @property
    def _mark(self) -> str:
        """The name of its control groups."""
        return f"pr-{folders.fingerprint(self.folder)}"

    def _pid_in_namespace(self) -> int | None:
        here = Path("/proc/self/ns/net").readlink()
        for process in processes.members(self.folder):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process.pid}/ns/net").readlink() != here:
                    return process.pid
        return None

    def _answers(self) -> bool:
        command = ["docker", "--host", self.host, "version"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, check=False, timeout=10)
            return done.returncode == 0
        return False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command in the engine's network, with DOCKER_HOST set; return its exit code."""
        pid = self._pid_in_namespace()
        if pid is None:
            raise StackError("the engine does not run")
        own = {**environment, "DOCKER_HOST": self.host}
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]
        return subprocess.run(inside, env=own, check=False).returncode

    def stop(self) -> None:
        """Ask dockerd to end, which stops its containers, and end what is left of them. Images and
        the containers' data stay."""
        self._end_dockerd()
        for folder in control_groups.left(self._mark):
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    if process := processes.look(int(pid)):
                        processes.send(process, signal.SIGKILL)
        processes.kill_members(self.folder)
        for folder in control_groups.left(self._mark):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _end_dockerd(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.folder / "dockerd.pid").read_text())
            alive = {process.pid: process for process in processes.members(self.folder)}
            if pid not in alive or not processes.send(alive[pid], signal.SIGTERM):
                return
            deadline = time.monotonic() + END_SECONDS
            while processes.look(pid) is not None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS * 4)

    def remove(self) -> None:
        """Stop it, and remove its images and data."""
        self.stop()
        if self.folder.exists():
            # Its mounts lay in namespaces that are gone; what is left are files.
            subprocess.run(["rm", "-rf", "--one-file-system", str(self.folder)], check=True)


def has_resource_capability() -> bool:
    """Return whether root may have CAP_SYS_RESOURCE, without which runc refuses Docker's wish."""
    lines = STATUS.read_text().splitlines()
    bounding = next(line for line in lines if line.startswith("CapBnd:"))
    return bool(int(bounding.split()[1], 16) >> RESOURCE_BIT & 1)
