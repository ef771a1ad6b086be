"""What an API server with the CRDs refuses, defaults and keeps, without an operator."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from postroad.controller.kubernetes.api import MAIL_QUEUE, MAIL_QUEUE_TASK, QUEUE_CLUSTER
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Kubernetes, Object
from support import spec_cases
from support.configuration_cases import CASES, Case
from support.resources import intake, mail_queue, queue_cluster, task, view


async def accept(api: Kubernetes, queue: Object, configuration: dict[str, Any]) -> None:
    """Say in the status that a configuration was accepted, as the operator does."""
    queue["status"] = {"observedGeneration": 1, "configuration": {"version": 1} | configuration}
    assert await api.replace_status(MAIL_QUEUE, queue)


async def change(api: Kubernetes, queue: Object, spec: dict[str, Any]) -> Object | None:
    metadata = queue["metadata"]
    return await api.patch(MAIL_QUEUE, metadata["namespace"], metadata["name"], {"spec": spec})


async def check(api: Kubernetes, queue: Object, case: Case) -> None:
    if case.accepted:
        assert await change(api, queue, {"view": view(*case.after)})
        return
    with pytest.raises(KubernetesRefused) as refusal:
        await change(api, queue, {"view": view(*case.after)})
    for message in case.messages:
        assert message in str(refusal.value)


def refused_by_name(case: spec_cases.Case) -> AbstractContextManager[object]:
    if case.said is None:
        return nullcontext()
    return pytest.raises(KubernetesRefused, match=case.said)


class AdmissionContract:
    """Of the CRDs, over the API server of the fixture `api`."""

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_a_change_is_compared_with_the_accepted_configuration(
        self, api: Kubernetes, namespace: str, case: Case
    ) -> None:
        """The spec is further along here (it was never accepted), and must not be the base."""
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, view=view("1s", 1000, 1)))
        await accept(api, queue, view(*case.before))

        await check(api, queue, case)

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_a_change_is_compared_with_the_spec_until_one_was_accepted(
        self, api: Kubernetes, namespace: str, case: Case
    ) -> None:
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, view=view(*case.before)))

        await check(api, queue, case)

    async def test_removing_a_field_cannot_get_round_the_rules(
        self, api: Kubernetes, namespace: str
    ) -> None:
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, view=view("30m", 4, 1000)))

        with pytest.raises(KubernetesRefused, match=r"sliceWindow cannot grow.*30m"):
            await change(api, queue, {"view": {"sliceWindow": None}})
        with pytest.raises(KubernetesRefused, match=r"bucketCount cannot shrink.*4"):
            await change(api, queue, {"view": None})

    async def test_a_spec_that_was_refused_still_lets_status_and_metadata_be_written(
        self, api: Kubernetes, namespace: str
    ) -> None:
        """Else a spec that got past the rules could neither be reported on nor be deleted."""
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, view=view("25m", 1, 1000)))
        await accept(api, queue, view("1h", 3, 1000))

        labelled = await api.patch(
            MAIL_QUEUE, namespace, "outgoing", {"metadata": {"labels": {"team": "mail"}}}
        )
        assert labelled
        labelled["status"]["size"] = 3
        reported = await api.replace_status(MAIL_QUEUE, labelled)

        assert reported
        assert reported["status"]["size"] == 3
        with pytest.raises(KubernetesRefused, match="sliceWindow"):
            await change(api, queue, {"view": {"sliceWindow": "50m"}})
        assert await change(api, queue, {"view": view("1h", 3, 1000)})

    @pytest.mark.parametrize("case", spec_cases.MAIL_QUEUES, ids=str)
    async def test_queues_that_make_no_sense_are_refused_by_name(
        self, api: Kubernetes, namespace: str, case: spec_cases.Case
    ) -> None:
        with refused_by_name(case):
            assert await api.create(MAIL_QUEUE, mail_queue(namespace, **case.spec))

    @pytest.mark.parametrize("case", spec_cases.TASKS, ids=str)
    async def test_a_task_that_makes_no_sense_is_refused_by_name(
        self, api: Kubernetes, namespace: str, case: spec_cases.Case
    ) -> None:
        with refused_by_name(case):
            await api.create(MAIL_QUEUE_TASK, task(namespace, **case.spec))

    @pytest.mark.parametrize("phase", ["Running", "Completed", "Failed"])
    async def test_a_task_that_has_begun_is_frozen_but_for_the_time_that_it_stays(
        self, api: Kubernetes, namespace: str, phase: str
    ) -> None:
        spec: dict[str, Any] = {"operation": "Hold", "selector": {"name": "x"}}
        made = await api.create(MAIL_QUEUE_TASK, task(namespace, **spec))
        place = MAIL_QUEUE_TASK, namespace, "task"
        assert await api.patch(*place, {"spec": {"selector": {"name": "y"}}})
        made = await api.get(*place) or made
        status = {"observedGeneration": 1, "phase": phase}
        assert await api.replace_status(MAIL_QUEUE_TASK, {**made, "status": status})

        for change in (
            {"operation": "Release"},
            {"selector": {"name": "x"}},
            {"selector": {"sender": "<>"}},
            {"dryRun": True},
        ):
            with pytest.raises(KubernetesRefused, match="has begun cannot be changed"):
                await api.patch(*place, {"spec": change})
        with pytest.raises(KubernetesRefused, match=r"queueRef cannot be changed"):
            await api.patch(*place, {"spec": {"queueRef": {"name": "other"}}})
        with pytest.raises(KubernetesRefused, match="schedule cannot be added"):
            await api.patch(*place, {"spec": {"schedule": "@daily"}})
        assert await api.patch(*place, {"spec": {"ttlSecondsAfterFinished": 60}})

    @pytest.mark.parametrize("name", ["a.b", "A", "a" * 44, "a-"])
    async def test_a_task_whose_name_cannot_be_that_of_a_job_is_refused(
        self, api: Kubernetes, namespace: str, name: str
    ) -> None:
        with pytest.raises(KubernetesRefused, match=r"metadata\.name"):
            await api.create(MAIL_QUEUE_TASK, task(namespace, name, operation="Purge"))

    @pytest.mark.parametrize("case", spec_cases.QUEUE_CLUSTERS, ids=str)
    async def test_clusters_that_make_no_sense_are_refused_by_name(
        self, api: Kubernetes, namespace: str, case: spec_cases.Case
    ) -> None:
        with refused_by_name(case):
            assert await api.create(QUEUE_CLUSTER, queue_cluster(namespace, **case.spec))

    async def test_the_replication_of_a_keyspace_cannot_be_changed(
        self, api: Kubernetes, namespace: str
    ) -> None:
        cluster = await api.create(QUEUE_CLUSTER, queue_cluster(namespace))
        change = {"spec": {"cassandra": {"replication": {"factor": 5}}}}

        with pytest.raises(KubernetesRefused, match="use ALTER KEYSPACE at Cassandra"):
            await api.patch(QUEUE_CLUSTER, namespace, cluster["metadata"]["name"], change)

    async def test_a_template_keeps_what_a_pod_has_nulls_included(
        self, api: Kubernetes, namespace: str
    ) -> None:
        security = {"runAsUser": None, "seccompProfile": {"type": "RuntimeDefault"}}
        kept: dict[str, Any] = {
            "metadata": {"labels": {"team": "mail", "other": None}},
            "spec": {
                "securityContext": security,
                "terminationGracePeriodSeconds": None,
                "containers": [{"name": "worker", "resources": {"limits": {"cpu": 2}}}],
            },
        }
        mistyped = {**kept, "spec": {**kept["spec"], "contaners": []}}
        workers = {"handler": {"relay": {"host": "sink"}}, "template": mistyped}

        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, workers=workers))

        assert queue["spec"]["workers"]["template"] == kept

    @pytest.mark.parametrize("name", ["with.dots", "x" * 53, "2fa-mails"])
    async def test_names_that_children_could_not_have_are_refused(
        self, api: Kubernetes, namespace: str, name: str
    ) -> None:
        with pytest.raises(KubernetesRefused, match="DNS label"):
            await api.create(MAIL_QUEUE, mail_queue(namespace, name))

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({}, {"clusterRef": {"name": "other"}}),
            ({}, {"clusterRef": {"namespace": "elsewhere"}}),
            ({"broker": {"deliveryLimit": 5}}, {"broker": {"deliveryLimit": 6}}),
            ({}, {"blobs": {"bucket": "shared"}}),
            ({"blobs": {"bucket": "shared"}}, {"blobs": {"bucket": None}}),
        ],
        ids=str,
    )
    async def test_what_would_leave_mail_behind_cannot_be_changed(
        self, api: Kubernetes, namespace: str, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, **before))

        with pytest.raises(KubernetesRefused, match="cannot be changed"):
            await change(api, queue, after)

    async def test_an_outbox_is_emptied_before_it_is_taken_out(
        self, api: Kubernetes, namespace: str
    ) -> None:
        outbox = {"size": "1Gi", "storageClassName": "fast"}
        queue = await api.create(MAIL_QUEUE, mail_queue(namespace, intake=intake(outbox=outbox)))

        for refused in (
            {"intake": {"outbox": None}},
            {"intake": None},
            {"intake": {"outbox": {"storageClassName": None}}},
            {"intake": {"outbox": {"storageClassName": "slow"}}},
        ):
            with pytest.raises(KubernetesRefused, match=r"cannot be (taken out|changed)"):
                await change(api, queue, refused)
        assert await change(api, queue, {"intake": {"outbox": {"size": 0}}})
        assert await change(api, queue, {"intake": {"outbox": None}})

    async def test_defaults_appear_and_null_means_absent(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(
            MAIL_QUEUE, mail_queue(namespace, blobs={"bucket": None}, intake=None)
        )

        spec = created["spec"]
        assert spec["view"] == view("1h", 3, 1000)
        assert spec["broker"] == {"deliveryLimit": 20}
        assert spec["blobs"] == {}
        assert spec["retry"] == {
            "lanes": ["1m", "5m", "15m", "1h", "4h"],
            "maxAge": "120h",
            "softBounce": False,
            "deadLetterLifetime": "720h",
        }
        assert spec["reports"] == {
            "enabled": True,
            "delayAfter": "4h",
            "largestReturnedBytes": 50_000,
            "perMinute": 60,
        }
        assert (spec["deletionPolicy"], spec["paused"]) == ("Retain", False)
        assert not {"workers", "intake"} & spec.keys()
        assert created["status"] == {"observedGeneration": -1}

    async def test_a_cluster_is_checked_and_defaulted(
        self, api: Kubernetes, namespace: str
    ) -> None:
        with pytest.raises(KubernetesRefused, match="selector goes with"):
            await api.create(
                QUEUE_CLUSTER, queue_cluster(namespace, allowedNamespaces={"from": "Selector"})
            )

        created = await api.create(QUEUE_CLUSTER, queue_cluster(namespace))

        cassandra = created["spec"]["cassandra"]
        assert (cassandra["port"], cassandra["keyspace"]) == (9042, "postroad")
        assert cassandra["replication"] == {"class": "NetworkTopologyStrategy", "factor": 3}
        assert created["spec"]["allowedNamespaces"] == {"from": "Same"}
        assert created["spec"]["operatorClass"] == "default"
        with pytest.raises(KubernetesRefused, match="operatorClass cannot be changed"):
            await api.patch(QUEUE_CLUSTER, namespace, "main", {"spec": {"operatorClass": "canary"}})
        with pytest.raises(KubernetesRefused, match="keyspace cannot be changed"):
            await api.patch(
                QUEUE_CLUSTER, namespace, "main", {"spec": {"cassandra": {"keyspace": "other"}}}
            )
        with pytest.raises(KubernetesRefused, match="bucketPrefix cannot be changed"):
            await api.patch(
                QUEUE_CLUSTER, namespace, "main", {"spec": {"s3": {"bucketPrefix": "x-"}}}
            )
