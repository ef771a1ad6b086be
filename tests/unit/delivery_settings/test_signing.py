"""A file of delivery: what its section `signing` may hold, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.delivery_settings.files import read_delivery
from postroad.errors import InvalidSettings
from postroad.signing.signatures import Canonical, SigningRule
from support.signing import ed25519_pem, selected

KEYS = "keys: [{selector: s, file: s.pem}]"


def read(tmp_path: Path, text: str) -> list[SigningRule]:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)
    return [each.rule((selected("ed"),)) for each in read_delivery(file).signing]


def test_every_field_reaches_the_rule(tmp_path: Path) -> None:
    text = """
    signing:
      - domain: Bücher.Example
        tenants: [acme, other]
        subdomains: true
        canonicalization: simple/relaxed
        keys: [{selector: s2026.a, file: /run/a.pem}, {selector: e2026_a, file: e.pem}]
      - {domain: bücher.example, keys: [{selector: s, file: s.pem}]}
    """

    first, second = read(tmp_path, text)

    tenants = frozenset({"acme", "other"})
    keys, domain = (selected("ed"),), "xn--bcher-kva.example"
    assert first == SigningRule(domain, keys, tenants, True, Canonical.SIMPLE, Canonical.RELAXED)
    assert second == SigningRule(domain, keys)
    files = [each.file for each in read_delivery(tmp_path / "delivery.yaml").signing[0].keys]
    assert files == [Path("/run/a.pem"), Path("e.pem")]


def test_an_empty_file_signs_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == []


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("{domain: a b, %s}", r"signing\[0\].domain: a b is no domain name"),
        ("{domain: a.example}", r"signing\[0\].keys: this field is required"),
        ("{domain: a.example, keys: []}", "list one at least"),
        ("{domain: a.example, keys: [{selector: -s, file: s}]}", r"keys\[0\].selector"),
        ("{domain: a.example, keys: [{selector: s.é, file: s}]}", r"keys\[0\].selector"),
        ("{domain: a.example, keys: [{selector: s, fil: s}]}", "did you mean file"),
        ("{domain: a.example, canonicalization: strict, %s}", r"\[0\].canonicalization"),
        ("{domain: a.example, tenants: [], %s}", "list one at least"),
        ("{domain: a.example, %s}, {domain: A.example, tenants: [x], %s}", "never reached"),
        ("{domain: a.example, tenants: [x, y], %s}, {domain: a.example, tenants: [x], %s}",
         "never reached"),
        ("{domain: a.example, keys: [{selector: s, file: a}, {selector: S, file: b}]}",
         "selector s stands twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(tmp_path: Path, entries: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        read(tmp_path, f"signing: [{entries.replace('%s', KEYS)}]")


@pytest.mark.parametrize("where", ["|\n          ", "'", '"'])
def test_a_key_in_the_place_of_a_path_is_refused_and_not_shown(tmp_path: Path, where: str) -> None:
    lines = ed25519_pem().decode().split("\n")
    key = "\n          ".join(lines).strip()
    end = where if len(where) == 1 else ""
    text = f"""
signing:
  - domain: a.example
    keys:
      - selector: s
        file: {where}{key}{end}
"""

    with pytest.raises(InvalidSettings, match="path of a file that has the key") as caught:
        read(tmp_path, text)

    assert lines[1] not in str(caught.value)
