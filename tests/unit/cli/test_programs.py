"""Programs that get the mail, by settings and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from postroad.bootstrap.targets import open_webhook, rules_of, target_of, window_of
from postroad.cli import main
from postroad.cli.processes.worker import with_delivery
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.errors import InvalidSettings
from postroad.handling import HandlerFunction
from postroad.settings import Settings, from_environment

URL = SecretStr("https://app.example.org/mail?token=hunter2")


def settings(**more: object) -> Settings:
    return with_delivery(from_environment({}), None, None, more)


def test_a_function_is_imported_by_its_name() -> None:
    for name in ("posixpath:join", "python:posixpath:join", "pathlib:Path.cwd"):
        target = target_of(settings(function_name=name))
        assert isinstance(target, HandlerFunction)
        assert callable(target.call)
    few = with_delivery(Settings(), 2, None, {})
    assert window_of(few, target) == rules_of(few, target).connections == 2
    assert rules_of(few, target).longest_queue == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("posixpath", "names no function"),
        (":join", "names no function"),
        ("posixpath:", "names no function"),
        ("posixpath:joined", "has no function joined"),
        ("posixpath:sep", "has no function sep"),
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError"),
        ("..:f", "cannot be imported"),
        ("broken_module:f", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidSettings, match=problem):
        target_of(settings(function_name=name))


def test_a_webhook_needs_its_secret(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="no secret that signs"):
        target_of(settings(webhook_url=URL))
    given = settings(webhook_url=URL, webhook_login_folder=tmp_path)
    target = target_of(given)
    assert isinstance(target, WebhookAddress)
    with pytest.raises(InvalidSettings, match="cannot be read: FileNotFoundError"):
        open_webhook(given, target)
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(InvalidSettings, match="24 octets") as caught:
        open_webhook(given, target)
    assert "hunter2" not in str(caught.value)


def test_mail_goes_to_one_target() -> None:
    both = {"function_name": "posixpath:join", "webhook_url": URL}
    with pytest.raises(InvalidSettings, match="to the webhook or to the function") as caught:
        target_of(settings(**both))
    assert "hunter2" not in str(caught.value)


def test_the_command_has_options_of_programs(tmp_path: Path) -> None:
    arguments = ["mta", "--queue", "memory://a", "--listen", "127.0.0.1:0"]
    webhook = ["--webhook", "ftp://hunter2", "--webhook-login-folder", str(tmp_path)]
    for options, problem in (
        (webhook, "a webhook has a URL such as"),
        (["--function", "posixpath:joined"], "has no function joined"),
    ):
        result = CliRunner().invoke(main, [*arguments, *options])
        assert result.exit_code != 0
        assert problem in result.output
        assert "hunter2" not in result.output
