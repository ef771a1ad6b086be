"""How long next hops are remembered with which TLS or chunks failed."""

import pytest

from postroad.domain.smtp.next_hops import NextHop, OldestTls
from postroad.smtp.client import connecting
from postroad.smtp.client.connecting import KEPT, RememberedHops
from support.manual_loop import move, run


def test_a_next_hop_is_remembered_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(connecting, "MAX_REMEMBERED", 2)
        known = RememberedHops()
        known.add(NextHop("a.example"))
        assert known.has(NextHop("a.example"))
        assert not known.has(NextHop("a.example", 587))
        assert not known.has(NextHop("a.example", oldest_tls=OldestTls.TLS_1_3))
        await move(KEPT.total_seconds() - 1)
        assert known.has(NextHop("a.example"))
        await move(1)
        assert not known.has(NextHop("a.example"))
        for host in ("b.example", "a.example", "c.example"):
            known.add(NextHop(host))
        assert [known.has(NextHop(f"{each}.example")) for each in "abc"] == [True, False, True]

    run(work())
