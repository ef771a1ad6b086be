"""A worker reports as its settings decide, and warns where its reports would be refused."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from postroad.cli.processes.delivering import reporting_of
from postroad.domain.delivery.retries import RetryPlan
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from support.recording_queue import RecordingQueue

QUEUE = cast("MailQueue", RecordingQueue())


def is_reporting(**variables: str) -> bool:
    settings = from_environment({f"POSTROAD_{name}": text for name, text in variables.items()})
    return reporting_of(settings, QUEUE, RetryPlan()) is not None


def test_reports_are_made_unless_they_are_switched_off() -> None:
    assert is_reporting()
    assert not is_reporting(REPORTS_ENABLED="false")


@pytest.mark.parametrize(
    ("machine", "variables", "warnings"),
    [
        ("pod-1", {}, 1),
        ("pod-1", {"HOSTNAME": "mx.example.org"}, 0),
        ("pod-1", {"REPORTS_AUTHOR": "reports@x.example"}, 0),
        ("pod-1", {"REPORTS_ENABLED": "false"}, 0),
        ("mx.example.org", {}, 0),
    ],
)
def test_a_name_that_servers_refuse_is_named_at_the_start(
    machine: str,
    variables: dict[str, str],
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: machine)

    is_reporting(**variables)

    assert len([each for each in caplog.records if "POSTROAD_HOSTNAME" in each.message]) == warnings
