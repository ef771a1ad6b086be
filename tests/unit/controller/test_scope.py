"""What a reconcile carries out follows from facts, not from events."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from postroad.controller.cluster.clusters import ClusterFacts, KnownFacts
from postroad.controller.cluster.turns import LastCheck
from postroad.controller.kubernetes.api import FINALIZER, INSTANCE, LAST_APPLIED, Key
from postroad.controller.mailqueue.plan import (
    LastReconcile,
    Scope,
    SeenFacts,
    after_reconcile,
    decide,
    with_applied,
)
from postroad.controller.reads import ChildVersion, User, as_child, as_object, as_user
from postroad.controller.spec.queue_resource import cluster_of
from support.resources import mail_queue

GOOD = {
    "conditions": [
        {"type": each, "status": "True", "reason": "AsDeclared"}
        for each in ("BrokerReady", "ViewReady", "BlobsReady", "ConfigurationAccepted")
    ]
}
BAD = {"conditions": [{"type": "BrokerReady", "status": "False", "reason": "BrokerUnavailable"}]}
CHILD = ChildVersion("Deployment", "outgoing-worker", "7")
SEEN = SeenFacts(1, ("uid", 1, 0, 0), frozenset({CHILD}))
NOW, EVERY = timedelta(seconds=60), timedelta(minutes=5)
LAST = LastReconcile(SEEN, GOOD, timedelta(seconds=30))


def queue(status: dict[str, Any] = GOOD, **spec: Any) -> dict[str, Any]:
    return {**mail_queue("mail", **spec), "status": status}


@pytest.mark.parametrize(
    ("seen", "last", "expected"),
    [
        (SEEN, LAST, Scope.METRICS),
        (replace(SEEN, children=frozenset()), LAST, Scope.CHILDREN),
        (replace(SEEN, children=frozenset({CHILD._replace(version="8")})), LAST, Scope.CHILDREN),
        (SEEN, None, Scope.FULL),
        (replace(SEEN, generation=2), LAST, Scope.FULL),
        (replace(SEEN, cluster=("uid", 1, 1, 0)), LAST, Scope.FULL),
        (replace(SEEN, cluster=None), LAST, Scope.FULL),
        (replace(SEEN, cluster=None), replace(LAST, seen=replace(SEEN, cluster=None)), Scope.FULL),
        (SEEN, replace(LAST, failures=1), Scope.FULL),
        (SEEN, replace(LAST, status={}), Scope.FULL),
        (SEEN, replace(LAST, full_at=NOW - EVERY), Scope.FULL),
    ],
    ids=[
        "nothing", "deleted child", "changed child", "first", "spec", "cluster or server",
        "no cluster any more", "no cluster still", "failure", "status written by hand", "time",
    ],
)  # fmt: skip
def test_the_scope_is_as_wide_as_what_changed(
    seen: SeenFacts, last: LastReconcile | None, expected: Scope
) -> None:
    assert decide(queue(), seen, last, NOW, EVERY).scope is expected


def test_a_finalizer_that_is_missing_or_too_many_makes_it_full() -> None:
    deleting = queue(deletionPolicy="Delete")
    held = queue()
    held["metadata"]["finalizers"] = [FINALIZER]

    assert decide(deleting, SEEN, LAST, NOW, EVERY).scope is Scope.FULL
    assert decide(held, SEEN, LAST, NOW, EVERY).scope is Scope.FULL


def test_a_pause_goes_before_everything_and_the_next_one_is_full() -> None:
    assert decide(queue(paused=True), SEEN, None, NOW, EVERY).scope is Scope.PAUSED
    assert after_reconcile(Scope.PAUSED, SEEN, GOOD, LAST, NOW) is None


def test_children_are_expected_until_the_resource_or_its_cluster_changes() -> None:
    gone = replace(SEEN, children=frozenset())
    there = {("Deployment", "outgoing-worker")}

    assert decide(queue(), gone, LAST, NOW, EVERY).expected == there
    for seen in (replace(gone, generation=2), replace(gone, cluster=None)):
        assert decide(queue(), seen, LAST, NOW, EVERY).expected == set()
    assert decide(queue(), gone, None, NOW, EVERY).expected == set()


def test_failures_count_until_the_cluster_changes() -> None:
    first = after_reconcile(Scope.FULL, SEEN, BAD, LAST, NOW)
    second = after_reconcile(Scope.FULL, SEEN, BAD, first, NOW)
    changed = replace(SEEN, cluster=("uid", 1, 1, 0))
    third = after_reconcile(Scope.FULL, changed, BAD, second, NOW)
    good = after_reconcile(Scope.FULL, changed, GOOD, third, NOW)

    assert [each.failures for each in (first, second, third, good) if each] == [1, 2, 1, 0]


def test_only_a_full_reconcile_puts_off_the_next_full_one() -> None:
    cheap = after_reconcile(Scope.METRICS, SEEN, GOOD, LAST, NOW)
    full = after_reconcile(Scope.FULL, SEEN, GOOD, LAST, NOW)

    assert cheap
    assert full
    assert (cheap.full_at, full.full_at) == (LAST.full_at, NOW)


def facts(connection: str = "a", answers: bool = True, **secrets: str) -> ClusterFacts:
    return ClusterFacts({"rabbitmq": answers}, connection, secrets)


def test_a_version_changes_with_the_facts_of_a_namespace() -> None:
    known = KnownFacts()
    versions = []
    for each in (
        facts(), facts(), facts(answers=False), facts("b", False), facts("b", False, other="1"),
        facts("b", False),
    ):  # fmt: skip
        known.record("uid", each)
        versions.append((known.version("uid", "mail"), known.version("uid", "other")))

    mail, other = zip(*versions, strict=True)
    assert [each != mail[0] for each in mail] == [False, False, True, True, True, True]
    assert len(set(mail)) == 3
    assert len(set(other)) == 5
    known.forget("uid")
    assert known.of("uid") is None
    assert known.version("uid", "other") == (0, 0)


def test_a_cluster_is_checked_again_for_its_users_its_spec_and_the_time() -> None:
    (user,) = as_user(resource()).values()
    last = LastCheck(NOW, 1, frozenset({user}), upgrade=(False, False, False))
    changed = user._replace(state=("u", 2, None, False))

    assert last.is_current(replace(last, at=NOW + EVERY / 2), EVERY)
    assert not last.is_current(replace(last, generation=2), EVERY)
    assert not last.is_current(replace(last, users=frozenset({changed})), EVERY)
    for upgrade in (True, True, False), (False, True, False), (False, False, True):
        assert not last.is_current(replace(last, upgrade=upgrade), EVERY)
    assert not last.is_current(replace(last, at=NOW + EVERY), EVERY)


def resource(**spec: Any) -> dict[str, Any]:
    found = mail_queue("mail", **spec)
    return {**found, "metadata": {**found["metadata"], "uid": "u", "generation": 1}}


def test_a_queue_is_indexed_by_its_cluster_and_a_child_by_its_instance() -> None:
    elsewhere = resource(clusterRef={"name": "main", "namespace": "servers"})
    scaled = {"manager": "kube-controller-manager", "subresource": "scale"}
    metadata = {
        "name": "outgoing-worker",
        "namespace": "mail",
        "resourceVersion": "7",
        "generation": 1,
        "labels": {INSTANCE: "outgoing"},
    }
    rest = {"spec": {"replicas": 0}, "status": {"observedGeneration": 1}}
    child = {"kind": "Deployment", "metadata": {**metadata, "managedFields": [{}, scaled]}, **rest}
    bare = {"kind": "Deployment", "metadata": {**metadata, "labels": {}}}

    assert cluster_of(resource()) == Key("QueueCluster", "mail", "main")
    assert as_user(elsewhere) == {
        Key("QueueCluster", "servers", "main"): User(
            Key("MailQueue", "mail", "outgoing"), ("u", 1, None, False)
        )
    }
    assert as_child(child) == CHILD
    assert as_object(child) == {
        Key("Deployment", "mail", f"{INSTANCE}=outgoing"): {
            "kind": "Deployment",
            "metadata": {**metadata, "managedFields": [scaled]},
            **rest,
        }
    }
    assert as_object(bare) == {}


def test_indexed_objects_share_their_texts_and_have_no_copy_of_a_manifest() -> None:
    def read(name: str) -> Any:
        body = resource()
        annotations = {LAST_APPLIED: json.dumps(body), "team": "mail"}
        body["metadata"] |= {"name": name, "annotations": annotations}
        body["status"] = {"conditions": [{"type": "Ready", "generation": 1, "good": True}]}
        return json.loads(json.dumps(body))

    (one,), (other,) = (as_object(read(name)).values() for name in ("one", "other"))

    assert one["metadata"]["annotations"] == {"team": "mail"}
    assert one["status"] == read("one")["status"]
    assert one["spec"] == read("one")["spec"]
    ready, also = one["status"]["conditions"][0], other["status"]["conditions"][0]
    assert ready["type"] is also["type"]
    assert all(a is b for a, b in zip(ready, also, strict=True))


def test_a_child_that_the_operator_wrote_is_no_news_and_another_version_is() -> None:
    other, new = ChildVersion("Service", "outgoing-intake", "3"), CHILD._replace(version="8")

    seen = with_applied(replace(SEEN, children=frozenset({CHILD, other})), [new])

    assert seen.children == {new, other}
    last = replace(LAST, seen=seen)
    assert decide(queue(), seen, last, NOW, EVERY).scope is Scope.METRICS
    for children in ({other}, {CHILD, other}, {new._replace(version="9"), other}):
        changed = replace(seen, children=frozenset(children))
        assert decide(queue(), changed, last, NOW, EVERY).scope is Scope.CHILDREN
