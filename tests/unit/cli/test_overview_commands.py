"""`kubectl mailqueue status|events|top|config`, with a script in place of kubectl."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from postroad.cli import kubectl_mailqueue
from postroad.cli.kubectl.overview import row_of
from postroad.cli.tables import Rates
from postroad.domain.configuration.documents import to_document
from postroad.domain.configuration.history import decide
from postroad.domain.configuration.rules import ViewConfiguration
from support.fake_kubectl import folder

__all__ = ["folder"]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(kubectl_mailqueue, arguments)
    assert result.exit_code == 0, result.output
    return result


def condition(which: str, status: str, reason: str = "AsDeclared") -> dict[str, str]:
    return {"type": which, "status": status, "reason": reason, "message": f"{which}: why"}


def a_queue(name: str = "outgoing", size: int | None = 12, **status: Any) -> dict[str, Any]:
    counts = {} if size is None else {"size": size, "delayed": 2, "held": 1, "deadLetters": 3}
    return {
        "metadata": {"name": name, "namespace": "mail", "uid": name},
        "spec": {},
        "status": {"workers": {"ready": 1, "desired": 2}, **counts, **status},
    }


def a_task(name: str, queue: str, phase: str) -> dict[str, Any]:
    status = {"phase": phase, "message": "Purge: 4 of 12 mails"}
    return {
        "metadata": {"name": name},
        "spec": {"queueRef": {"name": queue}},
        "status": status,
    }


def put(folder: Path, name: str, content: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_a_status_has_what_is_not_good_the_mails_the_pods_and_the_tasks_that_go_on(
    folder: Path,
) -> None:
    conditions = [
        condition("Ready", "False", "PodsNotReady"),
        condition("WorkersReady", "False", "PodsNotReady") | {"message": "Ready: why"},
        condition("IntakeReady", "False", "PodsNotReady"),
        condition("ViewReady", "True"),
        condition("Paused", "True", "PausedByUser"),
    ]
    put(folder, "outgoing", a_queue(conditions=conditions))
    tasks = [
        a_task("now", "outgoing", "Running"),
        a_task("past", "outgoing", "Completed"),
        a_task("elsewhere", "other", "Running"),
    ]
    put(folder, "mailqueuetasks.postroad.dev", {"items": tasks})

    text = run("status", "outgoing").output

    assert "ready      False  PodsNotReady: Ready: why" in text
    assert "WorkersReady" not in text, "Ready says the same"
    assert "IntakeReady (PodsNotReady): IntakeReady: why" in text
    assert "Paused (PausedByUser)" in text
    assert "ViewReady" not in text
    assert "12 waiting (2 delayed, 1 held), 3 dead letters" in text
    assert "workers    1 of 2 ready" in text
    assert "task       now  Running  Purge: 4 of 12 mails" in text
    assert "past" not in text
    assert "elsewhere" not in text
    assert json.loads(run("status", "outgoing", "--json").output)["status"]["size"] == 12


def test_the_status_of_a_new_queue_says_that_nothing_is_known(folder: Path) -> None:
    put(folder, "outgoing", {"metadata": {"name": "outgoing"}, "spec": {}})

    text = run("status", "outgoing").output

    assert "ready      Unknown  the operator has not looked at it yet" in text
    assert "- waiting" in text


def test_events_are_listed_oldest_first_with_how_often_they_happened(folder: Path) -> None:
    old = {
        "type": "Normal",
        "reason": "Ready",
        "message": "all",
        "eventTime": "2026-01-01T10:00:00Z",
    }
    series = {"count": 5, "lastObservedTime": "2026-01-02T10:00:00.123456Z"}
    new = {"type": "Warning", "reason": "Repaired", "message": "a\x1bb", "series": series}
    put(folder, "events", {"items": [new, old]})

    lines = run("events", "outgoing").output.splitlines()

    assert lines[0].startswith("2026-01-01T10:00:00Z  Normal   Ready  all")
    assert lines[1].startswith("2026-01-02T10:00:00Z  Warning  Repaired  a")
    assert lines[1].endswith("(5 times)")
    assert "\x1b" not in lines[1]
    assert "involvedObject.name=outgoing" in (folder / "calls").read_text()


def test_a_table_has_the_largest_queue_first_and_those_without_a_size_last(folder: Path) -> None:
    queues = [a_queue("a", 1), a_queue("b", 30), a_queue("c", None)]
    put(folder, "mailqueues.postroad.dev", {"items": queues})

    head, *rows = run("top", "--once", "-A").output.splitlines()

    assert head.split()[:5] == ["NAMESPACE", "NAME", "READY", "WORKERS", "SIZE"]
    assert [row.split()[1] for row in rows] == ["b", "a", "c"]
    assert rows[0].split() == ["mail", "b", "Unknown", "1/2", "30", "2", "1", "3", "-"]
    assert "--all-namespaces" in (folder / "calls").read_text()


def test_top_as_json_has_the_numbers_of_each_status_by_name_once(folder: Path) -> None:
    queues = [a_queue("a", 1), a_queue("b", 30), a_queue("c", None)]
    put(folder, "mailqueues.postroad.dev", {"items": queues})

    lines = [json.loads(each) for each in run("top", "--json", "-A").output.splitlines()]

    assert [(each["name"], each["size"]) for each in lines] == [("b", 30), ("a", 1), ("c", None)]
    assert lines[0]["namespace"] == "mail"
    assert (lines[0]["ready"], lines[0]["deadLetters"]) == ("Unknown", 3)
    assert (lines[0]["workers"]["ready"], lines[0]["workers"]["desired"]) == (1, 2)


def test_a_table_without_queues_is_its_head(folder: Path) -> None:
    put(folder, "mailqueues.postroad.dev", {"items": []})

    assert run("top", "--once").output.split()[0] == "NAMESPACE"


def test_the_change_of_a_size_is_that_since_the_one_before() -> None:
    rates = Rates()
    rates._before["outgoing"] = (time.monotonic() - 100, 212)

    assert row_of(a_queue(size=12), rates)[-1] == "-2.0"
    assert row_of(a_queue(size=12), rates)[-1] == "-"


def test_an_interval_below_a_second_is_refused(folder: Path) -> None:
    result = CliRunner().invoke(kubectl_mailqueue, ["top", "--every", "0s"])

    assert result.exit_code == 2
    assert "at least 1s" in result.output


def test_the_history_of_a_configuration_is_that_of_the_status(folder: Path) -> None:
    event = decide((), ViewConfiguration(bucket_count=3), at=datetime.now(UTC)).event
    assert event is not None
    put(folder, "outgoing", a_queue(history=[to_document(event)]))

    assert "v1" in run("config", "history", "outgoing").output
    assert "Usage" in run("config", "plan", "--help").output
