"""The variables that name servers, written and recognised."""

import shlex
import subprocess

from stack import exports

RABBITMQ = {"POSTROAD_RABBITMQ_URI": "amqp://u:p@127.0.0.1:1/%2F"}
S3 = {"POSTROAD_S3_ENDPOINT": "http://127.0.0.1:2", "POSTROAD_S3_SECRET_KEY": "it's"}


def variables(text: str) -> dict[str, str]:
    words = [word for line in text.splitlines() for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words if word != "export")


def test_a_shell_that_evaluates_the_exports_has_the_values() -> None:
    script = exports.render({"s3": S3}) + 'printf %s "$POSTROAD_S3_SECRET_KEY"'

    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert shown.stdout == "it's"


def test_plain_lines_are_for_env() -> None:
    lines = exports.render({"rabbitmq": RABBITMQ}, plain=True).splitlines()

    assert lines[0] == "POSTROAD_RABBITMQ_URI=amqp://u:p@127.0.0.1:1/%2F"


def test_nothing_is_exported_when_nothing_runs() -> None:
    assert exports.render({}) == ""


def test_a_server_that_the_environment_names_is_used() -> None:
    assert exports.given("s3", {**S3, **RABBITMQ, "HOME": "/"}) == S3


def test_a_server_without_a_name_in_the_environment_is_not_used() -> None:
    assert exports.given("s3", RABBITMQ) == {}
    assert exports.given("s3", {"POSTROAD_S3_REGION": "us-east-1"}) == {}


def test_our_own_exports_do_not_make_a_server_another_users() -> None:
    environment = variables(exports.render({"s3": S3, "rabbitmq": RABBITMQ}))

    assert exports.given("s3", environment) == {}
    assert exports.given("rabbitmq", environment) == {}


def test_a_value_changed_after_our_exports_is_another_users() -> None:
    environment = variables(exports.render({"s3": S3, "rabbitmq": RABBITMQ}))
    environment["POSTROAD_S3_ENDPOINT"] = "http://store.example.org"

    assert exports.given("s3", environment)["POSTROAD_S3_ENDPOINT"] == "http://store.example.org"
    assert exports.given("rabbitmq", environment) == {}
