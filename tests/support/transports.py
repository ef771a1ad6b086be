"""A transport without a network."""

from __future__ import annotations

import asyncio


class FakeTransport(asyncio.Transport):
    """Keeps what is written, and counts how often reading was paused and not resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.pauses = 0
        self.aborted = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted += 1

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.pauses -= 1
