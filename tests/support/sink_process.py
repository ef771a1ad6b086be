"""A sink that runs as a process of its own, and the mails that it writes into its folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class ReceivedMail:
    """One mail as one recipient received it; `content` has the headers that relays added."""

    recipient: str
    sender: str
    at: datetime
    content: bytes


class SinkProcess:
    """`with SinkProcess(folder) as sink: … sink.port … sink.each()`.

    The sink defers recipients that match `defer_first` once, and refuses those that match `refuse`.
    """

    def __init__(self, folder: Path, *, defer_first: str = "", refuse: str = "") -> None:
        self.folder = folder
        self.port = 0
        self._read: list[ReceivedMail] = []
        self._mails = 0
        self._options = [
            *(["--defer-first", defer_first] if defer_first else []),
            *(["--refuse", refuse] if refuse else []),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SinkProcess:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("[0-9]*"):
            old.unlink()
        self._read, self._mails = [], 0
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "support.sink", "--listen", f"127.0.0.1:{self.port}"),
                *("--store", str(self.folder), *self._options),
            ],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r":(\d+)\s*$", said)
        if found is None:
            self._process.kill()
            raise RuntimeError(f"the sink did not start: {said!r}")
        self.port = int(found[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout:
            self._process.stdout.close()

    def each(self) -> Iterator[ReceivedMail]:
        """Yield the mails received so far, in order, one for each recipient. A mail's files, which
        are numbered from 1 and do not change, are read once: tests ask again and again."""
        while (path := self.folder / f"{self._mails + 1:06}.json").exists():
            envelope = json.loads(path.read_text())
            at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            content = path.with_suffix(".eml").read_bytes()
            for recipient in envelope["recipients"]:
                self._read.append(ReceivedMail(recipient, envelope["sender"], at, content))
            self._mails += 1
        yield from self._read

    def contents(self) -> dict[str, list[bytes]]:
        """Return the received contents by recipient."""
        found: dict[str, list[bytes]] = {}
        for arrival in self.each():
            found.setdefault(arrival.recipient, []).append(arrival.content)
        return found

    def has_all(self, recipients: Sequence[str]) -> bool:
        """Return whether each of these recipients received a mail."""
        return set(recipients) <= {arrival.recipient for arrival in self.each()}
