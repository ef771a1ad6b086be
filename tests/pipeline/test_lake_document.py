"""`docs/lake.md` has the tables of the lake as they are."""

from __future__ import annotations

import re

from postroad.pipeline.spark.lake.schema import LAKE_TABLES, SCHEMA_VERSION
from support.repository import ROOT


def test_the_document_has_every_column_with_type_and_meaning() -> None:
    text = (ROOT / "docs/lake.md").read_text()
    sections = re.split(r"^## `(\w+)`", text, flags=re.MULTILINE)[1:]
    documented = {
        name: re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.*) \|$", section, re.MULTILINE)
        for name, section in zip(sections[::2], sections[1::2], strict=True)
    }

    assert documented == {
        name: [(column, *described) for column, described in table.columns.items()]
        for name, table in LAKE_TABLES.items()
    }
    assert f"schema version is {SCHEMA_VERSION}" in text
