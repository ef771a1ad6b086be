"""The check before a rollback names what resources have that this release does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import pytest
from click.testing import CliRunner

from postroad.adapters.clocks import MachineClock
from postroad.cli.processes.operator_command import operator
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.controller.reads import OWN
from postroad.controller.run import program
from postroad.controller.run.program import unknown_parts
from postroad.domain.configuration.documents import to_document
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, api_over_http
from support.histories import transitions
from support.kubectl import manifests
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld
from support.repository import ROOT
from support.resources import intake, mail_queue, queue_cluster, workers

READ = [to_document(each) for each in transitions(3)]


def queue(history: Any = (), **spec: Any) -> dict[str, Any]:
    return {**mail_queue("mail", **spec), "status": {"history": [*READ, *history]}}


@pytest.mark.parametrize(
    "found", [each for each in manifests(ROOT / "manifests" / "samples") if "spec" in each], ids=str
)
def test_of_the_samples_nothing_is_unknown(found: dict[str, Any]) -> None:
    assert unknown_parts([found]) == []


def test_of_a_queue_with_labels_templates_and_a_history_nothing_is_unknown() -> None:
    template = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": []}}
    labels = {"labels": {"team": "mail"}, "nodeSelector": {"pool": "mail"}}
    found = queue(workers=workers() | {"template": template, "pod": labels}, intake=intake())

    assert unknown_parts([found, queue_cluster("mail"), mail_queue("mail", "other")]) == []


def test_fields_and_events_of_a_later_release_are_named_with_their_resource() -> None:
    event = READ[1] | {"order": "byRecipient"}
    found = queue(
        [event, READ[0] | {"type": "ConfigurationMoved"}],
        workers=workers() | {"surge": {"replicas": 3}},
        order="byRecipient",
        deletionPolicy="Archive",
    )
    cluster = deepcopy(queue_cluster("mail"))
    cluster["spec"]["cassandra"]["compression"] = "Zstd"

    lost, unread = "is unknown, and would be lost: take it out first", "cannot be read"
    history, ours = "of its configuration history", "MailQueue mail/outgoing"
    fields = "a configuration event has fields that are unknown: order"
    moved = "'ConfigurationMoved' is no type of configuration event"
    assert sorted(unknown_parts([found, cluster])) == [
        f"{ours}: event 1 {history} {unread}: {moved}",
        f"{ours}: event 2 {history} {unread}: {fields}",
        f"{ours}: spec.deletionPolicy has a value that is unknown: choose another one first",
        f"{ours}: spec.order {lost}",
        f"{ours}: spec.workers.surge {lost}",
        f"QueueCluster mail/main: spec.cassandra.compression {lost}",
    ]


OUT_OF_BOUNDS = {"concurrency": 10**6}


def test_values_that_are_refused_here_are_named_with_the_bound() -> None:
    found = queue(workers=workers() | OUT_OF_BOUNDS, retry={"lanes": []})

    told = unknown_parts([found])

    assert [each.partition(":")[0] for each in told] == ["MailQueue mail/outgoing"] * 2
    assert any("spec.retry.lanes is refused by this release: " in each for each in told)
    assert any(
        "spec.workers.concurrency is refused by this release: Input should be less than" in each
        and each.endswith(": change it first")
        for each in told
    )


def test_what_the_running_release_refuses_too_keeps_none_from_going_back() -> None:
    found = queue(workers=workers() | OUT_OF_BOUNDS)
    found["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "InvalidSpec"}]

    assert unknown_parts([found]) == []


def test_an_operation_of_a_later_release_is_named() -> None:
    spec = {"queueRef": {"name": "outgoing"}, "operation": "Shred", "selector": {"colour": "red"}}
    found = {"kind": "MailQueueTask", "metadata": {"namespace": "mail", "name": "once"}}

    told = sorted(unknown_parts([found | {"spec": spec}]))

    assert [each.split(" ")[2] for each in told] == ["spec.operation", "spec.selector.colour"]


SURGE = {
    "type": "object",
    "default": {},
    "properties": {
        "replicas": {"type": "integer", "default": 0},
        "of": {"type": "array", "items": {"type": "string"}},
    },
}


@pytest.mark.parametrize(
    ("surge", "is_lost"),
    [
        ({}, False),
        ({"replicas": 0}, False),
        ({"replicas": 3}, True),
        ({"replicas": 0, "of": ["a"]}, True),
    ],
    ids=str,
)
def test_a_field_that_has_its_default_is_lost_by_none(surge: dict[str, Any], is_lost: bool) -> None:
    properties = {"workers": {"properties": {"surge": SURGE}}}
    kinds = [{"group": "postroad.dev", "version": "v1beta1", "kind": "MailQueue"}]
    schema = {
        "properties": {"spec": {"properties": properties}},
        "x-kubernetes-group-version-kind": kinds,
    }
    found = queue(workers=workers() | {"surge": surge})

    told = unknown_parts([found], {"components": {"schemas": {"of.queues": schema, "of": {}}}})

    assert bool(told) == is_lost


def check(
    world: KubernetesWorld,
    monkeypatch: pytest.MonkeyPatch,
    *options: str,
    forbidden: Collection[str] = (),
) -> tuple[int, str]:
    """Run `postroad operator --check` over HTTP; return its exit code and what it printed."""

    async def run() -> tuple[int, str]:
        async with api_over_http(world) as (url, server):
            server.forbidden.update(forbidden)
            monkeypatch.setattr(program, "load_access", lambda: access_to(url, "t0ken"))
            command = CliRunner().invoke
            done = await asyncio.to_thread(command, operator, ["--check", *options])
            return done.exit_code, done.output or str(done.exception or "")

    return asyncio.run(run())


def test_the_command_fails_by_name_of_what_a_watched_namespace_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = KubernetesWorld(MachineClock(), KINDS)
    user = MemoryKubernetes(world, "user")
    for namespace, spec in (("mail", {"order": "byRecipient"}), ("lists", {})):
        asyncio.run(user.create(MAIL_QUEUE, mail_queue(namespace, **spec)))

    for options in ((), ("--namespace", "mail")):
        code, told = check(world, monkeypatch, *options)
        assert code == 1
        assert "a later release has run here" in told
        assert "MailQueue mail/outgoing: spec.order is unknown, and would be lost" in told
    assert check(world, monkeypatch, "--namespace", "lists") == (0, "")


def test_before_an_upgrade_the_account_has_no_right_to_tasks_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = KubernetesWorld(MachineClock(), KINDS)
    asyncio.run(MemoryKubernetes(world, "user").create(MAIL_QUEUE, mail_queue("mail")))

    assert check(world, monkeypatch, forbidden=["mailqueuetasks"]) == (0, "")
    code, told = check(world, monkeypatch, forbidden=[each.plural for each in OWN])
    assert code == 1
    assert "the account may list no MailQueues" in told


def test_before_an_upgrade_that_widens_what_is_watched_the_namespaces_of_before_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = KubernetesWorld(MachineClock(), KINDS)
    wider = ("--namespace", "mail", "--namespace", "lists")
    assert check(world, monkeypatch, *wider, forbidden=["lists"]) == (0, "")

    user = MemoryKubernetes(world, "user")
    asyncio.run(user.create(MAIL_QUEUE, mail_queue("mail", order="byRecipient")))
    code, told = check(world, monkeypatch, *wider, forbidden=["lists"])
    assert code == 1
    assert "spec.order is unknown" in told
