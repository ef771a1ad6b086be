"""Where a worker hands mail to, by its settings and its command line."""

from __future__ import annotations

import pytest

from postroad.cli.worker import next_hop, with_relay
from postroad.settings import from_environment


@pytest.mark.parametrize(
    ("relay", "tls", "environment", "expected"),
    [
        ("hop.example", None, {}, "hop.example:25"),
        ("hop.example", "required", {}, "hop.example:25"),
        ("hop.example", "implicit", {}, "hop.example:465"),
        ("hop.example:2465", "implicit", {}, "hop.example:2465"),
        ("hop.example", None, {"TLS": "implicit"}, "hop.example:465"),
        ("hop.example", "required", {"TLS": "implicit"}, "hop.example:25"),
        (None, None, {"HOST": "hop.example", "TLS": "implicit"}, "hop.example:465"),
        (None, "implicit", {"HOST": "hop.example", "PORT": "26"}, "hop.example:26"),
        ("hop.example", "implicit", {"PORT": "26"}, "hop.example:26"),
    ],
)
def test_the_port_of_a_next_hop_follows_its_tls_where_none_is_named(
    relay: str | None, tls: str | None, environment: dict[str, str], expected: str
) -> None:
    named = {f"POSTROAD_WORKER_RELAY_{name}": value for name, value in environment.items()}

    hop = next_hop(with_relay(from_environment(named), relay, tls, None, None))

    assert str(hop) == expected
    assert hop.tls == (tls or environment.get("TLS", "opportunistic"))
