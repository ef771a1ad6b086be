"""Ports for servers that live as long as a test."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
