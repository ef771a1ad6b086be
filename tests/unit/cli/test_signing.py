"""`postroad signing`: the records that DNS has to have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroad.cli import main
from support.signing import ed25519_pem, records, rsa_pem, selected


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "rsa.pem").write_bytes(rsa_pem())
    (tmp_path / "ed.pem").write_bytes(ed25519_pem())
    found = tmp_path / "delivery.yaml"
    keys = "[{selector: rsa, file: rsa.pem}, {selector: ed, file: ed.pem}]"
    found.write_text(f"signing: [{{domain: a.example, keys: {keys}}}]")
    return found


def test_it_prints_records_as_zone_files_have_them(file: Path) -> None:
    done = CliRunner().invoke(main, ["signing", str(file)])

    assert done.exit_code == 0
    found = {}
    for line in done.output.splitlines():
        name, _, strings = line.partition(" TXT ( ")
        parts = re.findall(r'"([^"]*)"', strings)
        assert all(len(each) <= 255 for each in parts)
        found[name] = "".join(parts).encode()
    assert found == records("a.example", selected("rsa"), selected("ed"))


def test_json_has_a_line_for_each_key(file: Path) -> None:
    done = CliRunner().invoke(main, ["signing", "--json", str(file)])

    found = [json.loads(line) for line in done.output.splitlines()]
    assert [(each["name"], each["algorithm"], each["bits"]) for each in found] == [
        ("rsa._domainkey.a.example", "rsa-sha256", 2048),
        ("ed._domainkey.a.example", "ed25519-sha256", None),
    ]
    assert found[1]["record"].startswith("v=DKIM1; k=ed25519; p=")


def test_a_key_that_cannot_sign_is_an_error(file: Path) -> None:
    (file.parent / "ed.pem").write_text("garbage")

    done = CliRunner().invoke(main, ["signing", str(file)])

    assert done.exit_code == 1
    assert "ed.pem cannot sign: it is no private key in PEM" in done.output
