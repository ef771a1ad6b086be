"""One process at a time, also over the removal of what is locked."""

import threading
from pathlib import Path

from stack import locks


def test_the_second_waits_and_prints_why(tmp_path: Path) -> None:
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        with locks.held(tmp_path / "lock", waiting.set):
            entered.set()

    with locks.held(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    thread.join(10)

    assert entered.is_set()


def test_a_waiter_is_not_fooled_by_a_lock_that_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waiting, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        with locks.held(path, waiting.set):
            entered.set()
            leave.wait(10)

    with locks.held(path):
        thread = threading.Thread(target=second)
        thread.start()
        waiting.wait(10)
        path.unlink()
    entered.wait(10)

    third = threading.Event()
    other = threading.Thread(target=lambda: locks.held(path, third.set).__enter__())
    other.start()
    assert third.wait(10), "the second holds the file that is there now"
    leave.set()
    thread.join(10)
    other.join(10)
