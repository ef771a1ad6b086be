"""Alerts of the chart, over recorded series: each fires in its fault, and none on a quiet day."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.record import FOLDER, RULES, used
from postroad.telemetry import metrics
from support.repository import ROOT

pytestmark = pytest.mark.needs("promtool")

FIRING: Mapping[str, set[str]] = {
    "servers_away": {"EnqueueFailing", "NotReady"},
    "no_worker": {"MailNotTaken"},
    "next_hop_defers": {"DeliveriesDeferred"},
    "next_hop_refuses": {"MailGivenUp"},
    "a_row_is_lost": {"VanishedRows"},
    "a_newer_release_wrote": {"UndecodableRecords"},
    "a_machine_was_paused": {"LateMails"},
    "maintenance_meets_a_bug": {"MaintenanceErrors"},
    "a_wrong_clock": {"WrongClock"},
    "the_archive_does_not_come": {"UnarchivedSlices"},
    "the_view_was_restored": {"BucketNotOwned"},
    "a_bad_delivery_file": {"DeliveryFileRefused"},
    "mail_waits_in_an_outbox": {"OutboxWaits", "OutboxRefused"},
    "the_lease_is_lost": {"NoLeader"},
    "the_api_server_refuses": {"NotReady", "ReconcileFailing"},
    "the_api_server_is_slow": {"NotReady", "OperatorBehind"},
    "another_controller": {"RepairsRepeated"},
    "an_image_that_never_gets_ready": {"NotReady", "UpgradeStopped"},
    "a_pipeline_with_a_bad_schedule": {"PipelineFailing"},
    "a_task_fails_each_night": {"ScheduledTaskFailing"},
    "quiet_day": set(),
}
"""For each scene the alerts that fire in it, and no other does."""

HAS_NO_OPERATOR = {
    "a_row_is_lost", "a_newer_release_wrote", "a_machine_was_paused", "maintenance_meets_a_bug",
    "a_wrong_clock", "the_archive_does_not_come", "the_view_was_restored", "a_bad_delivery_file",
    "an_image_that_never_gets_ready", "mail_waits_in_an_outbox",
}  # fmt: skip
"""Scenes of workers alone, or without an election: no operator is scraped."""


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def recorded(scene: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{scene}.yaml").read_text())
    return found


def test_every_alert_has_a_scene_in_which_it_fires() -> None:
    alerts = {each["alert"].removeprefix("Postroad") for each in rules()}

    assert set().union(*FIRING.values()) == alerts
    assert FIRING.keys() == {each.stem for each in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("scene", FIRING)
def test_these_alerts_and_no_others_fire(scene: str, tmp_path: Path) -> None:
    series = recorded(scene)
    expected = FIRING[scene] | ({"NoLeader"} if scene in HAS_NO_OPERATOR else set())
    minutes = series["minutes"]
    if scene in HAS_NO_OPERATOR and minutes < 6:
        expected.discard("NoLeader")

    done = fired(tmp_path, series["input_series"], minutes, expected)

    assert done.returncode == 0, done.stdout + done.stderr


def fired(
    tmp_path: Path, series: Sequence[Mapping[str, str]], minutes: int, expected: set[str]
) -> subprocess.CompletedProcess[str]:
    """Return what promtool reports of series over which exactly these alerts are to fire."""
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (last_over_time(ALERTS{alertstate="firing"}[2d]))',
                "eval_time": f"{minutes - 1}m",
                "exp_samples": [
                    {"labels": f'{{alertname="Postroad{each}"}}', "value": 1}
                    for each in sorted(expected)
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]})
    )

    return subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=120
    )


def test_retries_of_a_few_mails_at_night_are_no_alert(tmp_path: Path) -> None:
    """A site that is gone defers three mails every quarter of an hour, and no other mail goes."""
    labels = '{namespace="mail",name="outgoing",outcome="deferred"}'
    series = [
        {
            "series": f"postroad_attempted_recipients_total{labels}",
            "values": " ".join(f"{each}x4" for each in range(100)),
        }
    ]
    done = fired(tmp_path, series, 480, {"NoLeader"})

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("queued", "expected"), [(1000, {"NoLeader"}), (20, {"NoLeader", "EnqueueFailing"})]
)
def test_failed_enqueues_are_an_alert_beyond_a_tenth_of_all(
    tmp_path: Path, queued: int, expected: set[str]
) -> None:
    """Each minute some mails are queued and ten are not, as while a server restarts."""
    queue = 'namespace="mail",name="outgoing"'
    series = [
        {"series": f"postroad_enqueued_mails_total{{{queue}}}", "values": f"0+{queued}x30"},
        {
            "series": f'postroad_enqueue_failures_total{{{queue},reason="broker"}}',
            "values": "0+10x30",
        },
    ]
    done = fired(tmp_path, series, 30, expected)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scene", ["a_row_is_lost", "the_lease_is_lost"])
def test_a_scene_is_still_recorded_as_its_file_has_it(scene: str) -> None:
    """In a process of its own, whose counters begin at 0."""
    program = f"from alerts.record import record; print(record({scene!r}), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == (FOLDER / f"{scene}.yaml").read_text()


def test_a_quiet_day_is_a_day_with_mail() -> None:
    day = recorded("quiet_day")
    names = {each["series"].partition("{")[0] for each in day["input_series"]}

    assert day["minutes"] >= 24 * 60
    assert {"postroad_ended_items_total", "postroad_resource_condition"} <= names


def test_recordings_hold_metrics_that_exist_and_no_address() -> None:
    labels = {"job", "pod", "namespace"}
    known = {
        each._name.removesuffix("_total"): labels | {*each._labelnames}
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }
    for scene in FIRING:
        for each in recorded(scene)["input_series"]:
            name = each["series"].partition("{")[0]
            assert "@" not in each["series"]
            assert "example" not in each["series"]
            assert set(re.findall(r'(\w+)="', each["series"])) <= known[name.removesuffix("_total")]


def test_expressions_use_metrics_and_labels_that_exist() -> None:
    known = {
        each._name.removesuffix("_total"): set(each._labelnames)
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }

    assert {each.removesuffix("_total") for each in used()} <= known.keys()
    for rule in rules():
        for name, matchers in re.findall(r"(postroad_\w+)(?:\{([^}]*)\})?", rule["expr"]):
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= known[name.removesuffix("_total")]


# Runbooks


def section_of(rule: dict[str, Any]) -> str:
    """Return the section of a runbook that an alert names."""
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    sections = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)[1:]
    (found,) = [each for each in sections if each.partition("\n")[0].lower() == anchor]
    return found


@pytest.mark.parametrize("rule", [*rules()], ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook_that_begins_with_a_command(rule: dict[str, Any]) -> None:
    section = section_of(rule)

    assert section.partition("\n")[0] == rule["alert"]
    command = re.search(r"^```console\n\$ (.*)$", section, re.MULTILINE)
    assert command, "the first thing is a command that shows what is wrong"
    assert shlex.split(command[1])[0] == "kubectl"
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert len(rule["annotations"]["summary"]) > 20
