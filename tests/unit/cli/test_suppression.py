"""`postroad suppression`: addresses are put on a list, listed, exported and imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.adapters.disk.suppression_list import FileSuppressionList
from postroad.cli import main
from postroad.domain.delivery.suppressed import SuppressedAddress
from unit.cli.test_sites import store

__all__ = ["store"]


def run(store: Path, command: str, *options: str, given: str | None = None) -> Result:
    queue = ("--queue", f"embedded://{store}")
    return CliRunner().invoke(main, ["suppression", command, *queue, *options], input=given)


def listed(store: Path, *options: str) -> list[dict[str, str]]:
    return [json.loads(each) for each in run(store, "list", "--json", *options).output.splitlines()]


def test_addresses_are_added_listed_and_removed(store: Path) -> None:
    assert run(store, "list").output == ""
    acme = ("--tenant", "acme")
    added = run(store, "add", *acme, "--reason", "asked  for it", "Ann@example.org", "b@x.example")
    assert added.output == "suppressed: 2 addresses\n"
    assert {each["address"]: each["reason"] for each in listed(store, *acme)} == {
        "Ann@example.org": "asked for it",
        "b@x.example": "asked for it",
    }
    assert listed(store) == []
    assert "Ann@example.org  administrator  asked for it" in run(store, "list", *acme).output

    elsewhere = run(store, "remove", "ann@example.org")
    assert elsewhere.exit_code == 1
    assert "ann@example.org not on the list of mail without a tenant" in elsewhere.output
    removed = run(store, "remove", *acme, "ANN@example.org")
    assert removed.output == "no more suppressed: 1 address\n"
    half = run(store, "remove", *acme, "b@x.example", "c@x.example")
    assert "c@x.example not on the list of the tenant acme" in half.output
    assert "the others are off it now" in half.output
    assert listed(store, *acme) == []


def test_an_address_is_added_for_a_time(store: Path) -> None:
    assert run(store, "add", "--for", "720h", "a@x.example").exit_code == 0
    run(store, "add", "b@x.example")
    (a,) = (each for each in listed(store) if each["address"] == "a@x.example")
    at, until = (datetime.fromisoformat(a[each]) for each in ("added_at", "expires_at"))
    assert until - at == timedelta(hours=720)
    assert f"  {a['expires_at']}  " in run(store, "list").output
    for wrong in ("0s", "999999h"):
        result = run(store, "add", "--for", wrong, "c@x.example")
        assert result.exit_code == 1
        assert "for more than zero and at most" in result.output


def test_refusals_are_listed_with_their_count(store: Path) -> None:
    line = {"address": "a@x.example", "reason": "550 no-mailbox: x", "by": "bounce", "count": 1,
            "added_at": "2026-01-02T03:04:05.000Z", "expires_at": "2099-01-01T00:00:00.000Z",
            "pending": True}  # fmt: skip
    run(store, "import", "-", given=json.dumps(line))
    assert listed(store) == [line]
    wanted = "bounce  1, mailed yet  2099-01-01T00:00:00.000Z  550 no-mailbox: x"
    assert wanted in run(store, "list").output


def test_a_list_moves_to_another_queue(store: Path) -> None:
    run(store, "add", "--hashed", "a@x.example")
    run(store, "add", "--plain", '"b c"@bücher.example', "--reason", "x")
    exported = run(store, "export").output
    assert "a@x.example" not in exported

    imported = run(store, "import", "--tenant", "other", "-", given=exported)
    assert imported.output == "suppressed: 2 addresses\n"
    assert run(store, "export", "--tenant", "other").output == exported
    token = next(each["address"] for each in listed(store) if "@" not in each["address"])
    assert token.startswith("sha256:")
    assert run(store, "remove", token).exit_code == 0


def test_the_file_of_delivery_decides_what_is_kept(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("suppression: {addresses: Hashed}\n")
    monkeypatch.setenv("POSTROAD_WORKER_DELIVERY_FILE", str(file))
    run(store, "add", "a@x.example")
    run(store, "import", "-", given="b@x.example\n")
    assert all(each["address"].startswith("sha256:") for each in listed(store))


def test_a_wrong_line_is_named_and_the_lines_before_it_are_kept(store: Path) -> None:
    given = "a@x.example\n\n# a comment\nb@x.example\nc d\ne@x.example\n"
    result = run(store, "import", "-", given=given)
    assert result.exit_code == 1
    assert "suppressed: 2 addresses" in result.output
    assert "line 5: " in result.output
    assert len(listed(store)) == 2
    endless = run(store, "import", "-", given="x" * 10_000)
    assert "line 1: it has more than 4096 characters" in endless.output


def test_a_file_of_another_encoding_suppresses_no_other_addresses(
    store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "addresses"
    file.write_bytes("\ufeffann@x.example\r\n".encode() + "mül@x.example\n".encode("latin-1"))
    result = run(store, "import", str(file))
    assert result.exit_code == 1
    assert "line 2: it is not written in UTF-8" in result.output
    assert [each["address"] for each in listed(store)] == ["ann@x.example"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("add", "nothing"), "nothing"),
        (("add", "--reason", " ", "a@x.example"), "1 to 200 printable"),
        (("add", "--reason", "x" * 201, "a@x.example"), "1 to 200 printable"),
        (("add",), "Missing argument"),
        (("add", "ann@x.example;b@x.example"), "RFC 5321 4.1.2"),
        (("add", "mailto:ann@x.example"), "RFC 5321 4.1.2"),
        (("add", "--tenant", "\udcff", "ann@x.example"), "no name of a tenant"),
        (("remove", "sha256:12"), "sha256:12"),
        (("import", "/nowhere/at/all"), "No such file"),
    ],
)
def test_what_is_no_address_is_refused(store: Path, options: tuple[str, ...], problem: str) -> None:
    result = run(store, *options)
    assert result.exit_code != 0
    assert problem in result.output
    assert listed(store) == []


def test_a_long_list_is_written_in_portions(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portions, add = list[int](), FileSuppressionList.add

    async def noted(
        self: FileSuppressionList, tenant: str, entries: Sequence[SuppressedAddress]
    ) -> None:
        portions.append(len(entries))
        await add(self, tenant, entries)

    monkeypatch.setattr(FileSuppressionList, "add", noted)
    monkeypatch.setattr("postroad.cli.sites.suppression.TOGETHER", 1000)
    given = "".join(f"a{number}@x.example\n" for number in range(2_500))
    assert run(store, "import", "-", given=given).output == "suppressed: 2500 addresses\n"
    assert portions == [1000, 1000, 500]
    assert run(store, "export").output.count("\n") == 2_500
