"""The mails that the demo sends, and the summary of what became of them."""

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

from stack import patience

SAMPLES = Path(__file__).parent / "mails"
DOMAIN = "demo.example"


@dataclass
class DemoMail:
    """One mail of the demo. Its recipient is its own, so that deliveries can be counted."""

    number: int
    file: Path
    content: bytes
    accepted_at: datetime | None = None
    reply: str = ""
    received_at: list[datetime] = field(default_factory=list)
    intact: bool = True

    @property
    def recipient(self) -> str:
        return f"mail-{self.number:04d}@{DOMAIN}"

    @property
    def subject(self) -> str:
        header = BytesHeaderParser(policy=policy.compat32).parsebytes(self.content[:65536])
        subject = str(header.get("Subject", "(no subject)"))
        try:
            subject = str(make_header(decode_header(subject)))
        except (LookupError, ValueError):
            pass  # an unknown charset or a broken word: as it stands
        return " ".join(subject.split())


def read_mails(folder: Path) -> list[DemoMail]:
    """Read the `.eml` files of a folder, with line ends as SMTP sends them."""
    files = sorted(folder.glob("*.eml"))
    return [
        DemoMail(number, file, with_smtp_line_ends(file.read_bytes()))
        for number, file in enumerate(files, 1)
    ]


def with_smtp_line_ends(content: bytes) -> bytes:
    """Return the content with CRLF at every line's end, also the last: what SMTP can carry."""
    lines = re.sub(rb"\r\n|\r|\n", b"\r\n", content)
    return lines if lines.endswith(b"\r\n") else lines + b"\r\n"


def send(mails: Iterable[DemoMail], host: str, port: int) -> None:
    """Send the mails in one SMTP session; note when each was accepted."""
    with smtplib.SMTP(
        host, port, local_hostname="demo.example", timeout=patience.stretched(60)
    ) as session:
        session.ehlo()
        for mail in mails:
            options = ["BODY=8BITMIME"] if not mail.content.isascii() else []
            session.mail(f"sender@{DOMAIN}", [*options, f"SIZE={len(mail.content)}"])
            code, reply = session.rcpt(mail.recipient)
            if code == 250:
                code, reply = session.data(mail.content)
            mail.reply = f"{code} {reply.decode(errors='replace')}"
            if code == 250:
                mail.accepted_at = datetime.now(UTC)
            else:
                session.rset()


def note_received(
    mails: Sequence[DemoMail], received: Iterable[tuple[str, datetime, bytes]]
) -> None:
    """Note on each mail when it was received: from (recipient, time, content)."""
    by_recipient = {mail.recipient: mail for mail in mails}
    for mail in mails:
        mail.received_at.clear()
    for recipient, at, content in received:
        if found := by_recipient.get(recipient):
            found.received_at.append(at)
            found.intact = found.intact and content.endswith(found.content)


@dataclass(frozen=True)
class Summary:
    """The demo's result. Damaged mails count as lost: what arrived was another mail."""

    accepted: int
    delivered: int
    lost: int
    duplicated: int

    @classmethod
    def of(cls, mails: Sequence[DemoMail]) -> Summary:
        accepted = [mail for mail in mails if mail.accepted_at]
        delivered = [mail for mail in accepted if mail.received_at and mail.intact]
        return cls(
            accepted=len(accepted),
            delivered=len(delivered),
            lost=len(accepted) - len(delivered),
            duplicated=sum(max(0, len(mail.received_at) - 1) for mail in mails),
        )

    @property
    def is_good(self) -> bool:
        return self.accepted == self.delivered > 0 and not self.lost and not self.duplicated

    def __str__(self) -> str:
        return (
            f"demo: {self.accepted} accepted, {self.delivered} delivered, "
            f"{self.lost} lost, {self.duplicated} duplicated"
        )
