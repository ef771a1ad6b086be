"""Progress for the user: a line per step with its time, and a line now and then while a step is
slow."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

HEARTBEAT_SECONDS = 10.0


class Progress:
    """Reports steps that may run side by side; safe to use from several threads."""

    def __init__(
        self,
        output: TextIO | None = None,
        *,
        quiet: bool = False,
        title: Callable[[], str] = lambda: "stack:",
    ) -> None:
        """Write to `output` (standard error when None), or write nothing when quiet. Each line
        begins with what `title` returns."""
        self._title = title
        self._output = output
        self._quiet = quiet
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._ended = threading.Event()
        self._beating = False

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Report that a step runs, and how long it took."""
        begun = time.monotonic()
        with self._lock:
            self._running[name] = begun
            if not self._beating and not self._quiet:
                self._beating = True
                threading.Thread(target=self._beat, daemon=True).start()
        outcome = "stopped"
        try:
            yield
            outcome = "done"
        except Exception:
            outcome = "FAILED"
            raise
        finally:
            with self._lock:
                self._running.pop(name, None)
            self.say(f"{name}: {outcome} ({time.monotonic() - begun:.1f} s)")

    def say(self, line: str) -> None:
        """Write one line."""
        if self._quiet:
            return
        output = self._output or sys.stderr
        with self._lock:
            erase = "\r\033[K" if output.isatty() else ""
            print(f"{erase}{self._title()} {line}", file=output, flush=True)

    def _beat(self) -> None:
        output = self._output or sys.stderr
        interval = 1.0 if output.isatty() else HEARTBEAT_SECONDS
        while not self._ended.wait(interval):
            with self._lock:
                now = time.monotonic()
                running = [
                    f"{name} ({now - begun:.0f} s)"
                    for name, begun in self._running.items()
                    if now - begun >= interval
                ]
                if not running:
                    continue
                line = f"{self._title()} ... " + ", ".join(running)
                if output.isatty():
                    print(f"\r\033[K{line[:118]}", end="", file=output, flush=True)
                else:
                    print(line, file=output, flush=True)

    def close(self) -> None:
        """End the lines about slow steps."""
        self._ended.set()
