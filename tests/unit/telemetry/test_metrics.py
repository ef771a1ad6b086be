"""Metrics keep the conventions of Prometheus, and documents list all of them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import Metric

from postroad.telemetry import metrics

REFERENCE = Path(__file__).parents[3] / "docs" / "operator" / "monitoring.md"
ROW = re.compile(r"^\| `(postroad_\w+)` \| ([\w, ]*?) ?\|", re.MULTILINE)


def test_every_metric_is_documented_with_its_labels() -> None:
    documented = {
        name.removesuffix("_total"): tuple(labels.split(", ")) if labels else ()
        for name, labels in ROW.findall(REFERENCE.read_text())
    }

    assert documented == labels_of_metrics()


LABELS = {
    "namespace", "name", "kind",
    "ending", "error", "job_name", "mechanism", "method", "object", "outcome", "reason", "record",
    "reply", "resource", "result", "server", "state", "status", "stream", "type",
    "urgency", "version",
    "filter", "verdict",
}  # fmt: skip
"""None of a target (`job`, `instance`, `pod`), and none that holds an address or text of a mail."""

UNITS = ("_seconds", "_bytes")
OTHER_UNITS = re.compile(r"milli|micro|minute|hour|_ms\b|_kb|_mb|percent")


def faults_of(family: Metric, labels: tuple[str, ...]) -> list[str]:
    """What breaks a convention in a metric, in the form that Prometheus reads."""
    is_counter, name = family.type == "counter", family.name
    rules = {
        "letters": re.fullmatch(r"postroad_[a-z]+(_[a-z]+)*", name),
        "help": re.match(r"[A-Z1].*\.$", family.documentation),
        "_total is of counters, which alone have it": not name.endswith("_total"),
        "a histogram ends in its unit": family.type != "histogram" or name.endswith(UNITS),
        "base units": not OTHER_UNITS.search(name),
        "a time is a timestamp": "1970" not in family.documentation
        or name.endswith("_timestamp_seconds"),
        "labels": set(labels) <= LABELS,
        "one unit": not (is_counter and name.endswith("_timestamp_seconds")),
        "names of resources": ("name" in labels) == ("namespace" in labels),
    }
    return [f"{name}: {rule}" for rule, holds in rules.items() if not holds]


def test_every_metric_keeps_the_conventions_of_prometheus() -> None:
    families = {each.name: each for each in REGISTRY.collect() if each.name.startswith("postroad_")}

    assert families.keys() == labels_of_metrics().keys()
    assert [
        fault
        for name, labels in labels_of_metrics().items()
        for fault in faults_of(families[name], labels)
    ] == []


def test_what_breaks_a_convention_is_found() -> None:
    wrong = Metric("postroad_delay_ms", "no sentence", "histogram")

    assert [each.partition(": ")[2] for each in faults_of(wrong, ("job", "name"))] == [
        "help", "a histogram ends in its unit", "base units", "labels", "names of resources",
    ]  # fmt: skip


def test_counters_are_exposed_with_total_and_no_series_of_times() -> None:
    exposed = generate_latest().decode()
    kinds = dict(re.findall(r"^# TYPE (postroad_\w+) (\w+)$", exposed, re.MULTILINE))

    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        name for name in kinds if name.endswith("_total")
    }
    assert not [name for name in kinds if name.endswith("_created")]


def labels_of_metrics() -> dict[str, tuple[str, ...]]:
    return {
        each._name: each._labelnames
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }
