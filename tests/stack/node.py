"""The first process of the cluster's namespaces: makes it a machine of its own and runs its parts.

`python node.py PLAN` runs as pid 1 in fresh network, mount and pid namespaces. The plan, a JSON
file, names the server's folder, the network's addresses, and the steps: what to run, what to start
and keep running, what to wait for. When this process ends, the kernel ends all the others. The
folders that the parts require (/run, /tmp, /var/lib, /var/log) are the cluster's own here.
"""

import ctypes
import encodings.idna  # noqa: F401  # else loaded later, when its folder may be hidden
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Never

HOME = Path("/run/stack")
"""Where the server's folder appears inside."""

PROGRAM = Path("/run/kube")
"""Where Kubernetes' program appears inside."""

MS_BIND, MS_REC, MS_SHARED = 4096, 16384, 1 << 20

ROOMS = {"var-lib": "/var/lib", "var-log": "/var/log", "tmp": "/tmp"}
"""Folders of the server's own folder, and the paths at which they are mounted."""

POLITE = {"vm.overcommit_memory": "1", "kernel.panic": "10", "kernel.panic_on_oops": "1"}
"""Values that the kubelet would set for the whole machine: it finds them set already."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(plan_path: str) -> Never:
    """Set up the namespaces, run the plan, then keep its processes running."""
    plan = json.loads(Path(plan_path).read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _mount_rooms(plan["folder"], plan["program"])
    _join_network(plan["network"])
    node = _Node()
    for step in plan["steps"]:
        node.take(step)
    node.keep()


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    if _libc.mount(*encoded, flags, None):
        code = ctypes.get_errno()
        raise OSError(code, f"mount {source} at {target}: {os.strerror(code)}")


def _mount_rooms(folder: str, program: str) -> None:
    _mount("none", "/", flags=MS_REC | MS_SHARED)
    # Open descriptors stay valid when mounts hide /run and /tmp, where the files may lie.
    own = os.open(folder, os.O_PATH)
    kube = os.open(program, os.O_PATH)
    _mount("tmpfs", "/run", "tmpfs")
    HOME.mkdir()
    _mount(f"/proc/self/fd/{own}", str(HOME), flags=MS_BIND)
    PROGRAM.touch()
    _mount(f"/proc/self/fd/{kube}", str(PROGRAM), flags=MS_BIND)
    for name, place in ROOMS.items():
        room = HOME / name
        room.mkdir(exist_ok=True)
        _mount(str(room), place, flags=MS_BIND)
    for name, value in POLITE.items():
        shown = HOME / f"shown-{name}"
        shown.write_text(f"{value}\n")
        _mount(str(shown), f"/proc/sys/{name.replace('.', '/')}", flags=MS_BIND)


def _join_network(network: dict[str, str]) -> None:
    _run("ip", "link", "set", "lo", "up")
    while "eth0" not in {name for _, name in socket.if_nameindex()}:
        time.sleep(0.02)
    _run("ip", "address", "add", f"{network['node']}/30", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    _run("ip", "route", "add", "default", "via", network["host"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    # The host has no route to pods, so packets to it get the address of the node.
    rules = (
        "table ip stack { chain leave { type nat hook postrouting priority 100;"
        f" ip saddr {network['pods']} oifname eth0 masquerade\n}}\n}}"
    )
    _run("nft", rules)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class _Node:
    def __init__(self) -> None:
        self._running: dict[int, tuple[subprocess.Popen[bytes], dict[str, Any]]] = {}

    def take(self, step: dict[str, Any]) -> None:
        """Take one step of the plan: run, start, or wait."""
        match step:
            case {"run": command}:
                _run(*command)
            case {"start": _, "command": _}:
                self._start(step)
            case {"until": command}:
                while subprocess.run(command, capture_output=True, check=False).returncode:
                    time.sleep(0.05)
            case {"until_ready": address}:
                while not _is_ready(address):
                    time.sleep(0.05)

    def _start(self, step: dict[str, Any]) -> None:
        with (HOME / f"{step['start']}.log").open("ab") as log:
            child = subprocess.Popen(
                step["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._running[child.pid] = (child, step)

    def keep(self) -> Never:
        """Reap processes that ended, orphans too; restart those that should run."""
        while True:
            pid, status = os.wait()
            if pid in self._running:
                _, step = self._running.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                print(f"{step['start']} ended with {code}; it is started again", flush=True)
                time.sleep(1)
                self._start(step)


def _is_ready(address: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, timeout=3, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
