"""docs/peers.md: tables of cases and peers, of which a test compares or writes one column."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/peers.md"


def settle(section: str, column: str, cells: Mapping[str, str]) -> None:
    """Compare a column with the document; where POSTROAD_WRITE_DOCS is set, write it instead."""
    text = DOCUMENT.read_text()
    head, heading, rest = text.partition(f"## {section}\n")
    assert heading, f"docs/peers.md has no section {section}"
    body, following, tail = rest.partition("\n## ")
    before, table = _parsed(body)
    if not os.environ.get("POSTROAD_WRITE_DOCS"):
        assert {case: row.get(column, "") for case, row in table.items()} == dict(cells)
        return
    table = {case: {**table.get(case, {}), column: cell} for case, cell in cells.items()}
    DOCUMENT.write_text(head + heading + before + _rendered(table) + following + tail)


def _parsed(body: str) -> tuple[str, dict[str, dict[str, str]]]:
    lines = body.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("|")), len(lines))
    before = "\n".join(lines[:begin]).rstrip("\n") + "\n\n"
    rows = [_cells(line) for line in lines[begin:] if line.startswith("|")]
    if not rows:
        return before, {}
    names = rows[0][1:]
    return before, {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows[2:]}


def _cells(line: str) -> list[str]:
    return [each.strip() for each in line.strip().strip("|").split("|")]


def _rendered(table: Mapping[str, Mapping[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {case} | {' | '.join(row.get(name, '') for name in names)} |"
        for case, row in table.items()
    ]
    return "\n".join(lines) + "\n"
