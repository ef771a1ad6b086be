"""What the status of a task tells of its run, from the Job and its pods."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.controller.task.runs import run_of

JOB: dict[str, Any] = {"metadata": {"name": "spam-1", "uid": "u"}, "status": {"active": 1}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


def pod(phase: str = "Pending", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"ownerReferences": [{"controller": True, "uid": "u"}]},
        "status": {"phase": phase, **status},
    }


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "task", "state": {"waiting": {"reason": reason, "message": message}}}]


RUNNING = pod("Running", containerStatuses=[{"name": "task", "state": {"running": {}}}])


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([RUNNING], "Remove"),
        ([pod(containerStatuses=waiting("ContainerCreating"))], "Remove"),
        ([], "Remove; it has no pod: see `kubectl describe job spam-1`"),
        ([pod("Failed")], "Remove; it has no pod: see `kubectl describe job spam-1`"),
        (
            [pod(conditions=[UNSCHEDULED])],
            "Remove; its pod is not scheduled: 0/3 nodes are available",
        ),
        (
            [pod(initContainerStatuses=waiting("ImagePullBackOff", "Back-off pulling image"))],
            "Remove; its pod does not start: ImagePullBackOff Back-off pulling image",
        ),
        ([pod(conditions=[UNSCHEDULED]), RUNNING], "Remove"),
    ],
)
def test_run_under_way_says_why_none_of_its_pods_works(
    pods: list[dict[str, Any]], text: str
) -> None:
    assert run_of(JOB, pods).text("Remove") == text


def ended(message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 137, "message": message}}
    return pod("Failed", containerStatuses=[{"name": "task", "state": state}])


@pytest.mark.parametrize(
    ("messages", "done"),
    [
        (['{"done": 7}', '{"done": 3}'], 10),
        # Of a purge: what its time ended is counted by each, what is younger by one.
        (['{"done": 7, "repeated": 5}', '{"done": 9, "repeated": 8}'], 11),
        (['{"done": 7, "repeated": 5}', '{"done": 0}'], 7),
        (['{"done": 2, "repeated": 5}', '{"repeated": 5}', "none"], 2),
    ],
)
def test_run_with_killed_pods_counts_each_mail_once(messages: list[str], done: int) -> None:
    assert run_of(JOB, [ended(each) for each in messages]).done == done


@pytest.mark.parametrize("owners", [[], [{"controller": True, "uid": "x"}], [{"uid": "u"}]])
def test_pods_that_only_have_the_labels_of_a_run_do_not_count(owners: list[dict[str, Any]]) -> None:
    labels = {"batch.kubernetes.io/job-name": "spam-1"}
    forged = {**ended('{"done": 7}'), "metadata": {"labels": labels, "ownerReferences": owners}}

    assert run_of(JOB, [forged, ended('{"done": 3}')]).done == 3
