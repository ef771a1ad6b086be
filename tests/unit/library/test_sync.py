"""Programs without asyncio: one loop behind all handles, which forks leave; smtplib, Django."""

from __future__ import annotations

import asyncio
import os
import signal
import smtplib
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from postroad import HandedMail, Mail, Selector
from postroad.errors import InvalidMail, QueueClosed, QueueNotFound
from postroad.ports.mail_queue import MailQueue
from postroad.sync import SMTP, SyncQueue, open_queue
from postroad.testing import take
from support.repository import ROOT


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SyncQueue]:
    with open_queue(f"embedded://{tmp_path}/queue", create=True) as opened:
        yield opened


def mail(number: int = 0) -> Mail:
    return Mail("a@example.org", [f"r{number}@example.net"], b"Subject: x\r\n\r\nhello\r\n")


def letter(**fields: str) -> EmailMessage:
    made = EmailMessage()
    for name, value in fields.items():
        made[name] = value
    made.set_content("hello\n")
    return made


def test_operations_return_when_they_are_done(queue: SyncQueue) -> None:
    first = queue.enqueue(mail(), key="once")
    assert queue.enqueue(mail(), key="once") == first
    ids = queue.enqueue_all(map(mail, range(1, 250)))
    selector = Selector(recipient="r0@example.net")

    assert [each.enqueue_id for each in queue.browse(selector)] == [first]
    assert {each.enqueue_id for each in queue.browse()} == {first, *ids}
    assert (queue.hold(selector), queue.release(selector), queue.flush(selector)) == (1, 1, 0)
    assert queue.expire(selector) == 1
    assert [each.mail.recipients for each in queue.dead_letters()] == [("r0@example.net",)]
    assert (queue.requeue(selector), queue.remove(selector)) == (1, 1)
    assert queue.discard(Selector.all()) == 0
    assert queue.purge() + queue.remove(Selector.all()) == 249
    assert queue.run(lambda each: each.ages()) is not None


def test_a_listing_may_be_left(queue: SyncQueue) -> None:
    queue.enqueue_all(map(mail, range(3)))

    assert next(iter(queue.browse())).mail.recipients == ("r0@example.net",)
    assert len(list(queue.browse())) == 3


def test_errors_are_those_of_the_queue(queue: SyncQueue, tmp_path: Path) -> None:
    with pytest.raises(InvalidMail):
        queue.enqueue(Mail("a@example.org", ["b@example.net"], Path("/nowhere")))
    with pytest.raises(QueueNotFound):
        open_queue(f"embedded://{tmp_path}/missing")
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed):
        queue.size()


def test_threads_share_a_queue(queue: SyncQueue) -> None:
    threads = [
        threading.Thread(target=lambda: [queue.enqueue(mail(each)) for each in range(10)])
        for _ in range(5)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert len(list(queue.browse())) == 50


FORKED = """
import os, signal, sys
from postroad import Mail
from postroad.sync import open_queue

def mail(sender): return Mail(sender, ["b@example.net"], b"x")

queue = open_queue(sys.argv[1], create=True)
queue.enqueue(mail("parent@example.org"))
reading, writing = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    queue.enqueue(mail("beside@example.org"))  # over the socket of its parent
    os.write(writing, b"x")
    while os.getppid() == parent:
        pass
    queue.enqueue(mail("behind@example.org"), key="behind")  # it is the owner now
    print(sorted(each.mail.sender for each in queue.browse()), flush=True)
    sys.exit()
os.read(reading, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_forked_goes_on_when_its_parent_was_killed(tmp_path: Path) -> None:
    """The child leaves lock and socket of its parent, or no process could own the store."""
    program = [sys.executable, "-c", FORKED, f"embedded://{tmp_path}/queue"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=60)

    assert ended.stdout == (
        "['behind@example.org', 'beside@example.org', 'parent@example.org']\n"
    ), ended.stderr


LEFT_OPEN = """
import atexit, sys
from postroad.errors import QueueClosed
from postroad.sync import open_queue

queue = open_queue(sys.argv[1], create=True)

@atexit.register
def at_the_end():
    try:
        queue.size()
    except QueueClosed:
        print("closed")
"""


def test_a_process_that_ends_hands_its_queue_over(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", LEFT_OPEN, url],
        capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\n", "")


@pytest.mark.timeout(60)
def test_a_listing_may_be_collected_in_the_thread_of_the_loop(queue: SyncQueue) -> None:
    for _ in range(2):
        queue.enqueue(mail())
    listings = [queue.browse()]
    assert next(listings[0]).mail.sender == "a@example.org"

    async def collect(_: MailQueue) -> None:
        listings.clear()

    queue.run(collect)

    assert queue.size().size == 2


@pytest.mark.timeout(60)
def test_a_coroutine_of_the_loop_does_not_wait_for_itself(queue: SyncQueue) -> None:
    async def size(_: MailQueue) -> int:
        return queue.size().size

    with pytest.raises(RuntimeError, match="awaits the methods of MailQueue"):
        queue.run(size)


LEFT_LISTING = """
import sys
from postroad import Mail
from postroad.sync import open_queue

queue = open_queue(sys.argv[1], create=True)
queue.enqueue(Mail("a@example.org", ["b@example.net"], b"x"))
listing = queue.browse()
print(next(listing).mail.sender)
"""


def test_a_process_ends_that_left_a_listing(tmp_path: Path) -> None:
    """At the end of the interpreter, the thread of the loop runs no more."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", LEFT_LISTING, f"embedded://{tmp_path}/queue"],
        capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "a@example.org\n", "")


def test_a_loop_of_consumption_ends_by_ctrl_c(queue: SyncQueue) -> None:
    seen: list[bytes] = []

    def handler(mail: HandedMail) -> None:
        seen.append(mail.content)
        os.kill(os.getpid(), 2)  # to the main thread, which waits

    queue.enqueue(mail())
    with pytest.raises(KeyboardInterrupt):
        queue.consume(handler)

    assert len(seen) == 1
    assert list(queue.browse()) == []  # the handler had its time to return


def test_a_second_sigterm_does_not_cut_the_drain(queue: SyncQueue) -> None:
    queue.enqueue(mail())
    main, ended = threading.main_thread().ident, threading.Event()
    assert main is not None

    async def handler(_: HandedMail) -> None:
        while sys._current_frames()[main].f_code.co_name != "wait":
            await asyncio.sleep(0.01)
        for _each in range(2):
            signal.pthread_kill(main, signal.SIGTERM)
            await asyncio.sleep(0.2)
        program = subprocess.Popen(["sleep", "5"])
        program.terminate()
        assert program.wait() == -signal.SIGTERM, "it ends as it did before"
        ended.set()

    queue.consume(handler)

    assert ended.is_set()
    assert queue.size().size == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_smtplib_is_replaced_without_a_server(queue: SyncQueue) -> None:
    sent = letter(From="Ann <a@example.org>", To="b@example.net", Bcc="c@example.net")
    with SMTP(queue) as smtp:
        smtp.starttls()
        smtp.login("user", "password")
        assert smtp.send_message(sent) == {}
        smtp.sendmail("Ann <a@example.org>", "jörg@example.net", "Subject: y\n\nhello\n")
    smtp.quit()

    first, second = queue.run(take)
    assert (first.sender, first.recipients) == ("a@example.org", ("b@example.net", "c@example.net"))
    assert first.message()["To"] == "b@example.net"
    assert first.message()["Bcc"] is None
    assert (second.recipients, second.content) == (
        ("jörg@example.net",),
        b"Subject: y\r\n\r\nhello\r\n",
    )


def test_commands_of_smtplib_succeed_without_a_connection(queue: SyncQueue) -> None:
    """Programs greet a server before and behind `starttls`, and ask by `noop` if it is there."""
    smtp = SMTP(queue)
    assert smtp.ehlo()[0] == smtp.helo("me.example.org")[0] == 250
    assert smtp.noop()[0] == smtp.rset()[0] == 250
    assert smtp.quit()[0] == 221
    smtp.send_message(letter(From="jörg@example.org", To="b@example.net"))

    assert [each.sender for each in queue.run(take)] == ["jörg@example.org"]


def test_smtplib_gets_its_own_errors(queue: SyncQueue) -> None:
    with pytest.raises(smtplib.SMTPDataError) as refused:
        SMTP(queue).sendmail("a@example.org", ["no address"], b"")
    assert refused.value.smtp_code == 554
    queue.close()
    with pytest.raises(smtplib.SMTPException):
        SMTP(queue).send_message(letter(From="a@example.org", To="b@example.net"))
