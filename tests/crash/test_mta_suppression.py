"""`postroad mta` sends nothing to suppressed addresses, reports that, and learns from refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner, Result

from crash.test_mta_reports import groups_of, refuses, reports_in
from postroad.cli import main
from support.sink import Sink
from support.small_mta import an_mta, send, until_empty


def suppression(root: Path, *arguments: str) -> Result:
    name, *options = arguments
    queue = ("--queue", f"embedded://{root}")
    return CliRunner().invoke(main, ["suppression", name, *queue, *options])


async def test_a_suppressed_address_gets_nothing_and_its_sender_a_report(tmp_path: Path) -> None:
    root, file = tmp_path / "store", tmp_path / "delivery.yaml"
    file.write_text("suppression: {bounces: [NoMailbox], after: 1}\n")
    environment = {"POSTROAD_WORKER_DELIVERY_FILE": str(file)}
    async with Sink(refuses("no")) as sink:
        program, port = await an_mta(tmp_path, root, sink.port, environment=environment)
        added = await asyncio.to_thread(suppression, root, "add", "ASKED@dest.example")
        assert added.exit_code == 0, added.output
        await asyncio.to_thread(send, port, ["asked", "yes", "nowhere"])
        await until_empty(root)
        listed = await asyncio.to_thread(suppression, root, "list", "--json")
        await program.stop()

    rows = {row["address"]: row for row in map(json.loads, listed.output.splitlines())}
    learned = rows["nowhere@dest.example"]
    assert (learned["by"], learned["reason"]) == ("bounce", "550 no-mailbox: no such user")
    arrived = [each.recipients[0] for each in sink.mails]
    assert "asked@dest.example" not in arrived
    assert "yes@dest.example" in arrived
    fields = [each for report in reports_in(sink) for each in groups_of(report)[1:]]
    (about,) = (each for each in fields if "asked" in each["Final-Recipient"])
    assert (about["Action"], about["Status"]) == ("failed", "5.7.1")
