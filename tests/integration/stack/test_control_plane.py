"""An API server alone: two side by side, each with its own objects."""

import time
from collections.abc import Callable
from pathlib import Path

from stack.control_plane import ControlPlane
from stack.local import Stack
from stack.native import NativeServer
from stack.progress import Progress
from stack.server import State


def test_two_run_side_by_side_and_keep_their_objects(
    prepared: Callable[[str], NativeServer], own_stack: Stack, tmp_path: Path
) -> None:
    prepared("apiserver")
    planes = [ControlPlane(tmp_path / name) for name in ("one", "two")]
    try:
        for plane in planes:
            plane.start(Progress(quiet=True))
        planes[0].kubectl("create", "configmap", "letter", "--from-literal=to=one")
        planes[0].kill()
        planes[0].start(Progress(quiet=True))

        names = [plane.kubectl("get", "configmaps", "-o", "name") for plane in planes]
    finally:
        for plane in planes:
            plane.remove()

    assert "configmap/letter" in names[0]
    assert "configmap/letter" not in names[1]
    assert [plane.state() for plane in planes] == [State.ABSENT, State.ABSENT]


def test_it_starts_fast(prepared: Callable[[str], NativeServer], own_stack: Stack) -> None:
    plane = prepared("apiserver")

    begun = time.monotonic()
    own_stack.up(["apiserver"])
    took = time.monotonic() - begun
    own_stack.down(["apiserver"])

    assert took < 60, "three to six seconds on an idle machine"
    assert plane.state() is State.ABSENT
