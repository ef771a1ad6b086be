"""What documents show: README's program runs; commands exist, with the options that they get."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import click
import pytest

from postroad.cli import kubectl_mailqueue, main
from postroad.ports.mail_queue import Operation
from support.repository import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"postroad": main, "kubectl mailqueue": kubectl_mailqueue}
SELECTORS = frozenset(
    {"sender", "recipient", "name", "domain", "older_than", "enqueue_id", "attribute"}
)
CALL = re.compile(rf"(?:^|[\s(])({'|'.join(PROGRAMS)}) ([a-z][^|>;&#]*)")


def blocks_of(text: str, language: str) -> list[str]:
    """The code blocks of a document in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("scheme", ["memory", "embedded"])
async def test_the_program_of_readme_runs(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks_of((ROOT / "README.md").read_text(), "python")
    url = "memory://outgoing" if scheme == "memory" else f"embedded://{tmp_path}/outgoing"
    lines = program.replace("memory://outgoing", url).splitlines()
    names: dict[str, Callable[[], Awaitable[None]]] = {}
    exec("\n    ".join(["async def program():", *lines]), names)

    await names["program"]()

    assert re.fullmatch(r"[0-9a-f-]{36} 20\d\d-.*\n", capsys.readouterr().out)


def calls_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """The programs that a document's consoles and code spans call, with their arguments."""
    consoles = "".join(blocks_of(text.replace("\\\n", " "), "console"))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    for line in [*consoles.splitlines(), *spans]:
        if "helm " in line or line.startswith("postroad: "):
            continue
        for program, arguments in CALL.findall(line.split(" #")[0]):
            try:
                yield program, shlex.split(arguments)
            except ValueError:  # a quote that ends beyond what was found
                yield program, shlex.split(re.sub("['\"]", "", arguments))


def unknown_in(program: click.Command, arguments: list[str]) -> list[str]:
    """The subcommands and options among arguments that a program does not have."""
    command = program
    while isinstance(command, click.Group) and arguments:
        found = command.get_command(click.Context(command), arguments[0])
        if found is None:
            return [arguments[0]] if re.fullmatch(r"[a-z-]+", arguments[0]) else []
        command, arguments = found, arguments[1:]
    options = {each for option in command.params for each in option.opts + option.secondary_opts}
    given = [each.split("=")[0] for each in arguments if re.match(r"--[a-z]", each)]
    return [each for each in given if each not in {*options, "--help"}]


def fault_in(program: click.Command, arguments: list[str]) -> str | None:
    """What a program would refuse of arguments, before it asks a queue."""
    command: click.Command = program
    words = arguments
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    try:
        given = command.make_context(arguments[0], list(words)).params
    except click.UsageError as error:
        return error.format_message()
    chosen = [each for each in (*SELECTORS, "everything", "site") if given.get(each)]
    if arguments[0] in [*Operation] and not chosen:
        return "no selector"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_whole_commands_for_the_queue_of_the_examples_are_not_refused(document: Path) -> None:
    """Those that name it with its namespace are copied as they are."""
    refused = {
        " ".join(arguments): fault
        for program, arguments in calls_in(document.read_text())
        if program == "kubectl mailqueue" and re.search(r"^[^-]* -n mail\b", " ".join(arguments))
        if (fault := fault_in(PROGRAMS[program], arguments)) is not None
    }

    assert refused == {}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("requeue outgoing -n mail", "no selector"),
        ("requeue outgoing -n mail --all", None),
        ("republish outgoing -n mail", "Missing option '--older-than'."),
        ("republish outgoing -n mail --older-than 5m", None),
    ],
)
def test_what_lacks_an_option_is_refused(given: str, fault: str | None) -> None:
    assert fault_in(kubectl_mailqueue, given.split()) == fault


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_a_document_shows_exist_with_their_options(document: Path) -> None:
    unknown = [
        (program, arguments, each)
        for program, arguments in calls_in(document.read_text())
        for each in unknown_in(PROGRAMS[program], arguments)
    ]

    assert unknown == []


def test_what_a_document_shows_is_found_and_held_against_the_programs() -> None:
    text = "`postroad gone`\n```console\n$ kubectl mailqueue hold q -n mail \\\n  --gone x\n```\n"

    called = [unknown_in(PROGRAMS[program], given) for program, given in calls_in(text)]

    assert called == [["--gone"], ["gone"]]
