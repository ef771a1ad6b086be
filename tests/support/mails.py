"""Mails of many shapes, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8

from postroad.domain.mail.mail import DsnOptions, Mail, RecipientDsn

WORDS = (
    *("road", "post", "coach", "horse", "inn", "letter", "seal", "wax", "rider", "relay"),
    *("bell", "milestone", "bridge", "toll", "lantern", "harness", "stable", "courier"),
)


@dataclass(frozen=True)
class Sample:
    """One mail and what it shows. `number` is in its content, so no two are alike."""

    number: int
    shape: str
    sender: str | None
    recipients: tuple[str, ...]
    content: bytes
    dsn: DsnOptions | None = None

    @property
    def mail(self) -> Mail:
        """As it is handed to a queue."""
        return Mail(
            self.sender, self.recipients, self.content, name=f"sample-{self.number}", dsn=self.dsn
        )

    @property
    def sent(self) -> bytes:
        """The content as DATA carries it: with a line end at its end."""
        return (
            self.content
            if self.content.endswith(b"\r\n") or not self.content
            else (self.content + b"\r\n")
        )


def samples(count: int = 200, seed: int = 1) -> Iterator[Sample]:
    """Yield `count` mails, each shape in turn."""
    randomness = random.Random(seed)
    shapes = list(SHAPES.items())
    for number in range(count):
        name, shape = shapes[number % len(shapes)]
        plain = Sample(
            number,
            name,
            f"sender{number}@origin.example",
            (f"recipient{number}@destination{randomness.randrange(5)}.example",),
            b"",
        )
        yield shape(plain, randomness)


def _text(randomness: random.Random, words: int) -> str:
    return " ".join(randomness.choice(WORDS) for _ in range(words))


def _header(sample: Sample, *more: str) -> bytes:
    lines = (
        f"From: <{sample.sender or 'mailer-daemon@origin.example'}>",
        "To: undisclosed-recipients:;",
        f"Subject: {sample.shape} {sample.number}",
        f"Message-ID: <{sample.number}.{sample.shape}@origin.example>",
        "Date: Sat, 21 Nov 2026 12:00:00 +0000",
        *more,
    )
    return "".join(f"{line}\r\n" for line in lines).encode()


def _with_body(sample: Sample, body: bytes, *more: str) -> Sample:
    return replace(sample, content=_header(sample, *more) + b"\r\n" + body)


def _plain(sample: Sample, randomness: random.Random) -> Sample:
    lines = [_text(randomness, 8) for _ in range(randomness.randrange(1, 40))]
    return _with_body(sample, "".join(f"{line}\r\n" for line in lines).encode())


def _eight_bit(sample: Sample, randomness: random.Random) -> Sample:
    body = (
        f"Grüße, {_text(randomness, 5)} — à bientôt\r\n".encode() + bytes(range(128, 256)) + b"\r\n"
    )
    return _with_body(sample, body, "Content-Transfer-Encoding: 8bit")


def _encoded_header(sample: Sample, randomness: random.Random) -> Sample:
    message = EmailMessage(policy=SMTP)
    message["From"] = sample.sender
    message["Subject"] = f"Poststraße {sample.number} 郵便 {_text(randomness, 3)}"
    message.set_content(_text(randomness, 30))
    return replace(sample, content=message.as_bytes())


def _raw_utf8_header(sample: Sample, randomness: random.Random) -> Sample:
    message = EmailMessage(policy=SMTPUTF8)
    message["From"] = sample.sender
    message["Subject"] = f"Poststraße {sample.number} 郵便 {_text(randomness, 3)}"
    message.set_content(_text(randomness, 30))
    return replace(sample, content=message.as_bytes())


def _utf8_address(sample: Sample, randomness: random.Random) -> Sample:
    return _plain(
        replace(sample, recipients=(f"postbüro{sample.number}@straße.example",)), randomness
    )


def _long_lines(sample: Sample, randomness: random.Random) -> Sample:
    lines = [randomness.choice("abc.") * 998 for _ in range(5)]
    return _with_body(sample, "".join(f"{line}\r\n" for line in lines).encode())


def _dots(sample: Sample, randomness: random.Random) -> Sample:
    lines = [".", "..", "...", ". ", ".hidden", "a.", "", "..\t."]
    randomness.shuffle(lines)
    return _with_body(sample, "".join(f"{line}\r\n" for line in lines).encode() + b".\r\n")


def _dot_first(sample: Sample, randomness: random.Random) -> Sample:
    return replace(sample, content=f".{_text(randomness, 3)} {sample.number}\r\n.\r\n".encode())


def _multipart(sample: Sample, randomness: random.Random) -> Sample:
    message = EmailMessage(policy=SMTP)
    message["From"] = sample.sender
    message["Subject"] = f"attachment {sample.number}"
    message.set_content(_text(randomness, 20))
    message.add_alternative(f"<p>{_text(randomness, 20)}</p>", subtype="html")
    message.add_attachment(
        randomness.randbytes(randomness.randrange(1, 20_000)),
        maintype="application",
        subtype="octet-stream",
        filename="Brief.bin",
    )
    return replace(sample, content=message.as_bytes())


def _empty_body(sample: Sample, randomness: random.Random) -> Sample:
    return _with_body(sample, b"")


def _header_only(sample: Sample, randomness: random.Random) -> Sample:
    return replace(sample, content=_header(sample))


def _null_sender(sample: Sample, randomness: random.Random) -> Sample:
    return _plain(replace(sample, sender=None), randomness)


def _several_recipients(sample: Sample, randomness: random.Random) -> Sample:
    recipients = tuple(
        f"recipient{sample.number}-{index}@destination{index % 4}.example"
        for index in range(randomness.randrange(2, 12))
    )
    return _plain(replace(sample, recipients=recipients), randomness)


def _no_final_line_end(sample: Sample, randomness: random.Random) -> Sample:
    return _with_body(sample, f"the end {sample.number}".encode())


def _large(sample: Sample, randomness: random.Random) -> Sample:
    line = "".join(randomness.choice("abcdefgh.") for _ in range(76)) + "\r\n"
    return _with_body(sample, line.encode() * (2**20 // 78))


def _with_dsn(sample: Sample, randomness: random.Random) -> Sample:
    recipient = sample.recipients[0]
    options = DsnOptions(
        ret=randomness.choice(("FULL", "HDRS")),
        envid=f"id+{sample.number} =x",
        recipients={
            recipient: RecipientDsn(("SUCCESS", "FAILURE"), f"rfc822;first+{recipient}"),
        },
    )
    return _plain(replace(sample, dsn=options), randomness)


def _quoted_local_part(sample: Sample, randomness: random.Random) -> Sample:
    return _plain(replace(sample, recipients=(f'"a b.{sample.number}"@inn.example',)), randomness)


SHAPES: dict[str, Callable[[Sample, random.Random], Sample]] = {
    "plain": _plain,
    "eight-bit": _eight_bit,
    "encoded-header": _encoded_header,
    "raw-utf8-header": _raw_utf8_header,
    "utf8-address": _utf8_address,
    "long-lines": _long_lines,
    "dots": _dots,
    "dot-first": _dot_first,
    "multipart": _multipart,
    "empty-body": _empty_body,
    "header-only": _header_only,
    "null-sender": _null_sender,
    "several-recipients": _several_recipients,
    "no-final-line-end": _no_final_line_end,
    "large": _large,
    "dsn": _with_dsn,
    "quoted-local-part": _quoted_local_part,
}
