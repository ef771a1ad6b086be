"""The reports that senders got, as the standard library reads them."""

from __future__ import annotations

import email
import email.policy
from email.message import EmailMessage
from typing import cast

from kills.mails import Key


class Reports:
    """Who was reported as failed to which sender, and in which reports."""

    def __init__(self) -> None:
        self.names_by_key = dict[Key, set[str]]()

    def arrive(self, sender: str, content: bytes) -> str:
        """Take a report to a sender; return its name, which tells it from others."""
        report = email.message_from_bytes(content, policy=email.policy.default)
        assert report.get_content_type() == "multipart/report", report["Subject"]
        name = str(report["Message-ID"])
        status = cast("list[EmailMessage]", report.get_payload())[1]
        for group in cast("list[EmailMessage]", status.get_payload()):
            if group["Action"] == "failed":
                recipient = str(group["Final-Recipient"]).partition(";")[2].strip()
                self.names_by_key.setdefault((sender, recipient), set()).add(name)
        return name
