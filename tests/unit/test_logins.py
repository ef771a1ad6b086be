"""A login from files is renewed with them, and its name and password belong together."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from postroad.errors import CredentialsMissing
from postroad.logins import LoginFolder
from support.mounted_secret import MountedSecret


def pair(number: int) -> dict[str, str]:
    return {"username": f"user-{number}", "password": f"password-{number}\n"}


def test_a_login_changes_with_its_files(tmp_path: Path) -> None:
    mounted = MountedSecret(tmp_path / "login", pair(1))
    folder = LoginFolder(mounted.folder)
    first = folder.read()
    assert (first.username, first.password) == ("user-1", "password-1")
    assert folder.read() is first

    mounted.renew(pair(2))

    assert (folder.read().username, folder.read().password) == ("user-2", "password-2")


def test_plain_files_are_read_again_too(tmp_path: Path) -> None:
    folder = LoginFolder(tmp_path, ("accessKey", "secretKey"))
    (tmp_path / "accessKey").write_text("key")
    (tmp_path / "secretKey").write_text("one")
    assert folder.read().password == "one"

    (tmp_path / "secretKey").write_text("another")

    assert folder.read().password == "another"


def test_a_name_never_meets_the_password_of_another_time(tmp_path: Path) -> None:
    mounted = MountedSecret(tmp_path / "login", pair(0))
    stop = Event()

    def renew() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            mounted.renew(pair(number))

    swapping = Thread(target=renew)
    swapping.start()
    try:
        found = set()
        for _ in range(300):
            try:
                login = LoginFolder(mounted.folder).read()
            except CredentialsMissing:  # swapped three times meanwhile, as no kubelet does
                continue
            found.add((login.username[5:], login.password[9:]))
    finally:
        stop.set()
        swapping.join()
    assert found
    assert all(username == password for username, password in found)


@pytest.mark.parametrize("left", [[], ["username"]])
def test_a_missing_file_is_named_with_what_is_needed(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).write_text("x")

    with pytest.raises(CredentialsMissing) as missing:
        LoginFolder(tmp_path).read()

    assert str(tmp_path) in missing.value.explain()
    assert "username and password" in missing.value.explain()


def test_the_password_is_in_no_repr(tmp_path: Path) -> None:
    folder = LoginFolder(MountedSecret(tmp_path / "login", pair(1)).folder)

    assert "password-1" not in repr(folder.read()) + repr(folder)
