"""The content of a mail as bytes: where its header ends."""

from __future__ import annotations

LONGEST_HEADER = 256 * 1024
"""Octets; without a blank line within them the whole content counts as header."""


def header_size(beginning: bytes) -> int | None:
    """Return the octets up to and including the first blank line, None when there is none.

    >>> header_size(b"Subject: x\\r\\n\\r\\nbody")
    14
    """
    if beginning.startswith((b"\r\n", b"\n")):
        return 1 if beginning.startswith(b"\n") else 2
    end = beginning.find(b"\r\n\r\n", 0, LONGEST_HEADER)
    bare = beginning.find(b"\n\n", 0, LONGEST_HEADER if end < 0 else end)
    if bare >= 0:
        return bare + 2
    return None if end < 0 else end + 4
