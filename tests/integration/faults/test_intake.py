"""An intake whose view stands still goes on replying: its pod stays ready, and mail gets a 451."""

from __future__ import annotations

import asyncio
import smtplib
from pathlib import Path

import pytest

import servers as names
from integration.faults.conftest import RECOVERY_SECONDS, Victims, bounded
from support.programs import READY, Program

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(300)]


ACCEPTED = (250, "")


def send(port: int) -> tuple[int, str]:
    """Offer a mail; return the code of the last reply, and the text of a refusal."""
    with smtplib.SMTP("127.0.0.1", port, timeout=RECOVERY_SECONDS) as client:
        try:
            client.sendmail("a@origin.example", ["b@dest.example"], b"Subject: x\r\n\r\ny\r\n")
        except smtplib.SMTPResponseException as error:
            return error.smtp_code, str(error.smtp_error)
    return ACCEPTED


async def test_while_cassandra_stands_still_the_intake_is_ready_and_replies_451(
    tmp_path: Path, victims: Victims
) -> None:
    intake = await Program.start(
        tmp_path,
        *("intake", "--queue", f"distributed://test.{names.fresh()}", "--create"),
        *("--listen", "127.0.0.1:0"),
        environment=victims.variables,
    )
    try:
        await bounded(intake.until_ready())
        port = await intake.port("listening")
        assert await bounded(asyncio.to_thread(send, port)) == ACCEPTED

        await victims.pause("cassandra")
        offered = asyncio.create_task(asyncio.to_thread(send, port))
        while not offered.done():
            assert (await intake.ask("/readyz")).startswith(READY)
            await asyncio.sleep(1)
        code, text = offered.result()
        assert code == 451
        assert "cassandra" not in text.lower()  # a sender learns nothing of the servers behind

        await victims.resume("cassandra")
        async with asyncio.timeout(RECOVERY_SECONDS):
            while await asyncio.to_thread(send, port) != ACCEPTED:
                await asyncio.sleep(0.5)
        assert await bounded(intake.stop()) == 0
    finally:
        await intake.kill()
