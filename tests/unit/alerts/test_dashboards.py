"""Dashboards of the chart show metrics that exist, by labels that these have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from postroad.telemetry import metrics
from support.chart import CHART

DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
OF_TARGETS = {"job", "namespace", "pod", "le"}
SERIES = re.compile(r"(postroad_\w+?)(?:_bucket|_total)?(?:\{([^}]*)\})?(?=[\[\s)]|$)")


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Return all queries of a dashboard: of panels, and of the variables."""
    variables = dashboard["templating"]["list"]
    asked = [each["query"]["query"] for each in variables if each["type"] == "query"]
    series = [re.sub(r"label_values\((.*), \w+\)", r"\1", each) for each in asked]
    return series + [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]


def unknown_in(expression: str) -> list[str]:
    """Return the metrics and labels of an expression that do not exist."""
    known = {
        each._name.removesuffix("_total"): OF_TARGETS | set(each._labelnames)
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }
    used: set[str] = set()
    unknown = []
    found = SERIES.findall(expression)
    for name, matchers in found:
        used |= known.get(name, set())
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)", matchers))
        unknown += [name] if name not in known else sorted(labels - known[name])
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    unknown += [each for group in grouped for each in group.split(", ") if each not in used]
    return unknown if found else [expression]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_metrics_and_labels_that_exist(path: Any) -> None:
    dashboard = json.loads(path.read_text())

    assert {each: unknown_in(each) for each in expressions(dashboard) if unknown_in(each)} == {}
    assert len(dashboard["panels"]) <= 10, "as many as are looked at together"
    assert all(
        each["title"] and each["fieldConfig"]["defaults"]["unit"] for each in dashboard["panels"]
    )


def test_there_is_a_dashboard_for_queues_workers_and_the_operator() -> None:
    assert [each.stem for each in DASHBOARDS] == ["operator", "queues", "workers"]
    uids = [json.loads(each.read_text())["uid"] for each in DASHBOARDS]
    assert len({*uids}) == len(uids)


def test_a_metric_or_a_label_that_does_not_exist_is_found() -> None:
    assert unknown_in("sum(rate(postroad_gone_total[5m]))") == ["postroad_gone"]
    assert unknown_in('postroad_queue_mails{queue="x"}') == ["queue"]
    assert unknown_in("sum by (queue) (postroad_queue_mails)") == ["queue"]
    assert unknown_in("vector(1)") == ["vector(1)"]
