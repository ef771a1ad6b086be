import io
import json
import logging
import logging.handlers
import queue
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from postroad.cli.processes.operator_command import operator
from postroad.telemetry import logs

FOUND_OUT = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
"""The switches by which `logging` finds out more about each record."""


@pytest.fixture
def untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    found_out = {name: getattr(logging, name) for name in FOUND_OUT}
    yield
    root.handlers[:], root.level = before
    for name, value in found_out.items():
        setattr(logging, name, value)


def test_a_program_that_configured_nothing_sees_no_debug_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.logger("test").debug("connected", server="x")

    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("untouched_root")
def test_fields_and_errors_stand_in_one_line_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("INFO", as_json=True)

    try:
        raise ValueError("why")
    except ValueError:
        logs.logger("test").bind(queue="mail.outgoing").exception("it failed", attempt=3)
    logging.getLogger("elsewhere").info("a line of a library")

    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert (first["event"], first["queue"], first["attempt"]) == ("it failed", "mail.outgoing", 3)
    assert first["logger"] == "postroad.test"
    assert "ValueError: why" in first["exception"]
    assert datetime.fromisoformat(first["timestamp"]).tzinfo is UTC
    assert second["event"] == "a line of a library"


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize("is_configured", [True, False])
def test_a_handler_of_the_program_gets_what_the_standard_library_gives(
    is_configured: bool,
) -> None:
    """All parts of a record may be formatted; those that `configure` leaves out are None, as they
    are in other records then."""
    if is_configured:
        logs.configure("INFO", as_json=True)
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    root = logging.getLogger()
    root.addHandler(logging.handlers.QueueHandler(records))
    root.setLevel("INFO")

    logs.logger("test").info("it happened %s", "twice", count=2)
    logging.getLogger("postroad.test").info("it happened %s", "twice", extra={"count": 2})

    ours, theirs = vars(records.get()), vars(records.get())
    assert ours.keys() == theirs.keys()
    place = {"pathname", "filename", "module", "lineno", "funcName"}
    alike = ours.keys() - place - {"created", "msecs", "relativeCreated"}
    assert {name: ours[name] for name in alike} == {name: theirs[name] for name in alike}
    assert ours["message"] == "it happened twice"


@pytest.mark.usefixtures("untouched_root")
def test_a_field_named_as_a_part_of_the_record_changes_only_its_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.configure("INFO", as_json=True)

    logs.logger("test").info("it happened", created="a table", name="x", place="here")

    (line,) = (json.loads(each) for each in capfd.readouterr().err.splitlines())
    assert (line["created_"], line["name_"], line["place"]) == ("a table", "x", "here")
    assert line["logger"] == "postroad.test"


@pytest.mark.parametrize(
    ("created", "written"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1_795_262_399.999999, "2026-11-21T11:59:59.999999Z"),
        (1_795_262_400.0, "2026-11-21T12:00:00.000000Z"),
        (1_795_262_400.05, "2026-11-21T12:00:00.050000Z"),
    ],
)
def test_a_line_says_its_moment_to_the_microsecond(created: float, written: str) -> None:
    record = logging.makeLogRecord({"msg": "it happened", "created": created})

    assert json.loads(logs.JsonLines().format(record))["timestamp"] == written


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize(("is_terminal", "begins"), [(True, "\x1b"), (False, "{")])
def test_people_read_text_on_a_terminal_and_programs_read_json(
    is_terminal: bool, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    monkeypatch.setattr(output, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stderr", output)

    logs.configure("INFO")
    logs.logger("intake").info("listening", address="127.0.0.1:25")

    line = output.getvalue()
    assert line.startswith(begins)
    assert "listening" in line
    assert "127.0.0.1:25" in line


@pytest.mark.parametrize("given", [("--log-level", "loud"), ("--log-level", "debug")])
def test_the_operator_names_the_levels_that_there_are(given: tuple[str, ...]) -> None:
    done = CliRunner().invoke(operator, [*given, "--check"])

    assert done.exit_code == 2
    assert all(each in done.output for each in ("'DEBUG'", "'INFO'", "'WARNING'", "'ERROR'"))
