"""`open_queue` keeps the rules of a queue's history, as a resource does."""

from __future__ import annotations

import errno
import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad import Mail, open_queue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import ConfigurationRefused, InvalidInput, InvalidQueueURL, QueueNotFound

HOUR, HALF, ODD = (ViewConfiguration(timedelta(minutes=each), 2) for each in (60, 30, 25))


@pytest.fixture
def url() -> str:
    return f"memory://t{secrets.token_hex(4)}"


async def test_a_queue_that_was_never_created_is_not_found(url: str) -> None:
    with pytest.raises(QueueNotFound):
        await open_queue(url)


async def test_a_wanted_configuration_is_accepted_or_refused_with_what_is_allowed(
    url: str,
) -> None:
    async with open_queue(url, create=True, configuration=HOUR) as queue:
        await queue.enqueue(Mail("a@example.org", ("b@example.net",), b"Subject: x\r\n\r\n"))

    with pytest.raises(ConfigurationRefused, match="20m and 30m"):
        await open_queue(url, create=True, configuration=ODD)

    async with open_queue(url, create=True, configuration=HALF) as queue:
        assert (await queue.size()).size == 1
    with pytest.raises(ConfigurationRefused, match="cannot grow"):
        await open_queue(url, create=True, configuration=HOUR)


async def test_without_a_wanted_configuration_whatever_holds_is_taken(url: str) -> None:
    async with open_queue(url, create=True, configuration=HALF):
        pass

    async with open_queue(url, create=True):
        pass
    async with open_queue(url) as queue:
        assert (await queue.size()).size == 0


@pytest.mark.parametrize("url", [3, None, Path("/tmp/queue"), b"memory://outgoing"])
def test_a_url_that_is_no_string_is_refused(url: Any) -> None:
    with pytest.raises(InvalidQueueURL, match=f"is a string, not {type(url).__name__}"):
        open_queue(url, create=True)


def test_a_configuration_is_only_wanted_when_creating(url: str) -> None:
    with pytest.raises(InvalidInput, match="create=True"):
        open_queue(url, configuration=HOUR)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("below", ["", "/queue"])
async def test_a_path_that_is_no_directory_is_named(
    tmp_path: Path, below: str, create: bool
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidQueueURL, match=f"{tmp_path}/file is no directory"):
        await open_queue(f"embedded://{tmp_path}/file{below}", create=create)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/proc/none", "No such file or directory"),
        (f"/tmp/{300 * 'a'}", "File name too long"),
        ("{}/itself", "File exists"),
    ],
)
async def test_a_path_that_can_never_be_made_is_no_reason_to_wait(
    tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "itself").symlink_to("itself")

    with pytest.raises(InvalidQueueURL, match=f"cannot be made: {reason}") as caught:
        await open_queue(f"embedded://{path.format(tmp_path)}", create=True)

    assert not caught.value.transient


@pytest.mark.parametrize("create", [True, False])
async def test_a_path_that_may_not_be_looked_at_has_no_store(
    tmp_path: Path, create: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    stat = os.stat
    hidden = str(tmp_path / "hidden")
    monkeypatch.setattr(
        os, "stat", lambda at, *more, **by: (denied if str(at) == hidden else stat)(at, *more, **by)
    )
    monkeypatch.setattr(os, "mkdir", denied)

    with pytest.raises(InvalidQueueURL if create else QueueNotFound, match=hidden):
        await open_queue(f"embedded://{hidden}", create=create)


async def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(InvalidQueueURL, match="without NUL"):
        await open_queue("embedded:///tmp/a%00b", create=True)
