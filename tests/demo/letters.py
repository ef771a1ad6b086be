"""What the demo sends, and the account it gives of each mail afterwards."""

from __future__ import annotations

import re
import smtplib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import policy
from email.header import decode_header, make_header
from email.parser import BytesHeaderParser
from pathlib import Path

SAMPLES = Path(__file__).parent / "mails"
DOMAIN = "demo.example"


@dataclass
class Letter:
    """One mail of the demo. Each gets a recipient of its own, so that arrivals can be counted."""

    number: int
    file: Path
    content: bytes
    accepted_at: datetime | None = None
    reply: str = ""
    arrivals: list[datetime] = field(default_factory=list)
    intact: bool = True

    @property
    def recipient(self) -> str:
        return f"letter-{self.number:04d}@{DOMAIN}"

    @property
    def subject(self) -> str:
        header = BytesHeaderParser(policy=policy.compat32).parsebytes(self.content[:65536])
        subject = str(header.get("Subject", "(no subject)"))
        try:
            subject = str(make_header(decode_header(subject)))
        except (LookupError, ValueError):
            pass  # an unknown charset or a broken word: as it stands
        return " ".join(subject.split())


def read_letters(folder: Path) -> list[Letter]:
    """Read the `.eml` files of a folder, with line ends as SMTP sends them."""
    files = sorted(folder.glob("*.eml"))
    return [
        Letter(number, file, with_smtp_line_ends(file.read_bytes()))
        for number, file in enumerate(files, 1)
    ]


def with_smtp_line_ends(content: bytes) -> bytes:
    """Return the content with CRLF at every line's end, also the last: what SMTP can carry."""
    lines = re.sub(rb"\r\n|\r|\n", b"\r\n", content)
    return lines if lines.endswith(b"\r\n") else lines + b"\r\n"


def send(letters: Iterable[Letter], host: str, port: int) -> None:
    """Send the letters in one SMTP session; note when each was accepted."""
    with smtplib.SMTP(host, port, local_hostname="demo.example", timeout=60) as session:
        session.ehlo()
        for letter in letters:
            options = ["BODY=8BITMIME"] if not letter.content.isascii() else []
            session.mail(f"sender@{DOMAIN}", [*options, f"SIZE={len(letter.content)}"])
            code, reply = session.rcpt(letter.recipient)
            if code == 250:
                code, reply = session.data(letter.content)
            letter.reply = f"{code} {reply.decode(errors='replace')}"
            if code == 250:
                letter.accepted_at = datetime.now(UTC)
            else:
                session.rset()


def note_arrivals(
    letters: Sequence[Letter], arrivals: Iterable[tuple[str, datetime, bytes]]
) -> None:
    """Give each letter its arrivals: (recipient, when, the bytes that came)."""
    by_recipient = {letter.recipient: letter for letter in letters}
    for letter in letters:
        letter.arrivals.clear()
    for recipient, at, content in arrivals:
        if found := by_recipient.get(recipient):
            found.arrivals.append(at)
            found.intact = found.intact and content.endswith(found.content)


@dataclass(frozen=True)
class Account:
    """The demo's result. Damaged mails count as lost: what arrived was another mail."""

    accepted: int
    delivered: int
    lost: int
    duplicated: int

    @classmethod
    def of(cls, letters: Sequence[Letter]) -> Account:
        accepted = [letter for letter in letters if letter.accepted_at]
        delivered = [letter for letter in accepted if letter.arrivals and letter.intact]
        return cls(
            accepted=len(accepted),
            delivered=len(delivered),
            lost=len(accepted) - len(delivered),
            duplicated=sum(max(0, len(letter.arrivals) - 1) for letter in letters),
        )

    @property
    def is_good(self) -> bool:
        return self.accepted == self.delivered > 0 and not self.lost and not self.duplicated

    def __str__(self) -> str:
        return (
            f"demo: {self.accepted} accepted, {self.delivered} delivered, "
            f"{self.lost} lost, {self.duplicated} duplicated"
        )
