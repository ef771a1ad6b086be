"""Mail that flows into a sandbox while something happens to it: nothing acknowledged is lost.

A sender sends one mail after another and records which were acknowledged. A mail whose session
broke was not acknowledged; the sender sends it again as another mail, as a real client would.
"""

from __future__ import annotations

import smtplib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from support.kubectl import eventually
from support.sandbox import Sandbox
from support.senders import Reply, SampleMail, Sender


class Flow:
    """A thread that sends mail, whatever happens to the intake, to recipients of its `name`."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self._sandbox, self.name = sandbox, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[str] = []
        self.given_up: list[Reply] = []
        """Replies after which a client would give its mail up, though only our servers were
        away."""
        self.offered = 0

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def wait_for_more(self, count: int, within_seconds: float) -> None:
        """Wait until so many more mails were acknowledged, so that the intake works (again)."""
        goal = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= goal, within_seconds=within_seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._sandbox.smtp() as port, closing(Sender("127.0.0.1", port)) as sender:
                    self._send(sender)
            except Exception:  # the forwarding ended with the pod: open another
                time.sleep(0.5)

    def _send(self, sender: Sender) -> None:
        while not self._stop.is_set():
            self.offered += 1
            recipient = f"{self.name}-{self.offered:06d}@inn.example"
            content = f"Subject: {self.offered}\r\n\r\n{'x' * 500}\r\n".encode()
            try:
                reply = sender.send(SampleMail("a@origin.example", [recipient], content))
            except smtplib.SMTPException as error:
                raise ConnectionError from error
            if reply.code == 250:
                self.acknowledged.append(recipient)
            elif reply.code >= 500:
                self.given_up.append(reply)
            time.sleep(0.02)


@contextmanager
def flowing(sandbox: Sandbox, name: str = "flow") -> Iterator[Flow]:
    """Let mail flow; afterwards every acknowledged mail must arrive."""
    flow = Flow(sandbox, name)
    flow.start()
    flow.wait_for_more(20, within_seconds=60)
    yield flow
    flow.wait_for_more(20, within_seconds=120)
    flow.finish()
    assert flow.given_up == []
    eventually(lambda: sandbox.sink.has_all(flow.acknowledged), within_seconds=240)
    all_else_is_unacknowledged(sandbox, set(flow.acknowledged))
    eventually(lambda: republished(sandbox), within_seconds=60)
    eventually(lambda: sandbox.size() == 0, within_seconds=60)


def republished(sandbox: Sandbox) -> bool:
    """Run `republish`. A server that has only just come back may refuse it for a while, as it may
    refuse a user."""
    return "republished" in sandbox.postroad("republish", "--older-than", "0s")


def all_else_is_unacknowledged(sandbox: Sandbox, acknowledged: set[str]) -> None:
    """Between the row of a mail and its message, a killed program leaves a row for `republish`; no
    client got a 250 for such a mail."""

    def left() -> set[str]:
        return {recipient for mail in sandbox.browse() for recipient in mail["recipients"]}

    eventually(lambda: acknowledged.isdisjoint(left()), within_seconds=60)


def duplicates(sandbox: Sandbox, flow: Flow) -> int:
    arrived = sandbox.sink.contents().items()
    return sum(len(came) - 1 for recipient, came in arrived if recipient.startswith(flow.name))
