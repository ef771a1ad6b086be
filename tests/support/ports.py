"""Ports for servers that live as long as a test."""

from __future__ import annotations

from uuid import uuid4

from stack import ports


def free_port() -> int:
    """Return a port without a listener, which no outgoing connection takes before a server that
    needs seconds to start."""
    return ports.choose(uuid4().hex, ["server"])["server"]
