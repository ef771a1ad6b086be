"""How content travels after DATA: leading dots doubled, every line ended by CRLF, a lone dot last.

Both directions work on chunks of any size and hold back at most four octets between them.
Reading is strict: only CRLF "." CRLF ends the mail, and a bare CR or LF is reported, because a next
hop that ends lines there would find commands inside the mail (SMTP smuggling); or it is made CRLF,
behind all that looks for the end and for doubled dots.
Source: RFC 5321 4.5.2 (transparency), 2.3.8 (lines), 4.1.1.4 (DATA).
"""

from __future__ import annotations

import re
from io import IncrementalNewlineDecoder

END = b".\r\n"
_CRLF = b"\r\n"
_DOT = b"\r\n."
_TERMINATOR = b"\r\n.\r\n"
_TAILS = tuple(_TERMINATOR[:length] for length in range(len(_TERMINATOR) - 1, 0, -1))
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")


def _has_bare_line_ends(data: bytes) -> bool:
    """Whether there is a CR without LF or an LF without CR. This decoder notes the kinds of line
    ends that it sees, in one pass and a third of the time that it takes to count them."""
    seen = IncrementalNewlineDecoder(None, translate=False)
    seen.decode(data.decode("latin-1"), final=True)
    return seen.newlines not in (None, "\r\n")


class Unstuffer:
    """Finds the end of a mail in what follows DATA, and takes the doubled dots away."""

    def __init__(self, normalises_line_ends: bool = False) -> None:
        self._normalises = normalises_line_ends
        # A virtual CRLF before the first line lets the first line be treated as any other.
        self._held = _CRLF
        self._skip = len(_CRLF)
        self.has_bare_line_ends = False
        """Whether a CR without LF or an LF without CR was left in the mail."""

    def feed(self, chunk: bytes) -> tuple[bytes, bytes | None]:
        """Take what arrived. Return content, and once the mail has ended what follows its end
        (the client's next commands; may be empty), else None."""
        data = self._held + chunk
        end = dot = data.find(_DOT)  # mostly the first line with a dot is the last line
        if dot >= 0 and not data.startswith(_TERMINATOR, dot):
            end = data.find(_TERMINATOR, dot)
        is_stuffed = dot != end
        if end >= 0:
            content = self._content(data, end + len(_CRLF), is_stuffed)
            return content, data[end + len(_TERMINATOR) :]
        tail = next((tail for tail in _TAILS if data.endswith(tail)), b"")
        self._held = tail
        return self._content(data, len(data) - len(tail), is_stuffed), None

    def _content(self, data: bytes, end: int, is_stuffed: bool) -> bytes:
        if not end:
            return b""
        if is_stuffed:
            content = data[:end].replace(_DOT, _CRLF)[self._skip :]
        else:
            content = data[self._skip : end]
        self._skip = 0
        # A held CRLF always comes back with what follows it, so this needs no look-behind.
        if _has_bare_line_ends(content):
            if self._normalises:
                return _BARE.sub(_CRLF, content)
            self.has_bare_line_ends = True
        return content


class Stuffer:
    """Makes content fit to be sent. Bare CR and LF become CRLF: they must not be sent as they are,
    and a file with Unix line ends means lines by them."""

    def __init__(self) -> None:
        self._at_line_start = True
        self._held_cr = False

    def feed(self, chunk: bytes) -> bytes:
        """Return what to send for this chunk."""
        if self._held_cr:
            chunk = b"\r" + chunk
        self._held_cr = chunk.endswith(b"\r")
        if self._held_cr:
            chunk = chunk[:-1]
        if not chunk:
            return b""
        if _has_bare_line_ends(chunk):
            chunk = _BARE.sub(_CRLF, chunk)
        first = b"." if self._at_line_start and chunk.startswith(b".") else b""
        self._at_line_start = chunk.endswith(_CRLF)
        return first + chunk.replace(_DOT, b"\r\n..")

    def end(self) -> bytes:
        """Return what completes the mail: its last line's end when it is missing, and the dot."""
        return END if self._at_line_start and not self._held_cr else _CRLF + END
