"""Which name servers are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.adapters.dns import NameServer, name_servers
from postroad.errors import InvalidSettings

KUBERNETES = """
search mail.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.96.0.10
nameserver 2001:db8::53
options ndots:5
"""


def test_those_of_resolv_conf_are_asked_where_none_is_given(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(KUBERNETES)

    assert name_servers([], file) == [NameServer("10.96.0.10"), NameServer("2001:db8::53")]
    assert name_servers([("192.0.2.53", 5353)], file) == [NameServer("192.0.2.53", 5353)]


@pytest.mark.parametrize("text", ["", "search example.org\n", None])
def test_a_file_that_names_none_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "resolv.conf"
    if text is not None:
        file.write_text(text)

    with pytest.raises(InvalidSettings, match="names no name server"):
        name_servers([], file)
