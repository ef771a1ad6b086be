"""The documents list exactly the metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from postroad.telemetry import metrics

REFERENCE = Path(__file__).parents[3] / "docs" / "operator.md"
ROW = re.compile(r"^\| `(postroad_\w+)` \| ([\w, ]*?) ?\|", re.MULTILINE)


def test_every_metric_is_documented_with_its_labels() -> None:
    documented = {
        name.removesuffix("_total"): tuple(labels.split(", ")) if labels else ()
        for name, labels in ROW.findall(REFERENCE.read_text())
    }

    made = {
        each._name: each._labelnames
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }

    assert documented == made
