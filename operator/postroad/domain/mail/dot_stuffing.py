"""Form of content after DATA: leading dots doubled, every line ended by CRLF, a lone dot last.

Both directions work on chunks of any size and hold back at most four octets between them. Reading
is strict: only CRLF "." CRLF ends the mail. A bare CR or LF is refused, because a next hop that
ends lines there would find commands inside the mail (SMTP smuggling), or is made CRLF after the end
and the doubled dots were looked for. NUL is refused or left out in the same way: a next hop that
drops NUL before it looks for the end would find CRLF "." CRLF in CRLF NUL "." CRLF. Other control
characters pass: no server is known to drop them there, and a text may hold them (RFC 5322 4.1).
Source: RFC 5321 4.5.2 (transparency), 2.3.8 (lines), 4.1.1.4 (DATA)."""

import re

from postroad.domain.mail import shapes

END = b".\r\n"
_CRLF = b"\r\n"
_DOT = b"\r\n."
_BLANKS = b" \t"
_TEXT = re.compile(rb"[^ \t]")
_FIRST_OCTET = re.compile(rb"[^ \t\x80-\xbf]")
"""Of a character that is no blank."""

_MAX_CHARACTER = 4
"""Octets of UTF-8. A run of more octets without a first one is not UTF-8, and is cut anywhere."""

_TERMINATOR = b"\r\n.\r\n"
_TAILS = tuple(_TERMINATOR[:length] for length in range(len(_TERMINATOR) - 1, 0, -1))


class Unstuffer:
    """Finds the end of a mail in what follows DATA, and takes the doubled dots away."""

    def __init__(self, normalises_line_ends: bool = False) -> None:
        self._normalises = normalises_line_ends
        # A virtual CRLF before the first line lets the first line be treated as any other.
        self._held = _CRLF
        self._skip = len(_CRLF)

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
        if not self._normalises:
            return content
        # A held CRLF always comes back with what follows it, so this needs no look-behind.
        if shapes.has_bare_line_ends(content):
            content = shapes.with_crlf(content)
        return content.replace(b"\0", b"")  # last: a CR and an LF around it are no CRLF


class LineEnds:
    """Ends every line of a content by CRLF. Bare CR and LF become CRLF: they must not be sent as
    they are, and a file with Unix line ends means lines by them. With `folds`, lines longer than
    MAX_LINE are folded. `shape`: what is known of the whole content. One that has nothing to end or
    to fold goes through untouched, chunk by chunk."""

    def __init__(self, shape: shapes.Shape | None = None, *, folds: bool = False) -> None:
        self._folder = _Folder() if folds and (shape is None or shape.folds) else None
        self.is_verbatim = shape is not None and not shape.bare_line_ends and self._folder is None
        """True if `feed` returns each chunk as it is."""
        # A content that goes through untouched ends as its shape says.
        self._is_at_start = not (self.is_verbatim and shape and not shape.is_terminated)
        self._held_cr = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the next octets of the content, not cut between CR and LF unless verbatim."""
        if self.is_verbatim:
            return chunk
        if self._held_cr:
            chunk = b"\r" + chunk
        self._held_cr = chunk.endswith(b"\r")
        if self._held_cr:
            chunk = chunk[:-1]
        if not chunk:
            return b""
        if shapes.has_bare_line_ends(chunk):
            chunk = shapes.with_crlf(chunk)
        self._is_at_start = chunk.endswith(_CRLF)
        return chunk if self._folder is None else self._folder.feed(chunk)

    def end(self) -> bytes:
        """Return what completes the content: its last line's end when it is missing."""
        rest = b"" if self._folder is None else self._folder.end()
        return rest if self._is_at_start and not self._held_cr else rest + _CRLF


class Stuffer:
    """Makes content fit to be sent: its lines as `LineEnds` makes them, leading dots doubled."""

    def __init__(self, shape: shapes.Shape | None = None, *, folds: bool = False) -> None:
        self._lines = LineEnds(shape, folds=folds)
        is_as_is = shape is not None and shape.is_sent_as_is
        self._is_verbatim = is_as_is and self._lines.is_verbatim
        self._at_line_start = True
        self._held_cr = False

    def feed(self, chunk: bytes) -> bytes:
        if self._is_verbatim:
            return chunk
        return self._stuffed(self._lines.feed(chunk))

    def _stuffed(self, chunk: bytes) -> bytes:
        if self._held_cr:
            chunk = b"\r" + chunk
        self._held_cr = chunk.endswith(b"\r")
        if self._held_cr:
            chunk = chunk[:-1]
        if not chunk:
            return b""
        first = b"." if self._at_line_start and chunk.startswith(b".") else b""
        self._at_line_start = chunk.endswith(_CRLF)
        return first + chunk.replace(_DOT, b"\r\n..")

    def end(self) -> bytes:
        """Return what completes the mail: its last line's end when it is missing, and the dot."""
        return self._stuffed(self._lines.end()) + END


class _Folder:
    """Folds lines longer than MAX_LINE, as Postfix does: CRLF and a space between the pieces. In a
    header this is folding; in a body it changes the text, and spoils a signature. No fold makes a
    line of blanks alone, which some take for the end of a header (RFC 5322 2.2.3, 3.2.2): where
    blanks leave no other choice, a line stays longer. None stands within a character of UTF-8."""

    def __init__(self) -> None:
        self._held = b""
        """Length of the line under way behind its last fold: its next fold may be before the end of
        that."""
        self._is_folded = False

    def feed(self, data: bytes) -> bytes:
        """Return the next octets, folded; they are not cut between CR and LF."""
        *ended, last = (self._held + data).split(_CRLF)
        done: list[bytes] = []
        for line in ended:
            done += (shapes.FOLD.join(self._pieces(line)), _CRLF)
            self._is_folded = False
        *pieces, self._held = self._pieces(last)
        for piece in pieces:
            done += (piece, shapes.FOLD)
            self._is_folded = True
        return b"".join(done)

    def end(self) -> bytes:
        """Return what was held back."""
        return self._held

    def _pieces(self, line: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        room = shapes.MAX_CONTINUATION if self._is_folded else shapes.MAX_LINE
        begin = 0
        while len(line) - begin > room and (cut := _cut(line, begin, begin + room)) is not None:
            pieces.append(line[begin:cut])
            begin, room = cut, shapes.MAX_CONTINUATION
        return [*pieces, line[begin:]]


def _cut(line: bytes, begin: int, latest: int) -> int | None:
    """Return the last place up to `latest`, or the first one behind it, at which a line can be
    folded: before an octet that is no blank, and with another one since `begin`."""
    text = _TEXT.search(line, begin)
    if text is None:
        return None
    cut = begin + len(line[begin : latest + 1].rstrip(_BLANKS)) - 1
    for before in range(cut, max(cut - _MAX_CHARACTER, text.start()), -1):
        if line[before] & 0xC0 != 0x80:  # the first octet of a character
            return before
    if cut - text.start() >= _MAX_CHARACTER:
        return cut
    behind = _FIRST_OCTET.search(line, max(text.start(), latest) + 1)
    return None if behind is None else behind.start()
