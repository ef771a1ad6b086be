"""Reports that come back to the mail of real processes, over both engines. Source: ADR 0091."""

from __future__ import annotations

import asyncio
import json
import os
import smtplib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.test_events_of_processes import KINDS, RETRIES, a_queue
from support.ports import free_port
from support.programs import Program
from support.returned_mails import case_of, mail_of
from support.sink import Sink

LONG = "u" * 50


class Returning:
    """An MTA with a listener for its clients and one for reports; `events` is a file."""

    def __init__(self, folder: Path, url: str, next_port: int) -> None:
        self.folder, self.url, self.next_port = folder, url, next_port
        self.domains: list[dict[str, Any]] = []
        self.relay, self.mx, self.events = free_port(), free_port(), folder / "events.jsonl"

    async def start(self, *options: str) -> Program:
        (self.folder / "verp.secret").write_text("a secret of twenty-four octets\n")
        intake = {
            "listeners": [
                {"name": "relay", "role": "relay", "port": self.relay},
                {"name": "mx", "role": "mx", "port": self.mx, "host": "127.0.0.1"},
            ],
            "domains": self.domains,
            "bounces": {
                "verpSecret": {"file": "verp.secret"},
                "suppress": ["NoMailbox", "Complaint"],
                "complaints": ["fbl@origin.example"],
            },
        }
        relay = {"host": "127.0.0.1", "port": self.next_port, "verp": True, "tls": {"mode": "None"}}
        delivery = {
            "relay": relay,
            "verpSecret": {"file": "verp.secret"},
            "suppression": {"after": 1},
            "events": [{"name": "audit", "file": str(self.events), "addresses": "Plain"}],
        }
        (self.folder / "intake.yaml").write_text(json.dumps(intake))
        (self.folder / "delivery.yaml").write_text(json.dumps(delivery))
        program = await Program.start(
            self.folder,
            *("mta", "--queue", self.url, "--intake", str(self.folder / "intake.yaml")),
            *("--delivery", str(self.folder / "delivery.yaml"), *options),
            environment=RETRIES,
        )
        await program.port("listening")
        return program

    async def hand_in(self, *names: str) -> None:
        """Send a mail to each."""
        await asyncio.to_thread(self._send, *names)

    def _send(self, *names: str) -> None:
        with smtplib.SMTP("127.0.0.1", self.relay, timeout=60) as client:
            for each in names:
                client.sendmail("a@origin.example", f"{each}@dest.example", "Subject: x\r\n\r\nx")

    def report(self, content: bytes, *recipients: str) -> Sequence[int]:
        """Report to recipients; return the codes of RCPT, and of the mail where one was taken."""
        with smtplib.SMTP("127.0.0.1", self.mx, "mx.dest.example", timeout=60) as client:
            client.ehlo()
            client.docmd("MAIL FROM:<>")
            codes = [client.docmd(f"RCPT TO:<{each}>")[0] for each in recipients]
            return [*codes, client.data(content)[0]] if 250 in codes else codes

    def lines(self) -> list[str]:
        """Return the events, each as JSON."""
        return self.events.read_text().splitlines() if self.events.exists() else []

    async def until(self, kind: str, count: int = 1) -> list[str]:
        """Wait for events of a type; return their recipients."""
        async with asyncio.timeout(60):
            while True:
                events = [json.loads(each) for each in self.lines()]
                found = [each["data"]["recipient"] for each in events if each["type"] == kind]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.05)


async def paths_of(sink: Sink, count: int) -> list[str]:
    """Wait for so many mails; return their reverse-paths."""
    async with asyncio.timeout(60):
        while len(sink.mails) < count:
            await asyncio.sleep(0.05)
    return [each.sender for each in sink.mails]


def bounce_of(name: str, case: str = "postfix, unknown user") -> bytes:
    return mail_of(case_of(case)).replace(b"user@example.net", f"{name}@dest.example".encode())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("receivers", [0, 2])
async def test_a_recipient_whose_mail_comes_back_is_not_mailed_again(
    kind: str, receivers: int, tmp_path: Path
) -> None:
    options = ("--receivers", str(receivers)) if receivers else ()
    async with a_queue(kind, tmp_path) as url, Sink() as sink:
        mta = Returning(tmp_path, url, sink.port)
        program = await mta.start(*options)
        try:
            await mta.hand_in("gone", "stays", LONG)
            long, gone, stays = sorted(await paths_of(sink, 3))
            assert gone.startswith("a+gone=dest.example=")
            assert long.startswith("a+=")

            # Capitals, and by a server that sends it twice.
            for path in (gone.upper(), gone, long):
                name = LONG if path is long else "gone"
                assert await asyncio.to_thread(mta.report, bounce_of(name), path) == [250, 250]
            # Forged: another recipient's token, none at all.
            forged = gone.replace("gone", "stays")
            other = stays[: stays.index("=dest")] + "=dest.example=abcdefghijkl@origin.example"
            codes = await asyncio.to_thread(mta.report, bounce_of("stays"), forged, other)
            assert codes == [550, 550]
            # Genuine, of another one: who has a token may not choose whom it suppresses.
            assert await asyncio.to_thread(mta.report, bounce_of("stays"), gone) == [250, 250]
            # Late, and not failed.
            late = bounce_of("stays", "postfix, delayed")
            assert await asyncio.to_thread(mta.report, late, stays) == [250, 250]

            await mta.hand_in("gone", "stays", LONG)
            suppressed = await mta.until("Suppressed", 2)
            assert sorted(suppressed) == ["gone@dest.example", f"{LONG}@dest.example"]
            assert (await paths_of(sink, 4))[3] == stays
            bounced = await mta.until("Bounced", 4)
            assert set(bounced) == {"gone@dest.example", f"{LONG}@dest.example"}
        finally:
            assert await program.stop() == 0


async def test_a_complaint_at_its_address_suppresses_and_survives_a_kill(tmp_path: Path) -> None:
    async with a_queue("embedded", tmp_path) as url, Sink() as sink:
        mta = Returning(tmp_path, url, sink.port)
        program = await mta.start()
        await mta.hand_in("angry")
        (path,) = await paths_of(sink, 1)
        complaint = mail_of(case_of("complaint, yahoo"), path)
        assert await asyncio.to_thread(mta.report, complaint, "fbl@origin.example") == [250, 250]
        await program.kill()  # behind 250: all of it is durable

        program = await mta.start()
        try:
            complained = await mta.until(
                "Complained"
            )  # at least once: the kill may come before the acknowledgement
            assert {*complained} == {"angry@dest.example"}
            await mta.hand_in("angry")
            assert await mta.until("Suppressed") == ["angry@dest.example"]
        finally:
            assert await program.stop() == 0
        assert len(sink.mails) == 1


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("suppression", "add `suppression: {}` to the file of delivery"),
        ("verp.secret", "24 octets at least"),
    ],
)
async def test_what_is_missing_is_an_error_that_names_it(
    part: str, said: str, tmp_path: Path
) -> None:
    async with a_queue("embedded", tmp_path) as url, Sink() as sink:
        mta = Returning(tmp_path, url, sink.port)
        program = await mta.start()
        await program.stop()
        if part == "suppression":
            delivery = json.loads((tmp_path / "delivery.yaml").read_text())
            del delivery["suppression"]
            (tmp_path / "delivery.yaml").write_text(json.dumps(delivery))
        else:
            (tmp_path / part).write_text("short")

        again = await Program.start(
            tmp_path,
            *("mta", "--queue", url, "--intake", str(tmp_path / "intake.yaml")),
            *("--delivery", str(tmp_path / "delivery.yaml")),
        )
        assert await again.process.wait() == 1
        assert said in again.log.read_text()


async def test_without_the_extra_the_process_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "lacking" / "flufl" / "bounce").mkdir(parents=True)
    (tmp_path / "lacking" / "flufl" / "bounce" / "__init__.py").write_text(
        "raise ModuleNotFoundError('no', name='flufl.bounce')"
    )
    async with a_queue("embedded", tmp_path) as url, Sink() as sink:
        mta = Returning(tmp_path, url, sink.port)
        await (await mta.start()).stop()
        path = f"{tmp_path / 'lacking'}:{os.environ.get('PYTHONPATH', '')}"
        again = await Program.start(
            tmp_path,
            *("mta", "--queue", url, "--intake", str(tmp_path / "intake.yaml")),
            *("--delivery", str(tmp_path / "delivery.yaml")),
            environment={"PYTHONPATH": path},
        )
        assert await again.process.wait() == 1
        assert "flufl is not installed (pip install 'postroad[intake]')" in again.log.read_text()
