"""Kubernetes, in the stack's version, knows every field that is rendered, and no other passes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stack import schemas, tools
from support.chart import CHART, CRDS, VALUES, template
from support.kubectl import manifests
from support.repository import ROOT

pytestmark = pytest.mark.needs("helm", "kubeconform")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of kubeconform: where the schemas of Kubernetes' kinds and of the CRDs are."""
    own = tmp_path_factory.mktemp("kinds")
    for crd in manifests(CRDS):
        spec = crd["spec"]
        for version in spec["versions"]:
            name = schemas.file_name(spec["names"]["kind"], spec["group"], version["name"])
            schema = version["schema"]["openAPIV3Schema"]
            (own / name).write_text(json.dumps(schemas.strict(schema)))
    folders = (schemas.entry().path, schemas.of_the_prometheus_operator().path, own)
    return [word for each in folders for word in ("-schema-location", f"{each}/{schemas.LOCATION}")]


def conforms(text: str, kinds: list[str]) -> str:
    """Return what kubeconform complains about; nothing where all is well."""
    done = subprocess.run(
        [tools.program("kubeconform"), "-strict", *kinds],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert bool(done.returncode) == bool(done.stdout + done.stderr)
    return done.stdout + done.stderr


def test_twelve_sets_of_values_are_tried() -> None:
    assert len(VALUES) >= 12


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_kubernetes_knows_every_field_of_the_chart(values: Path, kinds: list[str]) -> None:
    assert conforms(template("--values", values), kinds) == ""


def test_kubernetes_knows_every_field_of_manifests(kinds: list[str]) -> None:
    # Those of GitOps have kinds of Flux and Argo CD, whose own CRDs they are tried against.
    ours = [*(ROOT / "manifests").glob("*.yaml"), *(ROOT / "manifests" / "samples").glob("*.yaml")]
    files = [*ours, *CRDS.glob("*.yaml")]
    assert len(files) >= 9

    assert {each.name: conforms(each.read_text(), kinds) for each in files} == {
        each.name: "" for each in files
    }


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "complaint"),
    [
        ("Deployment", "enableServiceLinks: false", "enableLinks: false", "enableLinks"),
        ("Deployment", "containerPort: 8080", "containerPort: http", "containerPort"),
        ("PodDisruptionBudget", "maxUnavailable: 1", "maxUnavailable: [1]", "maxUnavailable"),
        ("PodMonitor", "podMetricsEndpoints", "endpoints", "endpoints"),
        ("PrometheusRule", "expr: sum", "expression: sum", "expression"),
        ("MailQueue", "bucketCount", "buckets", "buckets"),
    ],
)
def test_a_field_that_kubernetes_does_not_know_is_found(
    kinds: list[str], kind: str, right: str, wrong: str, complaint: str
) -> None:
    sample = (ROOT / "manifests" / "samples" / "4-mailqueue.yaml").read_text()
    text = (
        template("--values", CHART / "ci/monitoring-values.yaml", "--set", "crds.install=false")
        + "---\n"
        + sample
    )
    assert right in text

    found = conforms(text.replace(right, wrong), kinds)

    assert f"{kind} " in found
    assert complaint in found
