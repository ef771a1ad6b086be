"""Cache entries appear whole or not at all, once."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stack import cache
from stack.cache import Entry
from stack.errors import StepFailed
from stack.progress import Progress

QUIET = Progress(quiet=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def entry(make: Callable[[Path, Path], None]) -> Entry:
    return Entry("thing", "key", "thing: build", make)


def test_an_entry_is_made_once() -> None:
    made = []

    def make(folder: Path, log: Path) -> None:
        made.append(folder)
        (folder / "program").write_text("x")

    first = entry(make).ensure(QUIET)
    second = entry(make).ensure(QUIET)

    assert first == second
    assert (first / "program").read_text() == "x"
    assert len(made) == 1


def test_an_entry_wanted_by_several_at_once_is_made_once() -> None:
    made = []
    begun = threading.Event()

    def make(folder: Path, log: Path) -> None:
        made.append(folder)
        begun.wait(0.2)

    threads = [threading.Thread(target=entry(make).ensure, args=(QUIET,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing() -> None:
    def make(folder: Path, log: Path) -> None:
        (folder / "half").touch()
        cache.run(["sh", "-c", "echo the reason; exit 3"], log)

    broken = entry(make)

    with pytest.raises(StepFailed, match="the reason"):
        broken.ensure(QUIET)
    assert not broken.path.exists()
    assert list(broken.path.parent.iterdir()) == []


def test_what_a_killed_build_left_is_removed() -> None:
    fresh = entry(lambda folder, log: None)
    left = fresh.path.with_name("key.partial-1")
    left.mkdir(parents=True)

    fresh.ensure(QUIET)

    assert [path.name for path in fresh.path.parent.iterdir()] == ["key"]


def test_an_interrupt_ends_the_commands_that_run() -> None:
    failures = []

    def make(folder: Path, log: Path) -> None:
        try:
            cache.run(["sleep", "60"], log)
        except subprocess.CalledProcessError as error:
            failures.append(error.returncode)
            raise

    def attempt() -> None:
        with pytest.raises(StepFailed):
            entry(make).ensure(QUIET)

    thread = threading.Thread(target=attempt)
    thread.start()
    while not cache._children:
        threading.Event().wait(0.01)
    cache.interrupt()
    thread.join(10)

    assert failures == [-15]


def test_a_key_changes_with_texts_and_with_names_and_contents_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "go.mod").write_text("one")
    before = cache.key_of("go1.24", folder)

    assert before == cache.key_of("go1.24", folder)
    assert before != cache.key_of("go1.25", folder)
    (folder / "go.mod").rename(folder / "go.sum")
    renamed = cache.key_of("go1.24", folder)
    (folder / "go.sum").write_text("two")

    assert len({before, renamed, cache.key_of("go1.24", folder)}) == 3
    assert cache.key_of("ab", "c") != cache.key_of("a", "bc")
