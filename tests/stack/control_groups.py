"""The control groups of the native Kubernetes, and of a Docker engine of the stack's own.

With cgroup v1, each controller has a hierarchy, a folder below the root. With v2 there is one
hierarchy: a group has a controller when all groups above it hand the controller on. The kubelet and
dockerd make groups below one group of ours; they find out the layout themselves.

Linux describes both in admin-guide/cgroup-v1 and admin-guide/cgroup-v2; what the kubelet looks for
is in its pkg/kubelet/cm.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from pathlib import Path

from stack.errors import MissingRequirement, StackError

ROOT = Path("/sys/fs/cgroup")

NEEDED = {1: ("cpu", "cpuacct", "cpuset", "memory"), 2: ("cpu", "cpuset", "memory", "pids")}
"""What the kubelet needs, by the version of the layout. Accounting of CPU is always on with v2."""

HANDED_ON = ("cpu", "cpuset", "hugetlb", "memory", "pids")
"""What the kubelet looks for in its group where the machine has it, with v2."""

WEIGHT = 20
"""The CPU of a weighed group, in processes of default priority."""

INHERITED = ("cpuset.cpus", "cpuset.mems")
"""With v1, files that are empty in a new group, to which no process can be added then."""


def version(root: Path = ROOT) -> int:
    """Return the version of the layout that the machine was booted with. A machine with hierarchies
    of v1 beside one of v2 counts as v1: its controllers are there."""
    return 2 if (root / "cgroup.controllers").exists() else 1


def check(root: Path = ROOT) -> None:
    """Look for the controllers that the kubelet needs.

    Raises:
        MissingRequirement: some of them are not there.
    """
    layout, present = version(root), _present(root)
    absent = [name for name in NEEDED[layout] if name not in present]
    if absent:
        raise MissingRequirement(
            f"a native Kubernetes needs the controllers {', '.join(absent)} of cgroup v{layout},"
            f" which {root} does not have: the kernel lacks them, its command line switches them"
            " off (cgroup_disable=), or a container hides them (or use a Docker engine)"
        )


def make(name: str, root: Path = ROOT) -> None:
    """Make a group, which has all controllers for groups below it. Idempotent.

    Raises:
        StackError: with v2, the machine's root hands no controllers on.
    """
    if version(root) == 2:
        (root / name).mkdir(exist_ok=True)
        # systemd takes from the root what none of its units uses; the kernel refuses that while a
        # group of ours hands it on.
        for folder in (root, root / name):
            _hand_on(folder)
        return
    for hierarchy in _folders(root):
        if hierarchy.name != "unified":
            (hierarchy / name).mkdir(exist_ok=True)
    for setting in INHERITED:
        value = (root / "cpuset" / setting).read_text()
        (root / "cpuset" / name / setting).write_text(value)


def weigh(name: str, root: Path = ROOT) -> None:
    """Let a group that `make` made have as much CPU as many processes of the machine: without it,
    the scheduler gives all that runs in the group together what it gives one other process."""
    if version(root) == 2:
        (root / name / "cpu.weight").write_text(str(WEIGHT * 100))
    else:
        (root / "cpu" / name / "cpu.shares").write_text(str(WEIGHT * 1024))


def left(name: str, root: Path = ROOT) -> Sequence[Path]:
    """Return a group and those below it, the innermost first."""
    hierarchies = [root] if version(root) == 2 else _folders(root)
    return [
        Path(folder)
        for hierarchy in hierarchies
        for folder, _, _ in os.walk(hierarchy / name, topdown=False)
    ]


def _folders(root: Path) -> list[Path]:
    """Return the folders of v1's hierarchies; `cpu` may be a link to `cpu,cpuacct`."""
    return [each for each in root.iterdir() if each.is_dir() and not each.is_symlink()]


def _present(root: Path) -> Set[str]:
    if version(root) == 2:
        return set((root / "cgroup.controllers").read_text().split())
    return {part for each in _folders(root) for part in each.name.split(",")}


def _hand_on(folder: Path) -> None:
    """Let the groups below this one have what the kubelet looks for."""
    present = (folder / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in HANDED_ON if name in present)
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        raise StackError(
            f"{folder} does not hand on its controllers ({error.strerror}): in a container,"
            " processes in this group prevent that. Run the stack outside of the container, or use"
            " a Docker engine"
        ) from error
