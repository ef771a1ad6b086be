"""The processes of pods, which a cluster on this machine shares with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from support.kubectl import Manifest


def programs_of(pod: Manifest) -> list[int]:
    """Return the pod's processes that run postroad, as this machine numbers them."""
    uid = pod["metadata"]["uid"]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Systemd writes it in this way.
            group = (process / "cgroup").read_text().replace("_", "-")
            if f"pod{uid}" in group and b"postroad" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    assert found, "the pod's processes are not on this machine"
    return found


def restarts(pod: Manifest) -> int:
    """Return how often the containers of a pod were started again."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return sum(each["restartCount"] for each in statuses)
