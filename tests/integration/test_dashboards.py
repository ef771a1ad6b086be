"""Each panel of the chart's dashboards, asked of a real Prometheus that scraped every metric."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from stack import ports
from support.chart import CHART

pytestmark = [pytest.mark.needs("prometheus"), pytest.mark.timeout(180, func_only=True)]

DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
EXPORTER = """
import sys, time
from prometheus_client import start_http_server
from postroad.telemetry import metrics
KNOWN = {"status": "False", "outcome": "deferred"}  # panels select these
for each in vars(metrics).values():
    names = getattr(each, "_labelnames", None)
    if names is None:
        continue
    values = tuple(KNOWN.get(name, "mail") for name in names)
    if isinstance(each, metrics.SampledGauge):
        each.samples = lambda values=values: [(values, 1.0)]
        continue
    one = each.labels(*values) if names else each
    for change in ("inc", "observe"):
        if hasattr(one, change):
            getattr(one, change)(1)
            break
start_http_server(int(sys.argv[1]), "127.0.0.1")
time.sleep(600)
"""
CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: mail/postroad
  honor_labels: true
  static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{namespace: mail, pod: worker-1}}}}]
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scraped all metrics of this release twice."""
    folder = tmp_path_factory.mktemp("prometheus")
    chosen = ports.choose(str(folder), ["metrics", "prometheus"])
    file = folder / "prometheus.yml"
    file.write_text(CONFIGURATION.format(port=chosen["metrics"]))
    address = f"127.0.0.1:{chosen['prometheus']}"
    commands = [
        [sys.executable, "-c", EXPORTER, str(chosen["metrics"])],
        [
            *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}"),
            f"--web.listen-address={address}",
        ],
    ]
    with ExitStack() as ending, (folder / "log").open("wb") as log:
        for each in commands:
            process = subprocess.Popen(each, stdout=log, stderr=log)
            ending.callback(process.wait, 30)
            ending.callback(process.terminate)
        deadline = time.monotonic() + 90
        while not _scraped_twice(address):
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield address


def _scraped_twice(address: str) -> bool:
    try:
        (found,) = asked(address, "count_over_time(postroad_operator_leader[1m])")
    except (OSError, ValueError):
        return False
    return int(found["value"][1]) >= 3


def asked(address: str, expression: str) -> list[Any]:
    """Return what Prometheus answers to a query."""
    with urlopen(f"http://{address}/api/v1/query?{urlencode({'query': expression})}") as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_of_a_dashboard_has_an_answer_of_prometheus(path: Path, prometheus: str) -> None:
    dashboard = json.loads(path.read_text())
    empty = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = re.sub(r"\$(namespace|queue)", ".*", target["expr"])
            found = asked(prometheus, expression.replace("$__rate_interval", "1m"))
            if not found:
                empty.append(expression)
            shown = set(re.findall(r"{{ *(\w+) *}}", target.get("legendFormat", "")))
            lacking = [each for each in shown if each not in found[0]["metric"]] if found else []
            assert lacking == [], f"the legend of {panel['title']} has no {lacking}"

    assert empty == []
