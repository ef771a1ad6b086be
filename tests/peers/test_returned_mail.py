"""Other servers take a mail and report later that it failed: their reports come back to signed
reverse-paths, and suppress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.intake.test_returned_mail import Returning
from peers.conftest import prepared
from peers.exim import Exim
from peers.haraka import Haraka
from peers.james import James
from peers.opensmtpd import OpenSmtpd
from peers.postfix import Postfix
from peers.server import Peer, Road

pytestmark = pytest.mark.needs("peers")

LONG = "u" * 50


@pytest.mark.parametrize(
    "kind", [Postfix, Exim, OpenSmtpd, Haraka, James], ids=lambda kind: kind.name
)
async def test_the_report_of_a_server_suppresses_its_recipient(
    kind: type[Peer], base: Path, tmp_path: Path
) -> None:
    """The server takes all mail, and hands it on to where the recipients are unknown: to the
    intake, to which it reports, too."""
    prepared(kind)
    folder = base / "peer"
    folder.mkdir()
    mta = Returning(tmp_path, f"embedded://{tmp_path / 'store'}", 0)
    mta.domains = [{"name": "dest.example", "recipients": {"file": "recipients"}}]
    (tmp_path / "recipients").write_text("postmaster\n")
    peer = kind(folder, Road(mta.mx))
    await peer.start()
    mta.next_port = peer.port
    program = await mta.start()
    try:
        await mta.hand_in("gone", LONG)
        bounced = await mta.until("Bounced", 2)
        assert sorted(bounced) == ["gone@dest.example", f"{LONG}@dest.example"]
        reasons = [
            each["data"]["reason"]
            for each in map(json.loads, mta.lines())
            if (each["type"] == "Bounced")
        ]
        assert reasons == ["no-mailbox"] * 2

        await mta.hand_in("gone", LONG)
        assert sorted(await mta.until("Suppressed", 2)) == sorted(bounced)
    finally:
        await program.stop()
        await peer.stop()
