"""The log has a line for each action, with the resource whose reconcile acted; none at rest."""

from __future__ import annotations

import ast
import logging
import re
from typing import Any

import pytest

from postroad.controller.kubernetes.api import DEPLOYMENT, MAIL_QUEUE
from support.manual_loop import move, run
from support.memory.fault_injection import Step
from support.repository import ROOT
from support.resources import workers
from support.running_controller import running_controller

CONTROLLER = ROOT / "operator/postroad/controller"
REFERENCE = ROOT / "docs/operator/events.md"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "postroad.controller")
    return Lines(caplog)


class Lines:
    """The lines of the controller, as their fields."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def taken(self) -> list[dict[str, Any]]:
        """Return the lines so far, and forget them."""
        found = [{**vars(each), "event": each.getMessage()} for each in self._caplog.records]
        self._caplog.clear()
        return [each for each in found if each["levelno"] >= logging.INFO]


def test_each_action_has_a_line_with_its_resource(lines: Lines) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), deletionPolicy="Delete")
            made = lines.taken()
            children = {each["child"] for each in made if each["event"] == "applied a child"}
            assert "Deployment outgoing-worker" in children
            assert {"set a finalizer", "tables changed", "changed a condition"} <= {
                each["event"] for each in made
            }
            for each in made:
                assert each["resource"] in ("MailQueue mail/outgoing", "QueueCluster mail/main")
                assert each["generation"] == 1

            await move(700)
            assert lines.taken() == []

            await operator.delete(DEPLOYMENT, "outgoing-worker")
            await move(2)
            (repaired,) = (each for each in lines.taken() if "child" in each)
            assert repaired["child"] == "Deployment outgoing-worker"
            assert (repaired["event"], repaired["was"]) == ("repaired", "deleted")

            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(5)
            ended = lines.taken()
            assert len({each["reconcile"] for each in ended}) >= 2
            erased = {each["what"] for each in ended if each["event"] == "deleted"}
            assert "rows of mail.outgoing in Cassandra" in erased

    run(scene())


def logged_events() -> set[str]:
    calls = (
        node
        for path in CONTROLLER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "log_action"
    )
    return {
        each.value
        for call in calls
        for each in ast.walk(call.args[0])
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_the_documents_list_every_action_that_has_a_line() -> None:
    _, _, table = REFERENCE.read_text().partition("| line | more fields | when |\n")
    rows = re.findall(r"^\| `([a-z ]+)` \| (?:`[^|]*)?\| ", table.split("\n\n")[0], re.MULTILINE)

    assert sorted(rows) == sorted(logged_events())
    assert "repaired" in rows


def test_an_unexpected_error_names_its_resource(lines: Lines) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()

            def broken(step: Step) -> None:
                if step.operation == "declare":
                    raise ZeroDivisionError

            operator.faults.plan = broken
            await operator.change({"retry": {"maxAge": "48h"}})
            await move(3)
            errors = [each for each in lines.taken() if each["levelno"] == logging.ERROR]
            assert errors
            assert {each["resource"] for each in errors} == {"MailQueue mail/outgoing"}

    run(scene())
