"""What programs import: the names are kept, listed, typed, and refuse mistakes with words."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from importlib import import_module
from pathlib import Path
from typing import Any, assert_type

import pytest
from mypy import api

import postroad
from postroad import Mail, MailQueue, Settings, errors, open_queue
from postroad.errors import InvalidMail
from support.repository import ROOT

RECORDED = Path(__file__).with_name("public_names.txt")
MODULES = ["postroad", "postroad.errors", "postroad.sync", "postroad.django", "postroad.testing"]
UNWRITTEN = re.compile(r" at 0x[0-9a-f]+")


def names_in(module: str) -> Iterator[str]:
    """The public names of a module with their signatures, and those of what its classes have."""
    if module == "postroad.errors":
        yield from (
            f"{module}.{name}" for name, each in vars(errors).items() if inspect.isclass(each)
        )
        return
    for name in import_module(module).__all__:
        found = getattr(import_module(module), name)
        if not callable(found) or found is Settings:  # its fields: docs/settings.md
            yield f"{module}.{name}"
            continue
        yield f"{module}.{name}{signature_of(found)}"
        if inspect.isclass(found):
            for attribute in sorted({*dir(found), *getattr(found, "__annotations__", ())}):
                if is_of_postroad(found, attribute):
                    value = inspect.getattr_static(found, attribute, None)
                    value = getattr(value, "__func__", value)
                    of = signature_of(value) if inspect.isfunction(value) else ""
                    yield f"{module}.{name}.{attribute}{of}"


def is_of_postroad(found: type, name: str) -> bool:
    """True if a class of this project, and not one of Python or pydantic, gives it that name."""
    homes = [each for each in found.__mro__ if name in vars(each)]
    return not name.startswith("_") and (not homes or homes[0].__module__.startswith("postroad"))


def signature_of(found: Any) -> str:
    try:
        return UNWRITTEN.sub("", str(inspect.signature(found)))
    except (TypeError, ValueError):
        return ""


def test_public_names_are_those_that_were_recorded() -> None:
    """A line that went, or changed, breaks programs: deprecate it for one release first. Where that
    is meant: POSTROAD_WRITE_DOCS=yes pytest with this file."""
    found = "".join(f"{each}\n" for module in MODULES for each in names_in(module))
    if os.environ.get("POSTROAD_WRITE_DOCS") == "yes":
        RECORDED.write_text(found)

    assert found == RECORDED.read_text()


def test_all_names_are_listed_and_nothing_else() -> None:
    assert dir(postroad) == sorted(postroad.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", postroad.__version__)
    with pytest.raises(AttributeError, match="'postroad' has no attribute 'open'"):
        postroad.open  # noqa: B018


def test_importing_the_library_loads_nothing_that_it_does_not_use() -> None:
    program = "import sys, postroad; postroad.Mail; print(*sys.modules)"
    environment = {"PYTHONPATH": str(ROOT / "operator")}
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    ).stdout.split()

    assert "postroad.domain.mail.mail" in loaded
    assert {"asyncio", "pydantic", "click", "email.generator"}.isdisjoint(loaded)


async def test_a_queue_is_typed_both_ways() -> None:
    opened = await open_queue("memory://typed", create=True)
    assert_type(opened, MailQueue)
    await opened.close()
    async with open_queue("memory://typed") as queue:
        assert_type(queue, MailQueue)


WRONG = """
from postroad import Mail, MailQueue, open_queue

async def program() -> MailQueue:
    async with open_queue("memory://x") as queue:
        queue.nonsense()  # attr-defined
    await (await open_queue("memory://x")).enqueue("no mail")  # arg-type
    Mail("a@example.org", recipients=5, content=b"")  # arg-type
    Mail("a@example.org", ["b@example.net"], content="text")  # arg-type
    open_queue("memory://x").enqueue(Mail(None, ["b@example.net"], bytearray()))  # attr-defined
    return await open_queue("memory://x")
"""


def test_mistakes_are_found_by_mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its strict rules, as a program has them that installed the library."""
    program = tmp_path / "program.py"
    program.write_text(WRONG)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "operator"))
    monkeypatch.chdir(tmp_path)
    output, _, _ = api.run(
        ["--strict", "--config-file=", f"--cache-dir={tmp_path}/cache", "--follow-imports=silent",
         "--ignore-missing-imports", str(program)]
    )  # fmt: skip
    found = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", output)

    lines = enumerate(WRONG.splitlines(), 1)
    wanted = [(str(number), line.split("  # ")[1]) for number, line in lines if "  # " in line]
    assert found == wanted, output


def test_a_queue_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(AttributeError, match=r"`async with open_queue\(…\) as queue`"):
        open_queue("memory://x").enqueue  # type: ignore[attr-defined]  # noqa: B018


def test_one_address_is_no_sequence_of_addresses() -> None:
    with pytest.raises(InvalidMail, match=r"recipients is a sequence of strings, not one string"):
        Mail("a@example.org", "b@example.net", b"")


def message(**fields: str) -> EmailMessage:
    made = EmailMessage()
    for name, value in fields.items():
        made[name] = value
    made.set_content("Grüße\n")
    return made


def test_a_message_is_taken_as_smtp_sends_it() -> None:
    given = message(Subject="Grüße", To="b@example.net", Bcc="c@example.net")
    mail = Mail("a@example.org", ["b@example.net", "c@example.net"], given)

    assert isinstance(mail.content, bytes)
    assert b"c@example.net" not in mail.content
    assert given["Bcc"] == "c@example.net"
    assert mail.content.count(b"\n") == mail.content.count(b"\r\n") > 3
    assert mail.content.partition(b"\r\n\r\n")[0].isascii()
    assert mail.recipients == ("b@example.net", "c@example.net")


def test_a_message_to_an_address_beyond_ascii_is_in_utf_8() -> None:
    mail = Mail("a@example.org", ["jörg@example.net"], message(To="jörg@example.net"))

    assert isinstance(mail.content, bytes)
    assert "To: jörg@example.net\r\n".encode() in mail.content


def test_a_message_that_cannot_be_written_is_refused() -> None:
    broken = EmailMessage()
    broken["To"] = "b@example.net"
    broken.set_payload(5)  # type: ignore[call-overload]

    with pytest.raises(InvalidMail, match="content: the message cannot be written"):
        Mail("a@example.org", ["b@example.net"], broken)
