"""What the operator writes into a status fits the CRDs, at the bounds of the code."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from postroad import errors
from postroad.cli.processes.operator_command import operator
from postroad.controller.cluster.clusters import MAX_WATCHED, watched_namespaces
from postroad.controller.cluster.health import MAX_VERSION
from postroad.controller.mailqueue.children import summary
from postroad.controller.mailqueue.deletion_progress import DeletionProgress, why
from postroad.controller.pods.manifests import WORKER, selector
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Report, bad, composed, shortened
from postroad.distributed.maintenance.erasure import Part
from postroad.domain.configuration.consistency import REASON_BYTES
from postroad.domain.configuration.documents import to_document
from postroad.domain.configuration.history import (
    STATUS_ENTRIES,
    ConfigurationAdopted,
    fold,
)
from postroad.domain.configuration.rules import ViewConfiguration
from support.admission import schemas, violations
from support.repository import ROOT
from support.resources import mail_queue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = "é" * 5000


def refused(plural: str, status: dict[str, Any]) -> list[str]:
    return [*violations(schemas()[plural]["properties"]["status"], status, None, ".status")]


def test_names_of_namespaces_fit_as_many_as_the_option_and_the_chart_take() -> None:
    names = [f"{number:063}" for number in range(MAX_WATCHED)]
    values = json.loads((ROOT / "charts/postroad/values.schema.json").read_text())
    bound = schemas()["queueclusters"]["properties"]["status"]["properties"]["watchedNamespaces"]

    assert refused("queueclusters", {"watchedNamespaces": watched_namespaces(names)}) == []
    assert values["properties"]["watchNamespaces"]["maxItems"] == MAX_WATCHED == bound["maxItems"]
    given = [word for name in [*names, "one-more"] for word in ("--namespace", name)]
    result = CliRunner().invoke(operator, given)
    assert result.exit_code == 2
    assert "at most 1000 namespaces" in result.output


def test_long_messages_of_every_condition_fit() -> None:
    own = (condition.READY, condition.RECONCILING, condition.STALLED)
    types = [
        value
        for name, value in vars(condition).items()
        if name.isupper() and isinstance(value, str) and value not in own
    ]
    found = [bad(each, "UnexpectedError", LONG, retryable=True) for each in types]

    status = composed({}, Report(found), 2**62, NOW)

    assert refused("mailqueues", status) == refused("queueclusters", status) == []


def test_name_of_each_error_is_a_reason() -> None:
    names = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [bad("Ready", each.__name__, "", retryable=True) for each in names]
    statuses = [composed({}, Report([each]), 1, NOW) for each in found]

    assert len(statuses) > 50
    assert [refused("mailqueues", each) for each in statuses] == [[]] * len(statuses)


def test_deletion_that_every_server_blocks_fits() -> None:
    words = why(errors.BrokerRefused(LONG))
    parts = tuple((each, words) for each in Part)
    progress = DeletionProgress(NOW, NOW, tuple(Part), 2**62, 2**62, parts, parts)

    assert refused("mailqueues", {"deletion": progress.as_field()}) == []


def test_history_of_long_reasons_fits() -> None:
    configuration = ViewConfiguration(timedelta(hours=1), 1024, 10**6)
    events = [
        ConfigurationAdopted(
            sequence=number, at=NOW, by="config adopt", generation=2**40, version=number,
            configuration=configuration, reason="x" * (REASON_BYTES - 2), supersedes=number - 1,
        )
        for number in range(1, 3 * STATUS_ENTRIES)
    ]  # fmt: skip

    assert refused("mailqueues", {"history": [to_document(each) for each in fold(events)]}) == []


def test_selector_of_the_longest_name_fits() -> None:
    found = mail_queue("n" * 63, "q" * 52)
    found["metadata"] |= {"uid": "u", "generation": 1}

    workers = {"ready": 1, "selector": selector(Queue.of(found), WORKER)}

    assert refused("mailqueues", {"workers": workers}) == []


def test_long_version_of_a_server_fits() -> None:
    versions = {"s3": shortened(LONG, MAX_VERSION)}

    assert refused("queueclusters", {"versions": versions}) == []


numbers = st.one_of(
    st.integers(), st.floats(), st.none(), st.text(), st.sampled_from([2**63, -1, math.inf])
)


texts = st.text(st.characters(exclude_categories=()))
"""Lone surrogates among them, as a JSON text escapes them."""


@given(counts=st.dictionaries(texts, numbers), lag=numbers, findings=numbers)
@example(counts={"\ud800": 1}, lag=None, findings=None)
def test_summary_of_a_run_fits_whatever_its_pod_left(
    counts: dict[str, Any], lag: Any, findings: Any
) -> None:
    """The pod is in the namespace of a tenant."""
    text = json.dumps({"counts": counts, "lag_seconds": lag, "findings": findings})

    entry = {"job": "archive", **summary(text)}

    assert refused("mailqueues", {"pipeline": [entry]}) == []
    assert entry.get("result", "").isprintable()


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"counts": []}', '{"counts": {"a": {}}}', '{"counts":' + "[" * 4000]
)
def test_text_that_is_no_summary_has_no_fields(text: str) -> None:
    assert summary(text) == {}
