"""Lets the operator make executors, which it refuses to do in a release."""

from __future__ import annotations

import pytest

from postroad.controller import pipeline_children


@pytest.fixture(autouse=True)
def executors_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all tests of a module that has this name."""
    monkeypatch.setattr(pipeline_children, "EXECUTORS_RUN", True)
