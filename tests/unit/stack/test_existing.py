"""Servers that the environment names."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.errors import NotPossible
from stack.local import Stack
from stack.server import State


@pytest.fixture
def listening_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def stack_with(tmp_path: Path, **environment: str) -> Stack:
    return Stack(tmp_path, environment=environment)


def test_a_given_server_is_used_and_shown_without_its_password(
    tmp_path: Path, listening_port: int
) -> None:
    uri = f"amqp://user:secret@127.0.0.1:{listening_port}/%2F"
    server = stack_with(tmp_path, POSTROAD_RABBITMQ_URI=uri).rabbitmq

    assert server.provider == "environment"
    assert server.state() is State.RUNNING
    assert server.endpoint == f"amqp://127.0.0.1:{listening_port}"
    assert server.environment() == {"POSTROAD_RABBITMQ_URI": uri}


@pytest.mark.parametrize("control", ["stop", "kill", "pause", "resume"])
def test_a_given_server_is_not_ended(tmp_path: Path, control: str) -> None:
    server = stack_with(tmp_path, POSTROAD_S3_ENDPOINT="http://127.0.0.1:1").s3

    with pytest.raises(NotPossible, match="POSTROAD_S3_ENDPOINT"):
        getattr(server, control)()


def test_a_given_server_that_does_not_answer_does_not_run(tmp_path: Path) -> None:
    environment = {
        "POSTROAD_CASSANDRA_CONTACT_POINTS": "127.0.0.1",
        "POSTROAD_CASSANDRA_PORT": "1",
    }

    assert stack_with(tmp_path, **environment).cassandra.state() is State.STOPPED


def test_down_leaves_a_given_server_alone(tmp_path: Path, listening_port: int) -> None:
    stack = stack_with(tmp_path, POSTROAD_S3_ENDPOINT=f"http://127.0.0.1:{listening_port}")

    stack.down()

    assert stack.s3.state() is State.RUNNING
