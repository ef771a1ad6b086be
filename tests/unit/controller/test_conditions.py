"""Findings become conditions that kstatus, Flux and Argo CD read right; Events tell once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad.controller.status.conditions import (
    Finding,
    Report,
    Truth,
    advice,
    bad,
    composed,
    conclude,
    conditions,
    failed,
    good,
    hash_of_spec,
    paused_report,
    servers_are_good,
    shortened,
    unknown,
    wants_retry,
)
from postroad.controller.status.status_writer import Announcement, announcements, event_object
from postroad.errors import BrokerUnavailable, CredentialsRefused, ViewRefused

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
FINE = good("BrokerReady", "there")
AWAY = bad("ViewReady", "ViewUnavailable", "Cassandra is away", retryable=True)
REFUSED = bad("ConfigurationAccepted", "SliceWindowGrows", "keep 1h", retryable=False)
PENDING = unknown("BlobsReady", "Pending", "not looked at yet")
ADVICE = advice("Durable", "LimitedDurability", "factor 1")


def kstatus(found: list[dict[str, Any]]) -> str:
    """What cli-utils' kstatus says about an object whose observedGeneration is current."""
    truths = {each["type"]: each["status"] for each in found}
    if truths.get("Reconciling") == "True":
        return "InProgress"
    if truths.get("Stalled") == "True":
        return "Failed"
    return "Current" if truths.get("Ready") == "True" else "InProgress"


@pytest.mark.parametrize(
    ("findings", "ready", "reason", "read_as"),
    [
        ([FINE], "True", "AsDeclared", "Current"),
        ([FINE, ADVICE], "True", "AsDeclared", "Current"),
        ([FINE, AWAY], "False", "ViewUnavailable", "InProgress"),
        ([FINE, REFUSED], "False", "SliceWindowGrows", "Failed"),
        ([AWAY, REFUSED], "False", "SliceWindowGrows", "Failed"),
        ([PENDING, AWAY], "False", "ViewUnavailable", "InProgress"),
        ([FINE, PENDING], "Unknown", "Pending", "InProgress"),
    ],
    ids=["fine", "advice", "retryable", "stuck", "both", "pending and waits", "pending"],
)
def test_ready_has_the_error_that_most_needs_an_administrator(
    findings: list[Finding], ready: str, reason: str, read_as: str
) -> None:
    found = conditions([], conclude(findings), 3, NOW)

    assert (found[0]["type"], found[0]["status"], found[0]["reason"]) == ("Ready", ready, reason)
    assert kstatus(found) == read_as
    assert not {"Stalled", "Reconciling"} <= {each["type"] for each in found}
    assert {each["observedGeneration"] for each in found} == {3}


def test_one_error_of_several_conditions_is_in_the_message_once() -> None:
    same = [Finding(each, Truth.UNKNOWN, "ClusterNotFound", "no cluster") for each in ("A", "B")]

    assert conclude(same)[0].message == "no cluster"


def test_the_last_transition_is_that_of_the_truth_not_of_the_reason() -> None:
    first = conditions([], [AWAY, FINE], 1, NOW)
    other_reason = bad("ViewReady", "TooSlow", "no answer", retryable=True)

    second = conditions(
        first, [other_reason, bad("BrokerReady", "X", "y", retryable=True)], 2, LATER
    )

    assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert second[0]["reason"] == "TooSlow"
    assert second[1]["lastTransitionTime"] == "2026-01-01T11:00:00Z"


def test_the_same_findings_leave_the_status_as_it_is() -> None:
    report = Report([FINE, AWAY], {"size": 4})
    before = composed({"observedGeneration": -1}, report, 2, NOW)

    assert composed(before, report, 2, LATER) == before


def test_a_report_about_figures_alone_leaves_the_conditions_as_they_are() -> None:
    before = composed({}, Report([FINE, AWAY], {"size": 4, "metricsError": "TooSlow"}), 2, NOW)

    report = Report(fields={"size": 5, "metricsError": None}, replaced=frozenset())

    expected = {**before, "size": 5}
    del expected["metricsError"]
    assert composed(before, report, 2, LATER) == expected


def composed_paused(
    before: dict[str, Any], spec: dict[str, Any], generation: int, **fields: int
) -> dict[str, Any]:
    """Return the status of a paused resource."""
    report = paused_report(before, spec) + Report(fields=fields)
    return composed(before, report, generation, LATER)


def test_a_paused_resource_keeps_its_conditions_and_says_that_it_is_paused() -> None:
    reconciled = {"specHash": hash_of_spec({"workers": 1, "paused": False})}
    before = composed({}, Report([FINE, AWAY], reconciled), 1, NOW)

    paused = composed_paused(before, {"workers": 1, "paused": True}, 2, size=7)

    types = {each["type"]: each for each in paused["conditions"]}
    assert types["Paused"]["observedGeneration"] == 2
    assert types["Ready"] == before["conditions"][0]
    assert "Reconciling" not in types
    assert (paused["observedGeneration"], paused["size"]) == (2, 7)


def test_a_resource_that_was_paused_before_its_first_reconcile_is_neither_ready_nor_not() -> None:
    paused = composed_paused({"observedGeneration": -1}, {"paused": True}, 1)

    types = {each["type"]: each for each in paused["conditions"]}
    assert types["Ready"]["status"] == "Unknown"
    assert types["Ready"]["reason"] == "PausedByUser"
    assert kstatus(paused["conditions"]) == "InProgress"
    assert announcements({}, paused) == []
    assert composed_paused(paused, {"paused": True}, 1) == paused


def test_ready_is_unknown_for_a_spec_that_changed_during_the_pause() -> None:
    reconciled = {"specHash": hash_of_spec({"workers": 1})}
    before = composed({}, Report([FINE], reconciled), 1, NOW)
    changed = {"workers": 2, "paused": True}

    paused = composed_paused(before, changed, 2)

    types = {each["type"]: each for each in paused["conditions"]}
    assert (types["Ready"]["status"], types["Ready"]["reason"]) == ("Unknown", "PausedByUser")
    assert types["Ready"]["observedGeneration"] == 2
    assert kstatus(paused["conditions"]) == "InProgress"
    assert composed_paused(paused, changed, 2) == paused
    changed_back = composed_paused(paused, {"workers": 1, "paused": True}, 3)
    assert {each["type"]: each["status"] for each in changed_back["conditions"]} == {
        "BrokerReady": "True", "Ready": "Unknown", "Paused": "True"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "retryable"),
    [(BrokerUnavailable(), True), (ViewRefused(), False), (CredentialsRefused(), False)],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_named_and_says_whether_waiting_helps(error: Any, retryable: bool) -> None:
    finding = failed("ViewReady", error)

    assert (finding.reason, finding.retryable) == (type(error).__name__, retryable)
    assert finding.message


def test_a_long_message_is_cut_and_stays_on_a_line() -> None:
    assert shortened("a\n b") == "a b"
    assert len(shortened("word " * 1000)) == 1024
    assert shortened("of a pod: \ud800\x1b[2J") == r"of a pod: \ud800\u001b[2J"


def status(*findings: Finding, version: int | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if version:
        fields["configuration"] = {
            "version": version,
            "sliceWindow": "1h",
            "bucketCount": 1,
            "updateBrowseStartPace": 1000,
        }
    return composed({}, Report(list(findings), fields), 1, NOW)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, status(FINE), [("Normal", "Ready")]),
        (status(FINE), status(FINE), []),
        (status(FINE), status(FINE, AWAY), [("Warning", "ViewUnavailable")]),
        (status(AWAY), status(AWAY), []),
        (status(AWAY), status(AWAY, REFUSED), [("Warning", "SliceWindowGrows")]),
        (status(AWAY), status(FINE), [("Normal", "Ready")]),
        ({}, status(PENDING), []),
        (status(FINE), status(FINE, version=1), [("Normal", "ConfigurationAccepted")]),
        (status(FINE, version=1), status(FINE, version=2), [("Normal", "ConfigurationAccepted")]),
    ],
)
def test_a_change_is_announced_once(
    before: dict[str, Any], after: dict[str, Any], said: list[tuple[str, str]]
) -> None:
    assert [(each.kind, each.reason) for each in announcements(before, after)] == said


def test_an_event_fits_what_the_api_server_takes() -> None:
    about = {
        "apiVersion": "postroad.dev/v1beta1",
        "kind": "MailQueue",
        "metadata": {"name": "q", "namespace": "n", "uid": "u", "resourceVersion": "1"},
    }
    (announcement,) = announcements({}, status(bad("ViewReady", "X", "ü" * 2000, retryable=True)))

    event = event_object(about, announcement, NOW)

    assert len(event["note"].encode()) <= 1024
    assert event["eventTime"] == "2026-01-01T10:00:00.000000Z"


def test_an_event_about_a_long_name_has_a_name_that_the_api_server_takes() -> None:
    about = {
        "apiVersion": "postroad.dev/v1beta1",
        "kind": "QueueCluster",
        "metadata": {
            "name": f"{'x' * 235}.{'y' * 17}", "namespace": "n", "uid": "u", "resourceVersion": "1"
        },
    }  # fmt: skip

    name = event_object(about, Announcement("Warning", "InUse", "used"), NOW)["metadata"]["name"]

    assert len(name) <= 253
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", each) for each in name.split("."))


def test_an_event_that_happens_once_has_one_name_however_often_it_is_posted() -> None:
    about = {
        "apiVersion": "postroad.dev/v1beta1",
        "kind": "MailQueue",
        "metadata": {"name": "q", "namespace": "n", "uid": "u", "resourceVersion": "1"},
    }
    last = Announcement("Warning", "LeftBehind", "left behind: a bucket", once=True)
    other = {**about, "metadata": about["metadata"] | {"uid": "v"}}  # type: ignore[operator]

    names = [event_object(each, last, NOW)["metadata"]["name"] for each in (about, about, other)]

    assert names[0] == names[1] != names[2]


def test_servers_are_good_only_when_all_were_asked_and_answered() -> None:
    three = [good(each, "") for each in ("BrokerReady", "ViewReady", "BlobsReady")]

    assert servers_are_good(status(*three))
    assert not servers_are_good(status(*three, REFUSED))
    assert not servers_are_good(status(*three[:2]))


@pytest.mark.parametrize(
    ("workers", "retried"),
    [
        (good("WorkersReady", ""), False),
        (bad("WorkersReady", "PodsNotReady", "0 of 2", retryable=True), False),
        (bad("WorkersReady", "NameTaken", "theirs", retryable=True), True),
        (bad("WorkersReady", "KubernetesRefused", "no", retryable=False), True),
    ],
    ids=lambda value: getattr(value, "reason", value),
)
def test_what_no_watch_will_tell_is_tried_again(workers: Finding, retried: bool) -> None:
    three = [good(each, "") for each in ("BrokerReady", "ViewReady", "BlobsReady")]

    assert wants_retry(status(*three, workers)) is retried
