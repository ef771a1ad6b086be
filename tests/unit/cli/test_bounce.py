"""`postroad bounce classify`: the class of a reply, and what decided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.cli import main


def classify(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["bounce", "classify", *arguments], input=given)


def test_the_class_of_a_reply_is_printed_with_the_row_and_its_source() -> None:
    result = classify("550 5.4.1 Recipient address rejected: Access denied")
    assert result.exit_code == 0
    kind, words, row, source = result.output.splitlines()
    assert kind == "no-mailbox"
    assert words == "  words   Recipient address rejected: Access denied"
    assert row == "  row     x.4.1 with ^access denied"
    assert source.startswith("  source  https://learn.microsoft.com/")


def test_each_line_of_the_standard_input_is_a_reply() -> None:
    for arguments in ((), ("-",)):
        result = classify("--json", *arguments, given="550 5.1.1 x\n\n554 whatever\n")
        first, second = map(json.loads, result.output.splitlines())
        assert (first["class"], first["code"], first["row"]) == ("no-mailbox", 550, ["x.1.1"])
        assert (second["class"], second["row"], second["source"]) == ("other", None, None)
    assert "no row fits" in classify("554 whatever").output


def test_rows_of_a_file_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("bounceRules:\n- {class: Rate, words: [come back], source: our partner}\n")
    text = "550 5.1.1 come back tomorrow"
    assert classify(text).output.startswith("no-mailbox")
    found = json.loads(classify("--json", "--rules", str(file), text).output)
    assert (found["class"], found["own"], found["source"]) == ("rate", True, "our partner")
    monkeypatch.setenv("POSTROAD_WORKER_DELIVERY_FILE", str(file))
    assert "own row come back" in classify(text).output


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{class: Gone, codes: ['550'], source: x}", "bounceRules[0].class"),
        ("{class: Rate, source: x}", "name codes, words or both"),
        ("{class: Rate, words: ['(a b'], source: x}", "(one|another)"),
        ("{class: Rate, word: [x y z], source: x}", "did you mean words"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(f"bounceRules: [{row}]\n")
    result = classify("--rules", str(file), "550 x")
    assert result.exit_code != 0
    assert message in result.output


def test_without_a_reply_there_is_an_error() -> None:
    result = classify(given="")
    assert result.exit_code == 1
    assert "there is no reply to classify" in result.output
