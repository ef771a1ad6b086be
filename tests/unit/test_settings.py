import re
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any

import click
import pytest
from pydantic import BaseModel, SecretStr

from postroad.cli import kubectl_mailqueue, main
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidSettings
from postroad.settings import SECTIONS, Settings, from_environment
from support.repository import ROOT

PAGES = [ROOT / "docs/settings.md", *sorted((ROOT / "docs/settings").glob("*.md"))]
REFERENCE = "\n".join(page.read_text() for page in PAGES)
ROW = re.compile(r"^\| `(POSTROAD_\w+)` \| (?:`([^`]+)` )?\|", re.MULTILINE)


def test_settings_come_from_the_variables_that_name_them() -> None:
    settings = from_environment(
        {
            "POSTROAD_CASSANDRA_CONTACT_POINTS": "a.example, b.example",
            "POSTROAD_CASSANDRA_PORT": "9043",
            "POSTROAD_S3_BUCKET": "",
            "POSTROAD_LOG_LEVEL": "DEBUG",
            "POSTROAD_UNKNOWN": "of another program",
        }
    )

    assert settings.cassandra.contact_points == ("a.example", "b.example")
    assert settings.cassandra.port == 9043
    assert settings.s3.bucket is None
    assert settings.log_level == "DEBUG"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POSTROAD_CASSANDRA_PORT", "many"),
        ("POSTROAD_CASSANDRA_KEYSPACE", 'x"; DROP KEYSPACE y'),
        ("POSTROAD_LOG_LEVEL", "loud"),
        ("POSTROAD_HOSTNAME", "relay"),
        ("POSTROAD_HOSTNAME", "198.51.100.7"),
        ("POSTROAD_HOSTNAME", "münchen.example"),
        ("POSTROAD_HOSTNAME", "mx.example.org\r\nRCPT TO:<x@y.example>"),
        ("POSTROAD_HOSTNAME", "mx.example.org\n"),
        ("POSTROAD_REPORTS_AUTHOR", "mailer-daemon"),
        ("POSTROAD_REPORTS_AUTHOR", "a@x.example\r\nBcc: <b@y.example>"),
        ("POSTROAD_REPORTS_AUTHOR", "a@x.example\n"),
        ("POSTROAD_REPORTS_AUTHOR", "grün@x.example"),
        ("POSTROAD_REPORTS_ADMINISTRATOR", "Post Master <p@x.example>"),
        ("POSTROAD_REPORTS_PER_MINUTE", "0"),
    ],
)
def test_a_bad_value_is_refused_by_its_variable_without_being_shown(name: str, value: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        from_environment({name: value})

    assert name in str(caught.value)
    assert value not in str(caught.value)


def test_secrets_show_in_no_representation() -> None:
    settings = from_environment(
        {
            "POSTROAD_RABBITMQ_URI": "amqp://user:hunter2@host",
            "POSTROAD_CASSANDRA_PASSWORD": "hunter2",
            "POSTROAD_S3_SECRET_KEY": "hunter2",
        }
    )

    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()}"


def written(default: Any) -> str:
    """A default as a person would set it; empty where nothing is set."""
    match default:
        case None:
            return ""
        case SecretStr():
            return default.get_secret_value()
        case bool():
            return str(default).lower()
        case tuple():
            return ",".join(map(written, default))
        case timedelta():
            return format_duration(default)
        case Enum():
            return str(default.value)
    return str(default)


def defaults() -> dict[str, str]:
    """Every variable of the settings, with its default."""
    models: dict[str, type[BaseModel]] = {f"{name}_": each for name, each in SECTIONS.items()}
    return {
        f"POSTROAD_{section}{name}".upper(): written(field.default)
        for section, model in ({"": Settings} | models).items()
        for name, field in model.model_fields.items()
        if model is not Settings or name not in SECTIONS
    }


def variables_of(command: click.Command, context: click.Context) -> Iterator[str]:
    """Every variable that stands for an option of a command."""
    yield from (each.envvar for each in command.params if isinstance(each.envvar, str))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from variables_of(found, context)


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="POSTROAD_CASSANDRA: a client key needs"):
        from_environment({"POSTROAD_CASSANDRA_CLIENT_KEY": "tls.key"})


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(ROW.findall(REFERENCE))

    assert {name: rows.get(name) for name in defaults()} == defaults()


def read_by_programs() -> set[str]:
    """Every variable that the programs read: settings, and options."""
    options = {
        name
        for program in (main, kubectl_mailqueue)
        for name in variables_of(program, click.Context(program))
    }
    return defaults().keys() | options


def test_no_variable_is_documented_that_nothing_reads() -> None:
    assert set(re.findall(r"POSTROAD_\w+", REFERENCE)) == read_by_programs()


FOR_CONTRIBUTORS = re.compile(
    "POSTROAD_(BENCH|CHAOS|EVERY_RIGHT|KILL|LEADER|RELEASE|REQUIRE|STACK|TEST|WRITE)"
)
"""Variables of tests, their servers and releases."""


def test_pages_name_no_variable_that_nothing_reads() -> None:
    """A process ignores a variable that it does not know, so that a wrong name has no effect.
    Decisions name what there was."""
    known = read_by_programs()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in pages
        if page.parent.name != "adr"
        for name in re.findall(r"POSTROAD_\w*[A-Z]", page.read_text())
    }

    assert not {
        (page, name)
        for page, name in named
        if not FOR_CONTRIBUTORS.match(name) and not any(each.startswith(name) for each in known)
    }
