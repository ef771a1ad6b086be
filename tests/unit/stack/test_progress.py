"""What a waiting person reads."""

import io
import re
import time

import pytest

from stack import progress
from stack.progress import Progress


def test_a_step_ends_with_a_line_that_has_its_time() -> None:
    output = io.StringIO()

    with Progress(output).step("kube: build"):
        pass

    assert re.fullmatch(r"stack: kube: build: done \(\d+\.\d s\)\n", output.getvalue())


def test_a_failed_step_is_marked() -> None:
    output = io.StringIO()

    with pytest.raises(ValueError), Progress(output).step("kube: build"):
        raise ValueError

    assert "kube: build: FAILED" in output.getvalue()


def test_a_long_step_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.02)
    output = io.StringIO()
    shown = Progress(output)

    with shown.step("kube: build"):
        for _ in range(500):
            if "... kube: build" in output.getvalue():
                break
            time.sleep(0.01)
    shown.close()

    assert "stack: ... kube: build (0 s)" in output.getvalue()


def test_quiet_means_no_line() -> None:
    output = io.StringIO()

    with Progress(output, quiet=True).step("kube: build"):
        pass

    assert output.getvalue() == ""
