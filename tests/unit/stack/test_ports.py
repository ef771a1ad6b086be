"""Ports are chosen once, free, and out of the kernel's way."""

import socket
from pathlib import Path

from stack import ports


def test_each_name_gets_a_port_of_its_own_below_the_kernels_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    chosen = ports.choose("a stack", ["amqp", "management"])

    assert set(chosen) == {"amqp", "management"}
    assert len(set(chosen.values())) == 2
    assert max(chosen.values()) < lowest


def test_a_port_in_use_is_not_chosen() -> None:
    first = ports.choose("another stack", ["only"])["only"]
    ports._given.discard(first)
    with socket.create_server(("127.0.0.1", first)):
        second = ports.choose("another stack", ["only"])["only"]

    assert second != first


def test_a_port_is_given_once() -> None:
    assert ports.choose("same seed", ["a"]) != ports.choose("same seed", ["a"])


def test_a_port_answers_while_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.answers(port)

    assert not ports.answers(port)
