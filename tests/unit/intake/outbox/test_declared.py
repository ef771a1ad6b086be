"""The outbox of a file of intake: what it may be, and where it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from postroad.cli import main
from postroad.errors import InvalidSettings
from postroad.intake_settings.intake_file import IntakeFile, read_intake
from postroad.intake_settings.outbox import OutboxUse


def written(folder: Path, outbox: Any) -> Path:
    file = folder / "intake.yaml"
    relay = {"name": "relay", "role": "relay", "port": 2525}
    file.write_text(yaml.safe_dump({"listeners": [relay], "outbox": outbox}))
    return file


def test_the_queue_comes_first_unless_declared(tmp_path: Path) -> None:
    outbox = read_intake(written(tmp_path, {"size": "10Gi"})).outbox

    assert outbox is not None
    assert (outbox.when, outbox.size) == (OutboxUse.UNAVAILABLE, 10 << 30)
    assert outbox.directory == Path("/var/lib/postroad/outbox")


@pytest.mark.parametrize(
    ("outbox", "problem"),
    [
        ({}, "size"),
        ({"size": "10GB"}, "size"),
        ({"size": "10Gi", "when": "Always"}, "when"),
        ({"size": "10Gi", "directory": "outbox"}, "directory"),
        ({"size": "10Gi", "storageClassName": "fast"}, "storageClassName"),
    ],
)
def test_another_outbox_is_refused(tmp_path: Path, outbox: Any, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        read_intake(written(tmp_path, outbox))


def test_an_outbox_is_taken_up_at_the_start_alone(tmp_path: Path) -> None:
    def fixed(outbox: Any) -> object:
        found: IntakeFile = read_intake(written(tmp_path, outbox))
        return found.fixed

    assert fixed({"size": "1Gi"}) != fixed({"size": "2Gi"})
    assert fixed({"size": "1Gi"}) != fixed(None)
    assert fixed({"size": "1Gi"}) == fixed({"size": "1024Mi"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["intake", "--queue", "embedded:///tmp/none"], "leave out `outbox`"),
        (["mta", "--queue", "distributed://a.b", "--relay", "127.0.0.1:1"], "`postroad intake`"),
    ],
)
def test_where_there_is_nothing_to_wait_for_an_outbox_is_refused(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    directory = str(tmp_path / "outbox")
    file = written(tmp_path, {"size": "1Gi", "directory": directory})

    result = CliRunner().invoke(main, [*arguments, "--intake", str(file)])

    assert result.exit_code != 0
    assert problem in result.output + result.stderr
    assert not Path(directory).exists()


def test_an_intake_with_an_outbox_takes_no_reports(tmp_path: Path) -> None:
    file = written(tmp_path, {"size": "10Gi"})
    declared = yaml.safe_load(file.read_text())
    declared["listeners"].append({"name": "mx", "role": "mx", "port": 25})
    declared["bounces"] = {"verpSecret": {"file": "verp.secret"}}
    file.write_text(yaml.safe_dump(declared))

    with pytest.raises(InvalidSettings, match="an intake of its own"):
        read_intake(file)
