"""The examples of `manifests/gitops`: whatever alternatives a team takes, they fit together, and
with the commands of the documents."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from stack import kube
from support.chart import CHART, HEADER, NAMESPACE, helm
from support.kubectl import Manifest, documents_in, manifests
from support.repository import ROOT

EXAMPLES = ROOT / "manifests" / "gitops"
FLUX = EXAMPLES / "flux"
LABELS = {"pod-security.kubernetes.io/enforce": "restricted"}


def variants() -> list[list[Manifest]]:
    """Return what a team applies: of the files of one number, one."""
    files = sorted(FLUX.glob("*.yaml"))
    steps = [list(each) for _, each in itertools.groupby(files, lambda each: each.name[0])]
    return [
        [each for file in chosen for each in manifests(file)]
        for chosen in itertools.product(*steps)
    ]


def release() -> Manifest:
    (found,) = (
        each
        for file in FLUX.rglob("*.yaml")
        for each in manifests(file)
        if each["kind"] == "HelmRelease"
    )
    return found


def test_what_a_kustomization_depends_on_is_applied_in_every_variant() -> None:
    for applied in variants():
        kustomizations = [each for each in applied if each["kind"] == "Kustomization"]
        wanted = {
            other["name"] for each in kustomizations for other in each["spec"].get("dependsOn", ())
        }

        assert wanted
        assert wanted <= {each["metadata"]["name"] for each in kustomizations}


@pytest.mark.needs("helm")
def test_the_command_of_the_example_renders_the_operator_into_a_namespace_of_its_folder() -> None:
    text = (FLUX / "2-operator.yaml").read_text()
    found = re.search(r"^# +helm (template postroad .*) > (operator/\S+)$", text, re.MULTILINE)
    assert found, text
    arguments = [{"charts/postroad": f"{CHART}"}.get(each, each) for each in shlex.split(found[1])]
    version = ("--kube-version", kube.kubernetes_version())
    objects = [each for each in documents_in(helm(*arguments, *version)) if each]
    folder = manifests(FLUX / "operator")

    there = [each["metadata"]["name"] for each in folder if each["kind"] == "Namespace"]
    assert {each["metadata"].get("namespace", NAMESPACE) for each in objects} == {*there}


def test_every_example_has_the_operators_namespace_enforce_the_restricted_standard() -> None:
    (wanted,) = documents_in(HEADER)
    (found,) = (each for each in manifests(FLUX / "operator") if each["kind"] == "Namespace")
    (argo_cd,) = manifests(EXAMPLES / "argo-cd" / "application-operator.yaml")
    managed = argo_cd["spec"]["syncPolicy"]["managedNamespaceMetadata"]["labels"]

    assert LABELS.items() <= wanted["metadata"]["labels"].items()
    assert found["metadata"]["name"] == wanted["metadata"]["name"]
    assert found["metadata"]["labels"] == managed == LABELS


def test_helm_finds_the_release_of_the_helm_release_where_the_documents_look_for_it() -> None:
    page = (ROOT / "docs" / "operator" / "rollback.md").read_text()
    spec = release()["spec"]

    assert spec["targetNamespace"] == NAMESPACE
    assert f"helm rollback {spec['releaseName']} -n {spec['storageNamespace']} " in page
