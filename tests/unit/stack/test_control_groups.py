"""The control groups of a cluster: which layout, which controllers, which paths."""

from pathlib import Path

import pytest

from stack import control_groups
from stack.errors import MissingRequirement, StackError

DEBIAN_12 = "cpuset cpu io memory hugetlb pids rdma misc"


def unified(root: Path, controllers: str = DEBIAN_12) -> Path:
    """Make what a machine with cgroup v2 shows; return the group `pr-1`, as the kernel fills it."""
    for group in (root, root / "pr-1"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text(f"{controllers}\n")
        (group / "cgroup.subtree_control").write_text("memory pids\n")
    return root / "pr-1"


def hierarchies(root: Path, *names: str) -> None:
    """Make what a machine with cgroup v1 shows, with a hierarchy of v2 without controllers."""
    for name in (*names, "systemd", "unified"):
        (root / name).mkdir()
    (root / "unified/cgroup.controllers").write_text("\n")
    for setting, value in (("cpuset.cpus", "0-1"), ("cpuset.mems", "0")):
        if (root / "cpuset").exists():
            (root / "cpuset" / setting).write_text(value)


def test_the_layout_is_that_of_the_root(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    hierarchies(one, "memory")
    unified(two)

    assert (control_groups.version(one), control_groups.version(two)) == (1, 2)


def test_both_layouts_have_what_the_kubelet_needs(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    hierarchies(one, "cpu,cpuacct", "cpuset", "memory")
    unified(two)

    control_groups.check(one)
    control_groups.check(two)


@pytest.mark.parametrize(
    ("present", "absent"),
    [("cpu io memory pids", "cpuset"), ("cpuset cpu io pids", "memory"), ("", "cpu, cpuset")],
)
def test_controllers_that_v2_lacks_are_named(tmp_path: Path, present: str, absent: str) -> None:
    unified(tmp_path, present)

    with pytest.raises(MissingRequirement, match=rf"the controllers {absent}.* of cgroup v2"):
        control_groups.check(tmp_path)


def test_hierarchies_that_v1_lacks_are_named(tmp_path: Path) -> None:
    hierarchies(tmp_path, "cpu,cpuacct", "memory", "pids")

    with pytest.raises(MissingRequirement, match="the controllers cpuset of cgroup v1"):
        control_groups.check(tmp_path)


def test_with_v2_root_and_group_hand_on_what_the_kubelet_looks_for(tmp_path: Path) -> None:
    group = unified(tmp_path)

    control_groups.make("pr-1", tmp_path)

    handed = [(each / "cgroup.subtree_control").read_text() for each in (tmp_path, group)]
    assert handed == ["+cpu +cpuset +hugetlb +memory +pids"] * 2


def test_with_v2_what_a_machine_lacks_is_not_handed_on(tmp_path: Path) -> None:
    group = unified(tmp_path, "cpuset cpu memory pids")

    control_groups.make("pr-1", tmp_path)

    assert (group / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"


def test_a_root_that_hands_nothing_on_is_named_with_a_way_out(tmp_path: Path) -> None:
    unified(tmp_path)
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "cgroup.subtree_control").mkdir()  # the kernel refuses the write: EBUSY

    with pytest.raises(StackError, match=r"does not hand on its controllers .*outside"):
        control_groups.make("pr-1", tmp_path)


def test_with_v1_each_hierarchy_gets_the_group_and_cpuset_its_settings(tmp_path: Path) -> None:
    hierarchies(tmp_path, "cpu,cpuacct", "cpuset", "memory")
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")

    control_groups.make("pr-1", tmp_path)

    made = {path.parent.name for path in tmp_path.glob("*/pr-1") if not path.parent.is_symlink()}
    assert made == {"cpu,cpuacct", "cpuset", "memory", "systemd"}
    assert (tmp_path / "cpuset/pr-1/cpuset.cpus").read_text() == "0-1"
    assert (tmp_path / "cpuset/pr-1/cpuset.mems").read_text() == "0"


def test_a_weighed_group_has_the_cpu_of_many_processes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    hierarchies(one, "cpu", "cpuset")
    unified(two)
    control_groups.make("pr-1", one)

    control_groups.weigh("pr-1", one)
    control_groups.weigh("pr-1", two)

    assert (one / "cpu/pr-1/cpu.shares").read_text() == "20480"
    assert (two / "pr-1/cpu.weight").read_text() == "2000"


def test_what_is_left_comes_innermost_first_and_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    hierarchies(one, "cpu,cpuacct")
    (one / "cpu").symlink_to("cpu,cpuacct")
    unified(two)
    for top in (one / "cpu,cpuacct", one / "unified", two):
        (top / "pr-1/kubepods").mkdir(parents=True)
        (top / "pr-2").mkdir()

    assert sorted(control_groups.left("pr-1", one), reverse=True) == [
        one / "unified/pr-1/kubepods", one / "unified/pr-1",
        one / "cpu,cpuacct/pr-1/kubepods", one / "cpu,cpuacct/pr-1",
    ]  # fmt: skip
    assert control_groups.left("pr-1", two) == [two / "pr-1/kubepods", two / "pr-1"]
    assert control_groups.left("pr-3", two) == []
