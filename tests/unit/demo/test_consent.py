"""What the demo says before it changes a cluster, and when it does not begin."""

from dataclasses import replace

import pytest

from demo.consent import MARK, Found, plan, refusal, removal, review, rights
from support.kubectl import Manifest, manifests
from support.repository import ROOT

FOUND = Found(
    context="staging",
    server="https://192.0.2.1:6443",
    namespaces={},
    has_crds=False,
    denied=[],
)
MADE = {MARK: "yes"}


def wanted() -> list[Manifest]:
    """Return what the demo applies, all but its namespaces and sink."""
    folder = ROOT / "manifests"
    files = (ROOT / "crds", folder / "install.yaml", folder / "executors.yaml", folder / "servers")
    return [each for file in files for each in manifests(file)]


def test_the_plan_names_context_namespaces_image_and_what_is_of_the_cluster() -> None:
    text = plan(FOUND, "try", "registry.example.org/postroad:1", wanted())

    for part in (
        "the context staging (https://192.0.2.1:6443)",
        "mailqueues.postroad.dev, mailqueuetasks.postroad.dev, queueclusters.postroad.dev",
        "ClusterRole postroad-operator, ClusterRoleBinding postroad-operator",
        "postroad-system: the operator, from the image registry.example.org/postroad:1",
        "in the namespace try: cassandra, rabbitmq, s3",
    ):
        assert part in text


def test_an_empty_cluster_with_all_rights_may_have_the_demo() -> None:
    assert refusal(FOUND, "try") == ""


def test_a_second_demo_may_follow_the_first() -> None:
    again = replace(FOUND, namespaces={"try": MADE, "postroad-system": MADE}, has_crds=True)

    assert refusal(again, "try") == ""


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (replace(FOUND, namespaces={"try": {}}), "namespace try is there, .* by NAMESPACE="),
        (replace(FOUND, namespaces={"postroad-system": {}}), "postroad-system .* no demo made it$"),
        (replace(FOUND, has_crds=True), "the CRDs of postroad are there"),
        (replace(FOUND, namespaces={"try": MADE}, has_crds=True), "the CRDs of postroad are there"),
        (
            replace(FOUND, denied=[("create", "namespaces", ""), ("patch", "secrets", "try")]),
            "you lack rights(.|\n)*\n  create namespaces\n  patch secrets in try$",
        ),
    ],
)
def test_what_others_made_and_lacking_rights_are_reasons_not_to_begin(
    found: Found, reason: str
) -> None:
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refusal(found, "try"))


def test_every_kind_that_is_applied_needs_a_right_where_it_is_applied() -> None:
    found = rights(wanted(), "try")

    assert {
        ("create", "customresourcedefinitions.apiextensions.k8s.io", ""),
        ("patch", "clusterroles.rbac.authorization.k8s.io", ""),
        ("create", "deployments.apps", "postroad-system"),
        ("create", "statefulsets.apps", "try"),
        ("patch", "networkpolicies.networking.k8s.io", "try"),
        ("create", "mailqueues.postroad.dev", "try"),
        ("create", "pods/exec", "try"),
    } <= set(found)
    assert len(found) == len(set(found))


def test_a_right_is_asked_for_by_group_resource_and_namespace() -> None:
    asked = [review(right)["spec"]["resourceAttributes"] for right in rights(wanted(), "try")]

    assert {
        "verb": "create", "group": "apps", "resource": "statefulsets", "namespace": "try"
    } in asked  # fmt: skip
    assert {
        "verb": "create", "group": "", "resource": "pods", "subresource": "exec", "namespace": "try"
    } in asked  # fmt: skip
    assert {"verb": "create", "group": "", "resource": "namespaces"} in asked


def test_queues_are_removed_before_the_operator_that_finishes_them() -> None:
    lines = removal("staging", "try")

    assert ["mailqueue" in line for line in lines] == [True, False, False]
    assert all(line.startswith("kubectl --context staging delete ") for line in lines)
