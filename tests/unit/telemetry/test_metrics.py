"""The documents list exactly the metrics that exist, and alerts use these."""

from __future__ import annotations

import re
from pathlib import Path

from postroad.telemetry import metrics

REFERENCE = Path(__file__).parents[3] / "docs" / "operator" / "monitoring.md"
ROW = re.compile(r"^\| `(postroad_\w+)` \| ([\w, ]*?) ?\|", re.MULTILINE)


def test_every_metric_is_documented_with_its_labels() -> None:
    documented = {
        name.removesuffix("_total"): tuple(labels.split(", ")) if labels else ()
        for name, labels in ROW.findall(REFERENCE.read_text())
    }

    assert documented == labels_of_metrics()


def labels_of_metrics() -> dict[str, tuple[str, ...]]:
    return {
        each._name: each._labelnames
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }


def test_alerts_use_metrics_and_labels_that_exist() -> None:
    alerts = re.findall(r"^- `(.*postroad_.*)`[,:]", REFERENCE.read_text(), re.MULTILINE)
    used = [
        (name.removesuffix("_total"), label)
        for alert in alerts
        for name, matchers in re.findall(r"(postroad_\w+)(?:\{([^}]*)\})?", alert)
        for label in re.findall(r"(\w+)!?=", matchers) or [None]
    ]

    assert len(alerts) > 10
    labels = labels_of_metrics()
    assert [(n, each) for n, each in used if each not in (None, *labels[n])] == []
