"""What every long-running command begins with."""

from __future__ import annotations

import resource

import pytest

from postroad.cli.serving import run
from postroad.settings import Settings
from postroad.telemetry import logs


def test_a_long_running_command_may_open_all_the_files_that_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    found = []

    async def main() -> None:
        found.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    try:
        run(Settings(), main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert found == [(hard, hard)]
