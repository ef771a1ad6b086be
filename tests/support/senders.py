"""An SMTP client of the standard library's, apart from postroad's own, that sends samples."""

from __future__ import annotations

import smtplib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    """The reply that decided over a mail: the first refusal, else the last reply."""

    code: int
    text: str


@dataclass(frozen=True)
class SampleMail:
    """One mail to send; `declared_bytes` is a wrong size for SIZE."""

    sender: str | None
    recipients: Sequence[str]
    content: bytes
    declared_bytes: int | None = None


class Sender:
    """Sends mails one after the other over as few connections as it can."""

    def __init__(self, host: str, port: int, timeout_seconds: float = 30) -> None:
        self._host, self._port = host, port
        self._timeout_seconds = timeout_seconds
        self._session: smtplib.SMTP | None = None

    def send(self, mail: SampleMail) -> Reply:
        """Send one mail. Raises: OSError or smtplib.SMTPException when the connection broke: the
        mail was not acknowledged."""
        try:
            return self._send(mail)
        except (OSError, smtplib.SMTPException):
            self.close()
            raise

    def send_all(self, mails: Iterable[SampleMail]) -> list[Reply]:
        """Send all mails; return the replies in their order."""
        try:
            return [self.send(mail) for mail in mails]
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> smtplib.SMTP:
        if self._session is None:
            self._session = smtplib.SMTP(
                self._host, self._port, "sender.example", timeout=self._timeout_seconds
            )
            self._session.ehlo()
        return self._session

    def _send(self, mail: SampleMail) -> Reply:
        session = self._open()
        addresses = [mail.sender or "", *mail.recipients]
        options = [f"SIZE={mail.declared_bytes or len(mail.content)}"]
        if not mail.content.isascii():
            options.append("BODY=8BITMIME")
        if not all(address.isascii() for address in addresses):
            options.append("SMTPUTF8")
        code, text = session.mail(mail.sender or "", options)
        for recipient in mail.recipients:
            if code != 250:
                break
            code, text = session.rcpt(recipient)
        if code == 250:
            code, text = session.data(mail.content)
        if code != 250:
            session.rset()
        return Reply(code, text.decode(errors="replace"))
