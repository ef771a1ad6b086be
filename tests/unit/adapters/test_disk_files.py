"""Files of a store: no link leads out of it, no other user's is used, and errors name the cause."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.files import DiskFiles, Translated, make_private, require_own
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.domain.error_codes import codes_of
from postroad.errors import StoreFailed, StoreFull, TooManyOpenFiles
from postroad.ports.delivery import Topic


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "039"
    victim.write_text("precious")
    link.symlink_to(victim)

    for use in (DiskFiles().open, DiskFiles().lock):
        with pytest.raises(StoreFailed, match="is a symbolic link"):
            use(link)
    assert victim.read_text() == "precious"


def test_a_directory_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    make_private(tmp_path)

    assert mode(tmp_path) == 0o700


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, 4711, -1) if os.geteuid() == 0 else None
    monkeypatch.setattr(os, "geteuid", lambda: 4712)

    with pytest.raises(StoreFailed, match=r"of another user .* is 4712"):
        require_own(tmp_path)


def test_a_volume_of_root_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    tmp_path.chmod(0o770)
    monkeypatch.setattr(os, "geteuid", lambda: 4712)

    require_own(tmp_path)
    make_private(tmp_path)

    assert mode(tmp_path) == 0o770


async def test_a_board_is_for_its_user_alone(tmp_path: Path) -> None:
    await DirectorySharedState(tmp_path / "shared_state", MachineClock()).publish(
        Topic.WORKERS, "one", "text", timedelta(minutes=1)
    )

    assert mode(tmp_path / "shared_state") == 0o700


async def test_an_entry_for_which_the_disk_has_no_room_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers publish every few seconds, and read all files there as often."""
    shared_state = DirectorySharedState(tmp_path, MachineClock())

    def write_text(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", write_text)
        with pytest.raises(StoreFull):
            await shared_state.publish(Topic.WORKERS, "one", "text", timedelta(minutes=1))

    assert list((tmp_path / Topic.WORKERS.value).iterdir()) == []
    await shared_state.publish(Topic.WORKERS, "one", "text", timedelta(minutes=1))
    assert await shared_state.published(Topic.WORKERS) == {"one": "text"}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_of_descriptors_is_no_full_disk(number: int) -> None:
    with pytest.raises(TooManyOpenFiles) as raised, Translated("open", "log/new.0000000002"):
        raise OSError(number, "")

    assert "LimitNOFILE" in raised.value.hint
    assert str(codes_of(raised.value).reply).startswith("451 4.3.2")
