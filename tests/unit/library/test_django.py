"""A Django program sends through a queue: in a process of its own, which Django's settings fill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from postroad import open_queue
from postroad.testing import take
from support.repository import ROOT

PROGRAM = """
import sys
from django.conf import settings
from django.core.mail import EmailMessage, get_connection, send_mail

settings.configure(
    EMAIL_BACKEND="postroad.django.EmailBackend",
    POSTROAD_QUEUE=sys.argv[1],
    USE_I18N=False,
)
print(send_mail("Grüße", "hello", "Shop <shop@example.org>", ["b@example.net"]))
both = [EmailMessage("1", "x", to=["b@example.net"], bcc=["c@example.net"]), EmailMessage("2", "x")]
print(get_connection().send_messages(both))
print(send_mail("3", "x", "a@example.org", ["b" * 320 + "@example.net"], fail_silently=True))
settings.POSTROAD_QUEUE = "embedded:///proc/postroad/queue"  # where no directory can be made
print(send_mail("4", "x", "a@example.org", ["b@example.net"], fail_silently=True))
try:
    send_mail("5", "x", "a@example.org", ["b@example.net"])
except Exception as error:
    print(type(error).__name__)
settings.POSTROAD_QUEUE = ""
try:
    send_mail("6", "x", "a@example.org", ["b@example.net"])
except Exception as error:
    print(type(error).__name__, error)
"""


async def test_mail_of_django_waits_in_the_queue(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, url],
        capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip
    assert ended.stdout.splitlines() == [
        "1",
        "1",
        "0",
        "0",
        "InvalidQueueURL",
        "ImproperlyConfigured POSTROAD_QUEUE: write the URL of a queue",
    ], ended.stderr

    async with open_queue(url) as queue:
        greeting, other = await take(queue)
    assert (greeting.sender, greeting.recipients) == ("shop@example.org", ("b@example.net",))
    assert greeting.message()["Subject"] == "Grüße"
    assert other.recipients == ("b@example.net", "c@example.net")
    assert other.message()["Bcc"] is None
