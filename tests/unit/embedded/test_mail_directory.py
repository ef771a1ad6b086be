"""Mails may lie on another disk than the log: a start without that disk is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.queue_harness import plain_mail
from postroad import open_queue
from postroad.errors import StoreDamaged


@pytest.mark.parametrize("is_old", [False, True], ids=["before a checkpoint", "behind one"])
async def test_a_start_without_the_disk_of_the_mails_is_refused(
    tmp_path: Path, *, is_old: bool
) -> None:
    """They would become dead letters, and mail that comes would be hidden once it is mounted."""
    mail, url = tmp_path / "mail", f"embedded://{tmp_path}/queue?mail={tmp_path}/mail"
    async with open_queue(url, create=True) as queue:
        await queue.enqueue(plain_mail())
        if is_old:
            await queue.maintain()
    mounted = mail.rename(tmp_path / "disk")
    mail.mkdir()

    with pytest.raises(StoreDamaged, match="has none of the mails of this store") as refused:
        async with open_queue(url):
            pytest.fail("it was opened")
    assert refused.value.hint == "mount the disk of the mails"
    assert list(mail.iterdir()) == []

    mail.rmdir()
    mounted.rename(mail)
    async with open_queue(url) as queue:
        assert (await queue.size()).size == 1


async def test_a_store_that_had_no_mail_yet_starts_again(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    for _ in range(3):
        async with open_queue(url, create=True) as queue:
            await queue.maintain()
            assert (await queue.size()).size == 0
