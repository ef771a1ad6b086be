"""What the values of the chart do, and which are refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from matrix import variants
from postroad.cli.processes.operator_command import operator
from support.built_pods import WorkerPod
from support.chart import (
    CHART,
    CRDS,
    MONITORING,
    NAMESPACE,
    VALUES,
    HelmFailed,
    helm,
    rendered,
    template,
)
from support.kubectl import Manifest, manifests
from support.repository import ROOT
from support.resources import workers

pytestmark = pytest.mark.needs("helm")

WITH_CRDS = ("--set", "image.repository=postroad")
IMAGE = (*WITH_CRDS, "--set", "crds.install=false")
KEPT = {
    "helm.sh/resource-policy": "keep",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
}
"""By these, neither Helm nor Flux nor Argo CD deletes a CRD, and every queue with it."""
OPERATOR = "postroad-operator"


def identity(each: Manifest) -> tuple[str, str, str]:
    metadata = each["metadata"]
    return each["kind"], metadata.get("namespace", ""), metadata["name"]


def chosen(kind: str, *options: str | Path) -> list[Manifest]:
    return [each for each in rendered(*options) if each["kind"] == kind]


def test_crds_are_installed_as_they_are_and_kept_by_every_tool() -> None:
    found = {identity(each): each for each in chosen("CustomResourceDefinition", *WITH_CRDS)}
    wanted = {identity(each): each for each in manifests(CRDS)}

    kept = {name: each["metadata"].pop("annotations") for name, each in found.items()}

    assert all(each == KEPT for each in kept.values())
    assert found == wanted
    assert chosen("CustomResourceDefinition", *IMAGE) == []


def test_chart_and_operator_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing_wrong(values: Path) -> None:
    helm("lint", "--strict", CHART, "--values", values)


# Refused


REFUSED = {
    "replicaCount=3": "additional properties 'replicaCount' not allowed",
    "image.repo=x": "at '/image': additional properties 'repo' not allowed",
    "crds.keep=false": "at '/crds': additional properties 'keep' not allowed",
    "resources.memory=1Gi": "at '/resources': additional properties 'memory' not allowed",
    "replicas=0": "at '/replicas': minimum: got 0, want 1",
    "replicas=two": "at '/replicas': got string, want integer",
    "class=Canary": "at '/class': 'Canary' does not match pattern",
    "class=": "at '/class': '' does not match pattern",
    f"class={'a' * 46}": "at '/class': maxLength: got 46, want 45",
    "watchNamespaces={mail,mail}": "at '/watchNamespaces': items at 0 and 1 are equal",
    "watchNamespaces={Mail}": "at '/watchNamespaces/0': 'Mail' does not match pattern",
    "watchNamespaces=mail": "at '/watchNamespaces': got string, want array",
    "image.repository=postroad:0.1.0": "at '/image/repository': 'postroad:0.1.0' does not",
    "image.digest=e3b0c442": "at '/image/digest': 'e3b0c442' does not match pattern",
    "image.pullPolicy=Sometimes": "at '/image/pullPolicy': value must be one of",
    "tasks=0": "at '/tasks': minimum: got 0, want 1",
    "logLevel=verbose": "at '/logLevel': value must be one of",
    "imagePullSecrets={registry}": "at '/imagePullSecrets/0': got string, want object",
    "queueImagePullSecrets={registry}": "at '/queueImagePullSecrets/0': got string, want object",
    "extraObjects[0].kind=ConfigMap": "at '/extraObjects/0': missing properties 'apiVersion'",
    "podLabels.app\\.kubernetes\\.io/name=x": "invalid propertyName 'app.kubernetes.io/name'",
    "commonLabels.rbac\\.authorization\\.k8s\\.io/view=x": "invalid propertyName 'rbac.author",
    "commonLabels.team=a b": "at '/commonLabels/team': 'a b' does not match pattern",
    "global.imageRegistry=https://mirror": "at '/global/imageRegistry': 'https://mirror' does not",
    "image.registry=mirror/": "at '/image/registry': 'mirror/' does not match pattern",
    "nameOverride=Mail": "at '/nameOverride': 'Mail' does not match pattern",
    "fullnameOverride=2mail": "at '/fullnameOverride': '2mail' does not match pattern",
    "serviceAccount.create=maybe": "at '/serviceAccount/create': got string, want boolean",
    "rbac.enabled=false": "at '/rbac': additional properties 'enabled' not allowed",
    "strategy.type=Replace": "at '/strategy/type': value must be one of",
    "strategy.maxSurge=1": "at '/strategy': additional properties 'maxSurge' not allowed",
    "podDisruptionBudget.maxUnavailable=half": "at '/podDisruptionBudget/maxUnavailable': 'half'",
    "podDisruptionBudget.unhealthyPodEvictionPolicy=Never": "/unhealthyPodEvictionPolicy': value",
    "startupProbe.successThreshold=2": "at '/startupProbe': additional properties 'successThre",
    "livenessProbe.httpGet.path=/": "at '/livenessProbe': additional properties 'httpGet'",
    "readinessProbe.periodSeconds=0": "at '/readinessProbe/periodSeconds': minimum: got 0, want 1",
    "dnsPolicy=Cluster": "at '/dnsPolicy': value must be one of",
    "dnsConfig.nameserver=192.0.2.53": "at '/dnsConfig': additional properties 'nameserver' not",
    "extraEnv[0].valueFrom.secretRef.name=x": "additional properties 'secretRef' not allowed",
    "extraVolumes[0].configmap.name=x": "at '/extraVolumes/0': additional properties 'configmap'",
    "extraVolumeMounts[0].path=/etc": "at '/extraVolumeMounts/0': additional properties 'path'",
    "topologySpreadConstraints[0].key=zone": "at '/topologySpreadConstraints/0': additional",
    "podSecurityContext.runAsuser=1": "at '/podSecurityContext': additional properties",
    "podSecurityContext.runAsUser=root": "at '/podSecurityContext/runAsUser': got string, want",
    "monitoring.enabled=true": "at '/monitoring': additional properties 'enabled' not allowed",
    "monitoring.interval=30": "at '/monitoring/interval': got number, want string",
    "monitoring.podMonitor.enabled=yes": "at '/monitoring/podMonitor/enabled': got string, want",
    "monitoring.dashboards.label=a b": "at '/monitoring/dashboards/label': 'a b' does not match",
    "securityContext.capabilities.dropped={ALL}": "at '/securityContext/capabilities': additional",
}
"""Values without a meaning, and what Helm says of them."""


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """What Helm says of these values, as many at once as have different names: to start it takes
    longer than to judge them."""
    found: dict[str, str] = {}
    while left := [each for each in REFUSED if each not in found]:
        together = {each.partition("=")[0]: each for each in left}.values()
        with pytest.raises(HelmFailed) as refusal:
            template(*IMAGE, *(option for each in together for option in ("--set", each)))
        found |= dict.fromkeys(together, str(refusal.value))
    return found


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_without_a_meaning_is_refused(refusals: dict[str, str], value: str) -> None:
    assert REFUSED[value] in refusals[value]


@pytest.mark.parametrize("value", MONITORING)
def test_each_object_for_monitoring_is_made_by_one_value(value: str) -> None:
    before = {identity(each) for each in rendered(*IMAGE)}
    after = {
        identity(each) for each in rendered(*IMAGE, "--set", f"monitoring.{value}.enabled=true")
    }

    assert [kind for kind, *_ in after - before] == [MONITORING[value]]
    assert before <= after
    assert not {kind for kind, *_ in before} & set(MONITORING.values())


@pytest.mark.parametrize(
    ("runbooks", "begins"),
    [
        ("docs/operator/", "docs/operator/"),
        ("https://example.org/docs", "https://example.org/docs/"),
        ("https://example.org/docs/", "https://example.org/docs/"),
        ("", ""),
    ],
)
def test_an_address_of_runbooks_is_one_of_a_folder(runbooks: str, begins: str) -> None:
    value = f"monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.runbooks={runbooks}"
    (rules,) = chosen("PrometheusRule", *IMAGE, "--set", value)

    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"].startswith(f"{begins}runbooks-")


def test_workers_are_looked_for_where_the_operator_watches() -> None:
    only = ("--set", "monitoring.podMonitor.enabled=true", "--set", "watchNamespaces={mail,lists}")
    (monitor,) = chosen("PodMonitor", *IMAGE, *only)

    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["mail", "lists"]}


def test_monitors_select_the_pods_and_the_port_that_exist() -> None:
    (monitor,) = chosen("PodMonitor", *IMAGE, "--set", "monitoring.podMonitor.enabled=true")
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]

    children = WorkerPod(workers=workers(1)).children
    pods = [
        children["Deployment", f"outgoing-{each}"]["spec"]["template"]
        for each in expression["values"]
    ]
    for pod in pods:
        labels = pod["metadata"]["labels"]
        assert labels[expression["key"]] in expression["values"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ports = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_a_kubernetes_that_would_ignore_fields_of_the_crds_is_refused() -> None:
    with pytest.raises(HelmFailed, match=r"requires kubeVersion: >=1\.31\.0"):
        template(*WITH_CRDS, "--kube-version", "1.30.14")
    for each in variants.KUBERNETES:
        assert template(*WITH_CRDS, "--kube-version", each.version)


def test_an_image_has_to_be_named() -> None:
    with pytest.raises(HelmFailed, match="name the repository to which you pushed"):
        template()


def test_every_value_has_a_default_and_a_description() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(schema["properties"]) == set(values)
    for name, each in described(schema):
        assert each.get("description"), name


KUBERNETES = {
    "affinity",
    "dnsConfig",
    "podSecurityContext",
    "resources",
    "securityContext",
    "strategy",
}
"""Values that are a part of an object of Kubernetes, which describes it."""


def described(schema: dict[str, Any], within: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return the values of a schema that the chart defines, but for parts of Kubernetes' objects,
    each by its path."""
    found = []
    for name, each in schema.get("properties", {}).items():
        found.append((f"{within}{name}", each))
        if name not in KUBERNETES and not name.endswith("Probe"):
            found += described(each, f"{within}{name}.")
    return found


# What values do


def test_in_named_namespaces_the_operator_has_its_rights_there_alone() -> None:
    everywhere, namespaced = IMAGE, (*IMAGE, "--set", "watchNamespaces={mail,lists}")
    (whole,), (rest,) = (
        [each for each in chosen("ClusterRole", *options) if identity(each)[2] == OPERATOR]
        for options in (everywhere, namespaced)
    )
    roles = {identity(each)[1:]: each["rules"] for each in chosen("Role", *namespaced)}
    bindings = {identity(each)[1:]: each for each in chosen("RoleBinding", *namespaced)}

    assert rest["rules"] == [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]
    in_mail = roles["mail", f"{OPERATOR}-queues"]
    assert in_mail == roles["lists", f"{OPERATOR}-queues"]
    assert [*in_mail, *rest["rules"]] == whole["rules"]
    assert {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "create", "patch"],
    } in (roles[NAMESPACE, OPERATOR])
    assert set(bindings) == set(roles)
    for place, each in bindings.items():
        assert (each["roleRef"]["kind"], each["roleRef"]["name"]) == ("Role", place[1])
        assert each["subjects"] == [
            {"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}
        ]


def test_of_two_releases_with_one_class_helm_refuses_the_second() -> None:
    first, second = (chosen("ClusterRole", *IMAGE, "--namespace", each) for each in ("a", "b"))

    assert [identity(each) for each in first] == [identity(each) for each in second]


def test_another_class_shares_no_object_and_no_pod() -> None:
    own = ("--set", "aggregatedRoles.create=false,class=canary")
    both = [rendered(*WITH_CRDS), rendered(*IMAGE, *own)]
    first, second = ({identity(each): each for each in release} for release in both)
    selectors = [
        each["spec"]["selector"]["matchLabels"]
        for release in both
        for each in release
        if each["kind"] in ("Deployment", "PodDisruptionBudget")
    ]

    assert first.keys() & second.keys() == set()
    assert len({str(each) for each in selectors}) == 2


def environment_of(*options: str | Path) -> dict[str, str]:
    (deployment,) = chosen("Deployment", *options)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["operator"]
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (
            "cluster",
            {
                "image": "registry.example.org/mail/postroad:0.1.0",
                "namespaces": (),
                "operator_class": "default",
                "lease_namespace": NAMESPACE,
                "tasks": 32,
                "ambient_credentials": False,
                "health_host": "*",
                "log_level": "INFO",
            },
        ),
        (
            "namespaces",
            {
                "image": "registry.example.org:5000/postroad@sha256:"
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                "namespaces": ("mail", "lists"),
            },
        ),
        ("mirror", {"pull_secrets": ("mirror", "mirror-of-jobs")}),
        (
            "canary",
            {
                "image": "registry.example.org/postroad-queues:next",
                "operator_class": "canary",
                "tasks": 64,
                "ambient_credentials": True,
                "log_level": "DEBUG",
            },
        ),
    ],
)
def test_the_operator_reads_what_the_values_are(
    values: str, wanted: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of("--values", CHART / "ci" / f"{values}-values.yaml")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    read: Context = operator.make_context("operator", [])

    assert {name: read.params[name] for name in wanted} == wanted
    assert environment.keys() <= {each.envvar for each in operator.params}


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_pods_pass_the_restricted_standard(values: Path) -> None:
    objects = rendered("--values", values)
    pods = [each["spec"] for each in objects if each["kind"] == "Pod"]
    pods += [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    assert len(pods) >= 2

    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any(pod.get(each) for each in ("hostNetwork", "hostPID", "hostIPC"))
        for volume in pod.get("volumes", ()):
            assert volume.keys() - {"name"} <= {"emptyDir", "configMap", "secret", "projected"}


def test_the_test_asks_whether_an_operator_is_ready() -> None:
    pod = of_hook("test")
    (service,) = chosen("Service", *IMAGE)
    (deployment,) = chosen("Deployment", *IMAGE)
    (program,) = pod["spec"]["containers"][0]["args"]
    (port,) = service["spec"]["ports"]
    selected = deployment["spec"]["selector"]["matchLabels"]

    compile(program, "test", "exec")
    name = service["metadata"]["name"]
    assert f"http://{name}.{NAMESPACE}.svc:{port['port']}/readyz" in program
    assert service["spec"]["selector"] == selected
    assert not selected.items() <= pod["metadata"]["labels"].items()


def of_hook(hook: str, *options: str) -> Manifest:
    """Return the pod that Helm makes at such a moment."""
    (found,) = (
        each
        for each in chosen("Pod", *IMAGE, *options)
        if each["metadata"]["annotations"]["helm.sh/hook"] == hook
    )
    return found


def test_the_check_before_a_rollback_is_the_operators_program_with_its_rights_and_namespaces() -> (
    None
):
    watched = ("--set", "watchNamespaces={mail,lists}")
    pod = of_hook("pre-rollback", *watched)
    (deployment,) = chosen("Deployment", *IMAGE, *watched)
    operator = deployment["spec"]["template"]["spec"]
    (check,), (container,) = pod["spec"]["containers"], operator["containers"]

    assert check["args"] == [*container["args"], "--check"]
    assert check["image"] == container["image"]
    assert check["env"] == container["env"]
    assert pod["spec"]["serviceAccountName"] == operator["serviceAccountName"]
    assert pod["spec"]["volumes"][0]["name"] == check["volumeMounts"][0]["name"] == "tmp"
    # Before the upgrade that makes its account the pod could not be made.
    assert of_hook("pre-rollback", "--is-upgrade") == of_hook("pre-rollback")
    assert len(chosen("Pod", *IMAGE, "--set", "rollbackCheck=false")) == 1
