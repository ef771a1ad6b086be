"""The day-2 commands, as scripts use them: their JSON, their exit codes, their refusals."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from postroad import Mail, errors, open_queue
from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap import engine as memory
from postroad.cli import main
from postroad.cli.mail import selected
from postroad.distributed.reading.size import SizeCache
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.names import QueueName, key_of_bytes, key_of_owner
from postroad.domain.queues.ownership import Owner
from postroad.domain.values.identifiers import id_at
from postroad.errors import StoreFailed
from postroad.ports.mail_queue import Operation

DEAD_LETTER = (
    b"From: a@example.org\r\nTo: b@x.example, C <c@y.example>\r\nSubject: s\r\n\r\nbody\r\n"
)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    name = "cli-" + str(abs(hash(request.node.name)) % 10**8)

    async def create() -> None:
        async with open_queue(f"memory://{name}", create=True) as queue:
            await queue.purge()

    asyncio.run(create())
    return f"memory://{name}"


def run(url: str, command: str, *options: str, content: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [command, "--queue", url, *options], input=content)


def read(url: str, command: str, *options: str) -> list[dict[str, Any]]:
    result = run(url, command, *options, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def reject_one(url: str) -> None:
    async def reject() -> None:
        async with open_queue(url) as queue:
            async for item in queue.dequeue():
                await item.reject("550 no such user")
                break

    asyncio.run(reject())


def test_enqueue_takes_envelope_from_the_header_and_prints_the_id(url: str) -> None:
    result = run(url, "enqueue", content=DEAD_LETTER)

    (mail,) = read(url, "browse")
    assert result.output.strip() == mail["enqueue_id"]
    assert mail["sender"] == "a@example.org"
    assert mail["recipients"] == ["b@x.example", "c@y.example"]
    assert mail["size_bytes"] == len(DEAD_LETTER)


@pytest.mark.parametrize(
    ("header", "sender", "recipients"),
    [
        ("From: jörg@a.example\nTo: müller@bücher.example\n", "jörg@a.example",
         ["müller@bücher.example"]),
        ("From: a@x.example\nTo: b@x.example\nBcc:\n", "a@x.example", ["b@x.example"]),
        ("FROM: a@x.example\nTO: b@x.example\ncc: c@x.example, b@x.example\n", "a@x.example",
         ["b@x.example", "c@x.example"]),
        (("Resent-From: r@x.example\nResent-To: s@x.example\nResent-Cc: t@x.example\n"
         "From: a@x.example\nTo: b@x.example\n"), "r@x.example", ["s@x.example", "t@x.example"]),
        (("Resent-Sender: q@x.example\nResent-From: r@x.example, p@x.example\n"
         "Resent-To: s@x.example\nFrom: a@x.example\nTo: b@x.example\n"), "q@x.example",
         ["s@x.example"]),
    ],
    ids=["UTF-8", "empty Bcc", "other case", "resent", "resent by a sender"],
)  # fmt: skip
def test_enqueue_reads_the_envelope_as_the_field_does(
    url: str, header: str, sender: str, recipients: list[str]
) -> None:
    assert run(url, "enqueue", content=f"{header}\nbody\n".encode()).exit_code == 0

    [mail] = read(url, "browse")
    assert (mail["sender"], mail["recipients"]) == (sender, recipients)


@pytest.mark.parametrize(
    "before",
    [b"\xef\xbb\xbf", b"From a@x.example Sat Nov 28 10:00:00 2026\r\n", b">From a b\n>From c d\n",
     b"\xef\xbb\xbfFrom a b\r\n"],
)  # fmt: skip
def test_enqueue_leaves_out_what_stands_before_the_header(url: str, before: bytes) -> None:
    assert run(url, "enqueue", content=before + DEAD_LETTER).exit_code == 0

    [mail] = read(url, "browse")
    assert mail["size_bytes"] == len(DEAD_LETTER)
    assert run(url, "enqueue", content=before).exit_code == 2, "nothing is left of it"


MAILBOX_LINE = b"From a@x.example Sat Nov 28 10:00:00 2026\n"


@pytest.mark.parametrize("begin", [MAILBOX_LINE, b"\xef\xbb\xbf" + MAILBOX_LINE])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_enqueue_refuses_a_mailbox_of_several_messages(url: str, begin: bytes, end: bytes) -> None:
    mailbox = (begin + DEAD_LETTER + b"\n" + MAILBOX_LINE + DEAD_LETTER).replace(b"\n", end)

    for envelope in ((), ("--from", "a@x.example", "--to", "b@x.example")):
        result = run(url, "enqueue", *envelope, content=mailbox)
        assert (result.exit_code, "formail -s" in result.output) == (2, True)
    assert read(url, "browse") == []


@pytest.mark.parametrize(
    "content",
    [
        DEAD_LETTER + b"\n" + MAILBOX_LINE + DEAD_LETTER,
        MAILBOX_LINE + DEAD_LETTER + b"\nFrom here on we are friends.\nYours\n",
        MAILBOX_LINE + DEAD_LETTER + b"\n>" + MAILBOX_LINE + b"Subject: x\n",
    ],
    ids=["a text that quotes a mailbox", "a text with From", "a quoted line"],
)
def test_enqueue_takes_a_message_whose_text_has_a_line_with_from(url: str, content: bytes) -> None:
    assert run(url, "enqueue", content=content).exit_code == 0


@pytest.mark.parametrize(
    "header",
    [b"From: a@x.example\rTo: c@x.example\nTo: b@x.example\n", b"To: b@x.example\r\r\n",
     b"From: a@x.example\rTo: b@x.example\r"],
)  # fmt: skip
def test_enqueue_refuses_a_bare_cr_in_the_header(url: str, header: bytes) -> None:
    envelope = ("--from", "a@x.example", "--to", "b@x.example")
    result = run(url, "enqueue", *envelope, content=header + b"\n")

    assert (result.exit_code, "CR alone" in result.output) == (2, True)
    assert run(url, "enqueue", *envelope, content=b"\na text with\rin it\n\n").exit_code == 0


def test_enqueue_takes_files_and_options(url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(DEAD_LETTER)

    options = ("--from", "<>", "--to", "z@example.net", "--delay", "5m", "--name", "n")
    result = run(url, "enqueue", str(tmp_path / "one"), str(tmp_path / "two"), *options)

    assert result.exit_code == 0
    assert len(result.output.split()) == 2
    mails = read(url, "browse")
    assert [(mail["sender"], mail["recipients"], mail["name"]) for mail in mails] == [
        (None, ["z@example.net"], "n")
    ] * 2
    assert all(mail["due_at"].endswith("Z") for mail in mails)


def test_enqueue_takes_a_priority_that_browse_shows(url: str) -> None:
    assert run(url, "enqueue", "--priority", "-5", content=DEAD_LETTER).exit_code == 0

    assert [mail["priority"] for mail in read(url, "browse")] == [-5]
    assert re.search("PRIORITY .*\n.*  -5  ", run(url, "browse").output)


@pytest.mark.parametrize("priority", ["101", "-101", "high"])
def test_a_priority_out_of_bounds_is_a_mistake_of_usage(url: str, priority: str) -> None:
    assert run(url, "enqueue", "--priority", priority, content=DEAD_LETTER).exit_code == 2
    assert read(url, "browse") == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"Subject: s\r\n\r\n", id="no addresses"),
        pytest.param(b"From: a@x.example\r\nTo: a@x.example\r\nBcc: b@x.example\r\n\r\n", id="bcc"),
        pytest.param(
            b"From: a@x.example\r\nTo: b@x.example\r\nResent-Bcc: c@x.example\r\n\r\n",
            id="resent bcc",
        ),
        pytest.param(b"From: a@x.example\r\n\r\n", id="no recipients"),
        pytest.param(b"From: a@x.example\r\nTo: b@x.example)c@x.example\r\n\r\n", id="hidden"),
        pytest.param(b"From: a@x.example\r\nTo: j\xf6rg@x.example\r\n\r\n", id="Latin-1"),
        pytest.param(
            b"From: a@x.example\r\nTo: b@x.example\r\nno field\r\nCc: c@x.example\r\n\r\n",
            id="no field",
        ),
        pytest.param(
            b"Resent-From: a@x.example\r\nResent-To: b@x.example\r\n" * 2 + b"\r\n",
            id="resent twice",
        ),
        pytest.param(
            b"From: a@x.example\r\nTo: b@x.example\r\nResent-From: c@x.example\r\n\r\n",
            id="resent to no address",
        ),
    ],
)
def test_enqueue_refuses_to_guess_an_envelope(url: str, content: bytes) -> None:
    assert run(url, "enqueue", content=content).exit_code == 2
    assert read(url, "browse") == []


def test_json_of_browse_has_the_promised_fields(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)

    (mail,) = read(url, "browse")

    assert list(mail) == [
        *("enqueue_id", "mail_id", "name", "sender", "recipients", "accepted_at", "enqueued_at"),
        *("due_at", "held", "attempt", "priority", "size_bytes", "last_error"),
    ]
    assert mail["due_at"] is None


def test_size_counts_and_show_shows(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)
    run(url, "enqueue", "--delay", "1h", content=DEAD_LETTER)
    first, second = read(url, "browse")

    (counted,) = read(url, "size")
    assert counted.pop("oldest_due") == first["enqueued_at"]
    assert counted == {"size": 2, "delayed": 1, "held": 0, "dead_letters": 0}
    assert read(url, "show", second["enqueue_id"]) == [second]
    assert run(url, "show", "00000000-0000-0000-0000-000000000000").exit_code == 1
    assert first["due_at"] is None


def test_a_size_that_may_be_too_small_is_shown_as_such(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sizes(_: SizeCache) -> Sizes:
        return Sizes(2, 1, 0, 3, at_least=True)

    monkeypatch.setattr(SizeCache, "get", sizes)

    (found,) = read(url, "size")
    assert found["at_least"] is True
    expected = "at least 2 waiting (1 delayed, 0 held), 3 dead letters\n"
    assert run(url, "size").output == expected


def test_commands_count_what_they_change(url: str) -> None:
    for _ in range(2):
        run(url, "enqueue", "--delay", "1h", content=DEAD_LETTER)

    assert read(url, "hold", "--all") == [{"count": 2}]
    assert read(url, "release", "--domain", "x.example") == [{"count": 2}]
    assert read(url, "flush", "--sender", "a@example.org") == [{"count": 2}]
    assert read(url, "republish", "--older-than", "1h") == [{"count": 0}]
    assert read(url, "remove", "--older-than", "1h") == [{"count": 0}]
    assert read(url, "expire", "--older-than", "1h") == [{"count": 0}]
    assert read(url, "remove", "--recipient", "b@x.example") == [{"count": 2}]
    assert read(url, "purge") == [{"count": 0}]


def test_a_domain_that_no_address_can_have_is_a_mistake_of_usage(url: str) -> None:
    refused = run(url, "hold", "--domain", "@x.example")

    assert refused.exit_code == 2
    assert "--domain: a domain has no '@'" in refused.output


@pytest.mark.parametrize("option", ["--sender", "--recipient"])
def test_an_address_that_no_mail_can_have_is_a_mistake_of_usage(url: str, option: str) -> None:
    for command, address in (("browse", "@@"), ("hold", "@@"), ("remove", ""), ("browse", "")):
        refused = run(url, command, option, address)
        assert refused.exit_code == 2, refused.output
        assert f"{option}: " in refused.output
    for good in ("a@example.org", "postmaster", *(["<>"] if option == "--sender" else [])):
        assert run(url, "browse", option, good).exit_code == 0


def test_expire_gives_waiting_mails_up(url: str) -> None:
    run(url, "enqueue", "--delay", "1h", content=DEAD_LETTER)

    assert run(url, "expire", "--all").output == "expired 1 mail\n"

    (dead,) = read(url, "dead-letters")
    assert dead["reason"] == "expired by an administrator"
    assert read(url, "browse") == []


def test_discard_ends_dead_letters_for_good(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)
    reject_one(url)
    run(url, "enqueue", content=DEAD_LETTER)

    assert run(url, "discard", "--all").output == "discarded 1 mail\n"

    assert read(url, "dead-letters") == []
    assert read(url, "requeue", "--all") == [{"count": 0}]
    assert len(read(url, "browse")) == 1


def test_dead_letters_are_listed_and_requeued(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)
    reject_one(url)

    (dead,) = read(url, "dead-letters")
    assert dead["reason"] == "550 no such user"
    assert read(url, "requeue", "--id", dead["enqueue_id"]) == [{"count": 1}]
    assert read(url, "dead-letters") == []


def test_ages_are_by_domain(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)

    found = read(url, "ages")

    assert [each["domain"] for each in found] == ["x.example", "y.example"]
    assert found[0]["ages"]["5m"] == found[0]["total"] == 1
    assert list(found[0]["ages"])[-1] == "older"


def test_people_get_lines_to_read(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)

    assert "a@example.org  b@x.example and 1 more" in run(url, "browse").output
    assert "1 waiting" in run(url, "size").output
    assert "DOMAIN" in run(url, "ages").output
    assert run(url, "maintain").exit_code == 0
    assert "removed 1 mail\n" in run(url, "purge").output


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_what_a_client_wrote_is_printed_and_not_executed_by_the_terminal(
    url: str, option: tuple[str, ...]
) -> None:
    run(
        url,
        "enqueue",
        "--from",
        "a\x9b2J@example.org",
        "--to",
        "ü\u202e@x.example",
        content=DEAD_LETTER,
    )
    (mail,) = read(url, "browse")

    assert (mail["sender"], mail["recipients"]) == ("a\x9b2J@example.org", ["ü\u202e@x.example"])
    for command in (("browse",), ("show", mail["enqueue_id"])):
        output = run(url, *command, *option).output
        assert "a\\u009b2J@example.org" in output
        assert "ü\\u202e@x.example" in output
        assert output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("slice_start", "code"),
    [
        ("2026-01-01T10:00:00Z", 0),
        ("2026-01-01T10:00:00", 2),
        ("yesterday", 2),
        ("2026-01-01T10:00:00Z/2026-01-02T10:00:00Z", 0),
        ("2026-01-02T10:00:00Z/2026-01-01", 2),
        ("2026-01-02T10:00:00Z/2026-01-01T10:00:00Z", 2),
        ("2026-01-01T10:00:00Z/", 2),
    ],
)
def test_loss_is_accepted_for_a_slice_by_its_start(url: str, slice_start: str, code: int) -> None:
    run(url, "enqueue", content=DEAD_LETTER)

    assert run(url, "maintain", "--accept-loss", slice_start).exit_code == code
    assert len(read(url, "browse")) == 1


def test_the_error_about_a_missing_queue_names_commands_for_a_shell() -> None:
    said = run("memory://missing", "size").output
    of_a_directory = run("embedded:///missing/directory", "size").output

    assert "postroad worker --create" in said
    assert "postroad mta" in of_a_directory
    assert "open_queue(…, create=True)" in of_a_directory
    assert "MailQueue" not in of_a_directory
    hints = [each.hint for each in vars(errors).values() if hasattr(each, "hint")]
    assert not [hint for hint in hints if "open_queue" in hint or "=True" in hint]


@pytest.mark.parametrize(
    "options",
    [
        ("worker", "--relay", "two words"),
        ("worker", "--relay", "host:0"),
        ("worker", "--relay", "host:70000"),
        ("intake", "--listen", "::1"),
        ("intake", "--listen", "localhost:smtp"),
        ("mta", "--listen", "localhost:65536"),
    ],
    ids=" ".join,
)
def test_an_address_that_is_none_is_a_mistake_of_usage(url: str, options: tuple[str, ...]) -> None:
    command, *rest = options
    result = run(url, command, *rest)

    assert result.exit_code == 2
    assert f"Invalid value for '{rest[0]}'" in result.output


def test_an_empty_message_is_refused_before_it_is_queued(url: str, tmp_path: Path) -> None:
    envelope = ("--from", "a@x.example", "--to", "b@y.example")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "one").write_bytes(DEAD_LETTER)
    files = (str(tmp_path / "one"), str(tmp_path / "empty"))

    assert run(url, "enqueue", *envelope, content=b"").exit_code == 2
    assert run(url, "enqueue", *envelope, *files).exit_code == 2
    assert read(url, "browse") == []


@pytest.mark.parametrize("command", Operation)
def test_bulk_commands_want_a_selector(url: str, command: str) -> None:
    assert run(url, command).exit_code == 2
    assert run(url, command, "--all", "--sender", "a@example.org").exit_code == 2


@pytest.mark.parametrize(
    ("queue", "code"),
    [
        pytest.param("memory://missing", 1, id="not found"),
        pytest.param("imap://host", 2, id="no such scheme"),
        pytest.param("embedded://relative", 2, id="no absolute path"),
        pytest.param("embedded:///var/q?mial=/mnt/a", 2, id="a misspelt parameter"),
        pytest.param("embedded:///var/q#1", 2, id="a fragment"),
        pytest.param("memory://q?create=1", 2, id="a parameter of another engine"),
        pytest.param("memory://q/more", 2, id="a path"),
        pytest.param("distributed://outgoing", 2, id="no namespace"),
    ],
)
def test_errors_are_one_line_and_a_code(queue: str, code: int) -> None:
    result = run(queue, "size")

    assert result.exit_code == code
    assert result.output.startswith("postroad: ")
    assert len(result.output.splitlines()) == 1


def test_delay_of_a_mail_that_was_enqueued_by_the_library_is_shown(url: str) -> None:
    async def enqueue() -> None:
        async with open_queue(url) as queue:
            mail = Mail("a@example.org", ("b@example.net",), b"")
            await queue.enqueue(mail, delay=timedelta(days=1))

    asyncio.run(enqueue())

    assert "delayed" in run(url, "browse").output


@pytest.mark.parametrize("command", ["size", "browse"])
def test_a_directory_that_cannot_hold_a_store_is_refused_in_one_line(command: str) -> None:
    result = run("embedded:///proc", command)
    assert result.output.startswith("postroad: there is no store in /proc ")
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("words", [["sizes"], ["config", "shwo", "x"], ["zzz"]])
def test_a_command_that_is_none_is_named_with_the_nearest(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)

    assert result.exit_code == 2
    assert ("Did you mean 's" in result.output) == (words != ["zzz"])
    assert words[-2:][0] in result.output


def test_a_command_about_a_directory_takes_its_url_and_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POSTROAD_QUEUE", raising=False)

    for place in (f"{tmp_path}/none", f"embedded://{tmp_path}/none"):
        result = CliRunner().invoke(main, ["verify", place])
        assert f"there is no directory {tmp_path}/none" in result.output
    nothing = CliRunner().invoke(main, ["size", "--queue", f"embedded://{tmp_path}"]).output
    assert f"there is no store in {tmp_path} (`postroad mta`" in nothing
    assert "POSTROAD_QUEUE" in CliRunner().invoke(main, ["size"]).output


def test_a_store_is_not_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "file/below"):
        with pytest.raises(StoreFailed, match="cannot make"):
            DiskFiles().make_directory(tmp_path / name)


def test_output_that_cannot_be_written_is_an_error_of_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("postroad.cli.mail.selected.say", full)
    result = run(url, "size")
    assert result.exit_code == 1
    assert result.output == "postroad: [Errno 28] No space left on device\n"


def test_a_reader_that_has_enough_ends_a_listing_without_a_word(tmp_path: Path) -> None:
    """`postroad browse --json | head -1`."""
    store = f"embedded://{tmp_path}/store"

    async def fill() -> None:
        async with open_queue(store, create=True) as queue:
            mails = [Mail("a@example.org", ("b@example.net",), b"x") for _ in range(500)]
            await asyncio.gather(*map(queue.enqueue, mails))

    asyncio.run(fill())
    command = [sys.executable, "-m", "postroad", "browse", "--queue", store, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        assert json.loads(listing.stdout.readline())["attempt"] == 0
        listing.stdout.close()
        assert listing.stderr.read() == b""


def test_audit_lists_objects_without_a_mail_and_deletes_them_on_request(url: str) -> None:
    accepted_at = datetime.now(UTC) - timedelta(days=1)
    key = key_of_bytes(QueueName("memory", "x"), accepted_at, id_at(accepted_at, 0, 1))
    run(url, "enqueue", content=DEAD_LETTER)

    async def store() -> str:
        async with open_queue(url) as queue:
            own = str(queue.name) + key[len("memory.x") :]
            await queue._engine.blobs.put(own, b"bytes")  # type: ignore[attr-defined]
        return own

    own = asyncio.run(store())
    found = read(url, "audit")
    plain = run(url, "audit")
    (repaired,) = read(url, "audit", "--repair")

    assert [(each["blob_key"], each["deleted"]) for each in found] == [(own, False)]
    assert plain.output == f"orphaned  {own}\n1 object without a mail\n"
    assert (repaired["blob_key"], repaired["deleted"]) == (own, True)
    assert read(url, "audit") == []
    assert len(read(url, "browse")) == 1


def test_audit_of_a_bucket_that_names_another_view_asks_for_a_person_to_adopt_it(url: str) -> None:
    run(url, "enqueue", content=DEAD_LETTER)

    async def foreign() -> None:
        async with open_queue(url) as queue:
            engine = queue._engine  # type: ignore[attr-defined]
            body = Owner(UUID(int=7), None).encode(engine.name)
            await engine.blobs.put(key_of_owner(engine.name), body)

    asyncio.run(foreign())
    refused = run(url, "audit", "--repair")

    assert refused.exit_code == 1
    assert "another view" in refused.stderr
    assert "`postroad audit --adopt`" in refused.stderr
    assert run(url, "audit", "--adopt").output == "0 objects without a mail\n"
    assert run(url, "audit").output == "0 objects without a mail\n"


def test_audit_of_a_directory_names_the_command_that_looks_at_its_files(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'queue'}"

    async def create() -> None:
        async with open_queue(url, create=True):
            pass

    asyncio.run(create())
    result = run(url, "audit")

    assert result.exit_code == 2
    assert "postroad verify" in result.output


@pytest.fixture
def own_logs() -> Iterator[None]:
    """A command may set up logs as in a process of its own; afterwards they are as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("command", ["browse", "hold"])
def test_a_row_that_cannot_be_decoded_is_counted_on_stderr(url: str, command: str) -> None:
    for name in ("good", "bad"):
        run(url, "enqueue", "--name", name, content=DEAD_LETTER)
    good, bad = read(url, "browse")
    tables = memory.connect().world.tables(url.replace("memory://", "memory."))
    tables.undecodable |= {key for key in tables.rows if str(key.enqueue_id) == bad["enqueue_id"]}

    options = ("--all",) if command == "hold" else ()
    logging.getLogger().handlers.clear()  # so that the command sets up its own
    result = run(url, command, *options, "--json")

    assert result.exit_code == 0
    answer = [json.loads(each) for each in result.stdout.splitlines()]
    if command == "hold":
        assert answer == [{"count": 1}]
    else:
        assert answer[0] == good
        assert [each["name"] for each in answer] == ["good", "unreadable mail"]
    logged = [json.loads(each) for each in result.stderr.splitlines()]
    (summary,) = [each for each in logged if each["level"] == "warning"]
    assert (summary["rows"], summary["marks"]) == (1, 0)
    assert [each["enqueue_id"] for each in logged if each["level"] == "error"] == [
        bad["enqueue_id"]
    ]


def test_a_watch_lists_each_mail_once_and_those_that_come(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """A mail comes in each interval."""

        passed = timedelta()

        def elapsed(self) -> timedelta:
            return self.passed

        async def sleep(self, duration: timedelta) -> None:
            self.passed += duration
            async with open_queue(url) as queue:
                await queue.enqueue(
                    Mail(f"{self.passed.seconds}@x.example", ("b@x.example",), b"x")
                )

    assert run(url, "enqueue", content=DEAD_LETTER).exit_code == 0
    monkeypatch.setattr(selected, "MachineClock", Clock)

    senders = [each["sender"] for each in read(url, "browse", "--watch", "5s")]

    assert len(senders) == len({*senders}) == 4


def test_a_watch_has_no_limit(url: str) -> None:
    assert run(url, "browse", "--watch", "5s", "--limit", "1").exit_code == 2
