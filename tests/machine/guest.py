"""Inside the machine: attaches its disk, then takes and delivers mail, or lists what waits."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

FINIT_MODULE = 313
SET_SOCKET, SET_BLOCK_SIZE, DO_IT, SET_BLOCKS, SET_FLAGS = 0xAB00, 0xAB01, 0xAB03, 0xAB07, 0xAB0A
HAS_FLAGS, SENDS_FLUSH, SENDS_FUA = 1, 4, 8
BLOCK = 4096
DEVICE, MOUNT = "/dev/nbd0", "/mnt"
QUEUE = f"embedded://{MOUNT}/store"


def main() -> int:
    """Do the task that the kernel's command line names."""
    given = os.environ
    outside = given["GUEST_OUTSIDE"]
    attach(Path(given["GUEST_MODULE"]), outside, int(given["GUEST_DISK"]), int(given["GUEST_SIZE"]))
    subprocess.run(["mount", "-t", "ext4", DEVICE, MOUNT], check=True)
    if given["GUEST_TASK"] == "list":
        return list_waiting(outside, int(given["GUEST_SINK"]))
    return take_mail(given["GUEST_ADDRESS"], outside, int(given["GUEST_SINK"]))


def attach(module: Path, outside: str, port: int, size: int) -> None:
    """Make the disk outside a block device here. A child keeps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with module.open("rb") as file:
        if libc.syscall(FINIT_MODULE, file.fileno(), b"", 0):
            raise OSError(ctypes.get_errno(), f"the kernel refuses {module}")
    connection = socket.create_connection((outside, port), timeout=10)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    device = os.open(DEVICE, os.O_RDWR)
    fcntl.ioctl(device, SET_BLOCK_SIZE, BLOCK)
    fcntl.ioctl(device, SET_BLOCKS, size // BLOCK)
    fcntl.ioctl(device, SET_FLAGS, HAS_FLAGS | SENDS_FLUSH | SENDS_FUA)
    fcntl.ioctl(device, SET_SOCKET, connection.fileno())
    if os.fork() == 0:
        fcntl.ioctl(device, DO_IT)
        os._exit(0)
    while not Path("/sys/block/nbd0/pid").exists():  # until then, every read fails
        time.sleep(0.01)


def take_mail(address: str, outside: str, sink: int) -> int:
    """Run the mail server, with a sync undone where that is asked for."""
    undone = os.environ.get("GUEST_UNDONE", "nothing")
    command = [
        *(sys.executable, "-m", "machine.unsynced", undone, "mta", "--queue", QUEUE),
        *("--listen", f"{address}:2525", "--relay-from", f"{outside}/32"),
        *("--relay", f"{outside}:{sink}", "--tls", "none"),
        *("--concurrency", os.environ["GUEST_SESSIONS"]),
    ]
    return subprocess.run(command, env=os.environ | {"POSTROAD_HEALTH_PORT": "0"}).returncode


def list_waiting(outside: str, port: int) -> int:
    """Send the list of waiting mail outside, and at its end the exit code of the command."""
    command = [sys.executable, "-m", "postroad", "browse", "--queue", QUEUE, "--all", "--json"]
    with socket.create_connection((outside, port)) as connection:
        code = subprocess.run(command, stdout=connection.fileno(), check=False).returncode
        connection.sendall(f"{code}\n".encode())
        return code


if __name__ == "__main__":
    sys.exit(main())
