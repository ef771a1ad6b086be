"""A running process follows its file of delivery; what cannot be used leaves what it had."""

from __future__ import annotations

import asyncio
import logging
from datetime import date
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from postroad.bootstrap import followed_file
from postroad.bootstrap.delivery_file import DeliveryDocument, DeliveryFile
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.errors import InvalidSettings

LOGIN = """
routing:
  rules:
    - name: a
      hops: [{host: h.example, tls: {mode: Required}, login: {folder: FOLDER}}]
"""


def reads(result: str) -> float:
    name = "postroad_delivery_file_reads_total"
    return REGISTRY.get_sample_value(name, {"result": result}) or 0


def refused() -> float | None:
    return REGISTRY.get_sample_value("postroad_delivery_file_refused")


class Followed:
    """A followed file, and what the process got of it."""

    def __init__(self, folder: Path, text: str = "routing: {}") -> None:
        self.path = folder / "delivery.yaml"
        self.write(text)
        self.file = DeliveryFile(self.path)
        self.used: list[DeliverySettings] = []
        self.refusal: Exception | None = None

    def write(self, text: str) -> None:
        self.path.write_text(text)

    async def look(self) -> None:
        await self.file.look(self.use)

    def use(self, document: DeliveryDocument) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.used.append(document.settings)

    @property
    def postmaster(self) -> str | None:
        routing = self.file.current.settings.routing
        return routing.postmaster_domain if routing else None


async def test_a_change_is_used_once(tmp_path: Path) -> None:
    followed, before = Followed(tmp_path), reads("used")

    await followed.look()
    followed.write("routing: {postmasterDomain: a.example}")
    await followed.look()
    await followed.look()

    assert len(followed.used) == 1
    assert followed.postmaster == "a.example"
    assert (reads("used") - before, refused()) == (1, 0)


@pytest.mark.parametrize("text", ["routing: {rules: [{name: a}]}", "routing: [", "other: {}", None])
async def test_a_bad_file_is_counted_and_logged_once_and_leaves_what_was_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    followed, before = (
        Followed(tmp_path, "routing: {postmasterDomain: a.example}"),
        reads("refused"),
    )

    if text is None:
        followed.path.unlink()
    else:
        followed.write(text)
    for _ in range(3):
        await followed.look()

    assert followed.used == []
    assert followed.postmaster == "a.example"
    assert (reads("refused") - before, refused()) == (1, 1)
    errors = [each.message for each in caplog.records if each.levelno >= logging.ERROR]
    assert errors == ["delivery not changed, what was read before stays"]
    followed.write("routing: {postmasterDomain: b.example}")
    await followed.look()
    assert (followed.postmaster, refused()) == ("b.example", 0)


@pytest.mark.parametrize("refusal", [InvalidSettings("no"), RuntimeError("a fault")])
async def test_what_the_process_cannot_use_leaves_what_was_read(
    tmp_path: Path, refusal: Exception
) -> None:
    """As where a name server is missing, or mail would go to a relay from now on."""
    followed = Followed(tmp_path)
    followed.refusal = refusal
    followed.write("routing: {postmasterDomain: a.example}")

    await followed.look()

    assert (followed.postmaster, refused()) == (None, 1)
    followed.refusal = None
    followed.write("routing: {postmasterDomain: b.example}")
    await followed.look()
    assert (followed.postmaster, refused()) == ("b.example", 0)


async def test_a_login_whose_files_are_not_there_yet_is_used_when_they_are(tmp_path: Path) -> None:
    """The kubelet brings a ConfigMap and a Secret at different times."""
    folder = tmp_path / "login"
    text = LOGIN.replace("FOLDER", str(folder))
    followed = Followed(tmp_path)
    followed.write(text)

    await followed.look()
    assert (followed.used, refused()) == ([], 1)
    folder.mkdir()
    for name in ("username", "password"):
        (folder / name).write_text("x")
    await followed.look()

    assert (len(followed.used), refused()) == (1, 0)
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidSettings, match=r"the login in .* cannot be read"):
        Followed(tmp_path / "other", text.replace(str(folder), "/nowhere"))


async def test_files_are_looked_at_when_the_process_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, asked = Followed(tmp_path), asyncio.Event()
    task = asyncio.create_task(followed.file.follow(followed.use, asked))
    followed.write("routing: {postmasterDomain: a.example}")

    asked.set()
    while not followed.used:
        await asyncio.sleep(0.001)
    monkeypatch.setattr(followed_file, "LOOK_INTERVAL", followed_file.LOOK_INTERVAL / 10_000)
    asked.set()
    followed.write("routing: {postmasterDomain: c.example}")
    while len(followed.used) < 2:
        await asyncio.sleep(0.001)

    task.cancel()
    assert followed.postmaster == "c.example"


async def test_a_new_secret_of_reverse_paths_is_used_and_one_that_cannot_sign_is_not(
    tmp_path: Path,
) -> None:
    secret, old, new = tmp_path / "verp.secret", "o" * 24, "n" * 24
    secret.write_text(old)
    followed = Followed(tmp_path, "verpSecret: {file: verp.secret}")
    day, mail = date(2026, 11, 29), ("a@list.example", "b@example.net", None)

    def path() -> str:
        paths = followed.file.current.return_paths
        assert paths
        return paths.path(*mail, day) or ""

    before = path()
    secret.write_text("short")
    await followed.look()
    assert path() == before
    secret.write_text(f"{new}\n{old}\n")
    await followed.look()

    assert path() != before
    paths = followed.file.current.return_paths
    assert paths
    assert paths.open(before, day)
    followed.write("{}")
    await followed.look()
    assert followed.file.current.return_paths is None
