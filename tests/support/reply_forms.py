"""Replies in forms that RFC 5321 does not have, and next hops do: each is one reply."""

from __future__ import annotations

from collections.abc import Callable

ReplyForm = Callable[[int], bytes]
"""Code → one reply with it."""


def _line(between: bytes, end: bytes = b"\r\n") -> ReplyForm:
    return lambda code: b"%d" % code + between + end


def _with(text: bytes) -> ReplyForm:
    return _line(b" " + text)


def _lines(*parts: bytes) -> ReplyForm:
    """Return a form of parts, in which # stands for the code."""
    return lambda code: b"".join(parts).replace(b"#", b"%d" % code)


def _another(code: int) -> int:
    """Return another code of the same class, by which the same is done."""
    return {354: 355, 334: 335}.get(code, code + 1)


READABLE: dict[str, ReplyForm] = {
    "LF alone": _line(b" ok", b"\n"),
    "LF alone, no text": _line(b"", b"\n"),
    "LF LF": _line(b" ok", b"\n\n"),
    "LF CRLF": _line(b" ok", b"\n\r\n"),
    "CRCRLF": _line(b" ok", b"\r\r\n"),
    "CRCRCRLF": _line(b" ok", b"\r\r\r\n"),
    "CR in the text": _with(b"no such\r user"),
    "CR behind the code": _line(b"\rok"),
    "LF in the text": _with(b"no such\nuser\n\nhere"),
    "header fields in the text": _with(b"a\rb\nInjected-Header: x\n\nbody\0 z"),
    "NUL in the text": _with(b"a\0b"),
    "NUL behind the code": _line(b"\0ok"),
    "NUL at the end": _line(b" ok\0"),
    "tab behind the code": _line(b"\tok"),
    "two blanks": _line(b"  ok"),
    "blanks at the end": _line(b" ok" + b" " * 1000),
    "no text": _line(b""),
    "blank and no text": _line(b" "),
    "no blank": _line(b"OK"),
    "stop behind the code": _line(b".ok"),
    "colon behind the code": _line(b": ok"),
    "comma behind the code": _line(b", ok"),
    "dash behind a blank": _line(b" - ok"),
    "underline behind the code": _line(b"_ok"),
    "code twice": _lines(b"# # ok\r\n"),
    "enhanced code of another class": _with(b"9.9.9 ok"),
    "half an enhanced code": _with(b"5.1 ok"),
    "Latin-1": _with("Größe".encode("latin-1")),
    "UTF-8": _with("Größe 你好".encode()),
    "cut UTF-8": _with("你".encode()[:2]),
    "invalid octets": _with(bytes(range(128, 256))),
    "byte order mark": _line(b" \xef\xbb\xbfok"),
    "escape sequences": _with(b"\x1b[31mred\x1b]0;title\x07"),
    "all controls": _with(bytes(each for each in range(32) if each != 10)),
    "DEL": _with(b"\x7f"),
    "line separator": _with("a\u2028b\u2029c\x85d".encode()),
    "format characters": _with(b'%s %n {0} {} \\r\\n "quoted"'),
    "a command": _with(b"RCPT TO:<evil@example.org>"),
    "a reply": _with(b"554 no"),
    "513 octets": _with(b"x" * 507),
    "60,000 octets": _with(b"x" * 60_000),
    "60,000 octets of LF": _with(b"x\n" * 30_000),
    "3,000 lines": _lines(b"#-more\r\n" * 3000, b"# end\r\n"),
    "lines without text": _lines(b"#-\r\n#-\r\n#\r\n"),
    "lines that end by LF": _lines(b"#-one\n#-two\n# three\n"),
    "lines that end by CRCRLF": _lines(b"#-one\r\r\n# two\r\r\n"),
    "lines that end in turns": _lines(b"#-one\n#-two\r\n#-three\r\r\n# four\n"),
    "a line without a code": _lines(b"#-one\r\n  two\r\n# three\r\n"),
    "a line without a code, by LF": _lines(b"#-one\n  two\n# three\n"),
    "an empty line between": _lines(b"#-one\r\n\r\n# three\r\n"),
    "a line with a number": _lines(b"#-one\r\n123456 mails\r\n1 mail\r\n# three\r\n"),
    "a line with three digits": _lines(b"#-one\r\n100 mails\r\n999\r\n# three\r\n"),
    "tab behind the last code": _lines(b"#-one\r\n#\ttwo\r\n"),
    "two dashes": _lines(b"#--one\r\n# two\r\n"),
    "blank before the code": _lines(b" # ok\r\n"),
    "tab before the code": _lines(b"\t# ok\r\n"),
    "CR before the code": _lines(b"\r# ok\r\n"),
    "NUL before the code": _lines(b"\0# ok\r\n"),
    "another code of the class": lambda code: b"%d-one\r\n%d two\r\n" % (_another(code), code),
}
"""Those by whose digits a client knows what is meant."""

UNCLEAR: dict[str, ReplyForm] = {
    "success, then refusal": lambda code: b"250-one\r\n550 two\r\n",
    "refusal, then success": lambda code: b"550-one\r\n250 two\r\n",
    "transient, then permanent": lambda code: b"450-one\r\n550 two\r\n",
    "go ahead, then refusal": lambda code: b"354-one\r\n554 two\r\n",
    "refusal, then go ahead": lambda code: b"554-one\r\n354 two\r\n",
    "three classes": lambda code: b"250-one\r\n450-two\r\n550 three\r\n",
    "999": lambda code: b"999 weird\r\n",
    "000": lambda code: b"000 weird\r\n",
    "150": lambda code: b"150 weird\r\n",
    "600": lambda code: b"600 weird\r\n",
    "999 in two lines": lambda code: b"999-weird\r\n999 weird\r\n",
}
"""Those whose digits mean nothing, or not one thing."""

NO_REPLY: dict[str, ReplyForm] = {
    "no digits": lambda code: b"no such user\r\n",
    "no octets": lambda code: b"\r\n",
    "LF alone": lambda code: b"\n",
    "two digits": lambda code: b"25 ok\r\n",
    "four digits": lambda code: b"2500 ok\r\n",
    "words": lambda code: b"two fifty\r\n",
    "octets": lambda code: b"\xff\xfe\0\0\r\n",
    "digits of another script": lambda code: "\u0662\u0665\u0660 ok\r\n".encode(),
    "a line without end": lambda code: b"250 " + b"x" * 70_000,
    "a line of 70,000 octets": lambda code: b"%d " % code + b"x" * 70_000 + b"\r\n",
    "a reply without end": lambda code: b"%d-more\r\n" % code * 200_000,
    "a reply of 2 MiB": lambda code: (b"%d-" % code + b"x" * 60_000 + b"\r\n") * 35,
}
"""What is no reply."""
