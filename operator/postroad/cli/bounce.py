"""`postroad bounce`: what refusals of next hops are counted as."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from postroad.cli.options import json_option, say
from postroad.delivery_settings.files import read_delivery
from postroad.domain.smtp.bounces import BounceRule, decided
from postroad.errors import InvalidInput
from postroad.settings import from_environment


@click.group()
def bounce() -> None:
    """What refusals of next hops are counted as."""


@bounce.command()
@click.option(
    "--rules",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A file of delivery, whose `bounceRules` come first; by default that of"
    " POSTROAD_WORKER_DELIVERY_FILE, if there is one.",
)
@json_option
@click.argument("text", nargs=-1)
def classify(file: Path | None, as_json: bool, text: tuple[str, ...]) -> None:
    """Print the class of a refusal, and the row and the source that decided.

    TEXT is the reply of a next hop with its codes; without it, or as -, each line of the standard
    input is one.
    """
    found = from_environment().worker.delivery_file if file is None else file
    own = () if found is None else read_delivery(found).bounce_rules
    if text and text != ("-",):
        _print(" ".join(text), own, as_json=as_json)
        return
    lines = [each.strip() for each in sys.stdin]
    if not any(lines):
        raise InvalidInput("there is no reply to classify", hint="write it, or put it on stdin")
    for line in filter(None, lines):
        _print(line, own, as_json=as_json)


def _print(text: str, own: tuple[BounceRule, ...], *, as_json: bool) -> None:
    counted, rule = decided(text, own=own)
    printed = {
        "text": text,
        "code": counted.code,
        "class": counted.reason.value,
        "words": counted.words,
        "row": None if rule is None else rule.evidence(text),
        "own": rule in own,
        "source": None if rule is None else rule.source,
    }
    lines = [counted.reason.value, f"  words   {counted.words}"]
    if rule is None:
        lines.append("  no row fits")
    else:
        row = f"  {'own row' if rule in own else 'row':<7} {' with '.join(rule.evidence(text))}"
        lines += (row, f"  source  {rule.source}")
    say(printed, as_json=as_json, text="\n".join(lines))
