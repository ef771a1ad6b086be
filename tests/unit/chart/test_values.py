"""What Helm renders for the sets of values of `ci/`, each of which is for one purpose."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from support.chart import CHART, CRDS, MONITORING, VALUES, HelmFailed, rendered, template
from support.kubectl import Manifest, manifests

pytestmark = pytest.mark.needs("helm")

RENDERED = yaml.safe_load("""
openshift:
  Deployment pod/securityContext: &restricted
    {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  Pod pod/securityContext: *restricted
proxy:
  Deployment container/env/HTTPS_PROXY/valueFrom: {secretKeyRef: {name: proxy, key: url}}
  Deployment container/env/NO_PROXY/value: "10.96.0.0/12,.svc"
  ConfigMap metadata: {name: postroad-proxy, namespace: postroad-system}
  ConfigMap data: {hosts: s3.example.org}
authority:
  Deployment pod/volumes/authority/configMap: {name: authority}
  Deployment pod/volumes/tmp/emptyDir/medium: Memory
  Deployment container/volumeMounts/authority:
    {name: authority, mountPath: /etc/authority, readOnly: true}
  Deployment container/volumeMounts/tmp/mountPath: /tmp
  Deployment container/env/SSL_CERT_FILE/value: /etc/authority/ca.crt
names:
  Deployment metadata/name: &name mail-operator-lists
  Service metadata/name: *name
  ServiceAccount metadata/name: *name
  PodDisruptionBudget metadata/name: *name
  Role metadata/name: postroad-operator-lists
  ClusterRole metadata/name: postroad-operator-lists
  ClusterRoleBinding metadata/name: postroad-operator-lists
  ClusterRoleBinding subjects/0/name: *name
  Deployment spec/selector/matchLabels: &selector
    {app.kubernetes.io/name: mail-lists, app.kubernetes.io/component: operator}
  Service spec/selector: *selector
  PodDisruptionBudget spec/selector/matchLabels: *selector
  Deployment pod/topologySpreadConstraints/0/labelSelector/matchLabels: *selector
  Deployment metadata/annotations: {example.org/owner: mail}
  Deployment spec/template/metadata/annotations: {example.org/scrape: "true"}
  Deployment spec/template/metadata/labels:
    {<<: *selector, example.org/cost-center: "4711", team: lists}
renamed:
  Deployment metadata/name: mail-operator
  Service metadata/name: mail-operator
  PodDisruptionBudget metadata/name: mail-operator
  Pod metadata/name: mail-operator-test
  Deployment spec/selector/matchLabels/app.kubernetes.io~name: postroad
  ServiceAccount metadata/name: mail
  Deployment pod/serviceAccountName: mail
  ClusterRole metadata/name: postroad-operator
  RoleBinding subjects/0/name: mail
account:
  Deployment pod/serviceAccountName: mail-operators
mirror:
  Deployment container/image: &mirrored mirror.example.org:5000/proxy/mail/postroad:0.1.0
  Pod container/image: *mirrored
  Deployment pod/imagePullSecrets: &pulled [{name: mirror}]
  Pod pod/imagePullSecrets: *pulled
  Deployment container/env/POSTROAD_OPERATOR_PULL_SECRETS/value: mirror mirror-of-jobs
  Deployment container/env/POSTROAD_OPERATOR_IMAGE/value:
    mirror.example.org:5000/proxy/mail/postroad-queues:next
  Deployment container/env/POSTROAD_OPERATOR_PIPELINE_IMAGE/value:
    mirror.example.org:5000/proxy/postroad-pipeline@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
spread:
  Deployment pod/priorityClassName: system-cluster-critical
  Deployment pod/topologySpreadConstraints/0: # selects the operator's pods
    maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: DoNotSchedule
    minDomains: 3
    labelSelector:
      matchLabels: &own {app.kubernetes.io/name: postroad, app.kubernetes.io/component: operator}
  Deployment pod/topologySpreadConstraints/1/labelSelector:
    matchExpressions: [{key: app.kubernetes.io/component, operator: Exists}]
  PodDisruptionBudget spec:
    minAvailable: 60%
    unhealthyPodEvictionPolicy: IfHealthyBudget
    selector: {matchLabels: *own}
single:
  Deployment spec/strategy: {type: Recreate}
  Deployment pod/topologySpreadConstraints: null
  Deployment pod/nodeSelector: null
  Deployment pod/dnsPolicy: None
  Deployment pod/dnsConfig: &dns
    nameservers: [192.0.2.53]
    searches: [svc.cluster.local]
    options: [{name: ndots, value: "2"}]
  Pod pod/dnsConfig: *dns
  Deployment container/startupProbe:
    httpGet: {path: /healthz, port: health}
    periodSeconds: 2
    timeoutSeconds: 5
    failureThreshold: 300
  Deployment container/livenessProbe:
    httpGet: {path: /healthz, port: health}
    initialDelaySeconds: 5
    periodSeconds: 30
    timeoutSeconds: 5
    failureThreshold: 6
  Deployment container/readinessProbe:
    httpGet: {path: /readyz, port: health}
    periodSeconds: 5
    timeoutSeconds: 20
    successThreshold: 2
  Deployment pod/securityContext/fsGroup: 1000680000 # and not 1.00068e+09
  Deployment container/securityContext: &container
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seLinuxOptions: {level: "s0:c123,c456"}
  Pod container/securityContext: *container
monitoring:
  ServiceMonitor metadata/labels/release: kube-prometheus-stack
  ServiceMonitor spec/selector/matchLabels:
    {app.kubernetes.io/name: postroad, app.kubernetes.io/component: operator}
  ServiceMonitor spec/endpoints/0: {port: health, interval: 1m, honorLabels: true}
  PodMonitor metadata/labels/release: kube-prometheus-stack
  PodMonitor spec/namespaceSelector: {any: true}
  PodMonitor spec/podMetricsEndpoints/0/port: health
  PodMonitor spec/podMetricsEndpoints/0/metricRelabelings/0/regex: exported_namespace
  PrometheusRule metadata/labels/release: kube-prometheus-stack
  PrometheusRule spec/groups/0/rules/0/annotations/runbook_url:
    https://example.org/postroad/docs/operator/runbooks-mail.md#postroadenqueuefailing
  ConfigMap metadata/name: postroad-operator-dashboards
  ConfigMap metadata/labels/grafana_dashboard: "1"
canary:
  ServiceAccount metadata/annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/postroad
  Deployment pod/tolerations: [{key: infra, operator: Exists, effect: NoSchedule}]
  Deployment pod/nodeSelector: {pool: infra, kubernetes.io/os: linux}
cluster:
  Deployment spec/strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  Deployment pod/topologySpreadConstraints/0/labelSelector/matchLabels: *own
  PodDisruptionBudget spec:
    maxUnavailable: 1
    unhealthyPodEvictionPolicy: AlwaysAllow
    selector: {matchLabels: *own}
""")
"""Sets of values; a kind, a path in the last object of it, and what is there (null: nothing)."""

RBAC = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
WITH_IMAGE = ("--set", "image.repository=registry.example.org/mail/postroad")


@cache
def objects(name: str) -> tuple[Manifest, ...]:
    """Return what Helm renders for a set of values."""
    return tuple(rendered("--values", CHART / "ci" / f"{name}-values.yaml"))


def of(name: str, kind: str) -> Manifest:
    """Return the last object of a kind, with its pod and its container where it has them."""
    *_, found = (each for each in objects(name) if each["kind"] == kind)
    pod = found["spec"]["template"]["spec"] if kind == "Deployment" else found.get("spec", {})
    return {**found, "pod": pod, "container": pod.get("containers", [{}])[0]}


def at(found: Any, path: str) -> Any:
    """Return what is at a path, in lists by index or name; None: nothing is."""
    for step in path.split("/"):
        if isinstance(found, list):
            named = {each.get("name"): each for each in found}
            found = found[int(step)] if step.isdecimal() else named.get(step)
        else:
            found = found.get(step.replace("~", "/"))
        if found is None:
            return None
    return found


@pytest.mark.parametrize(
    ("values", "place", "wanted"),
    [(values, place, RENDERED[values][place]) for values in RENDERED for place in RENDERED[values]],
)
def test_a_value_is_rendered(values: str, place: str, wanted: object) -> None:
    kind, _, path = place.partition(" ")

    assert at(of(values, kind), path) == wanted


def test_every_value_is_in_a_set() -> None:
    sets = [yaml.safe_load(each.read_text()) for each in VALUES]
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert values.keys() - set[str]().union(*sets) == set()


def test_every_object_has_the_common_labels() -> None:
    unlabelled = [
        (each["kind"], each["metadata"]["name"])
        for each in objects("names")
        if each["metadata"]["labels"].get("example.org/cost-center") != "4711"
    ]

    assert unlabelled == []


@pytest.mark.parametrize("value", MONITORING)
def test_a_label_that_two_values_name_stands_once(value: str) -> None:
    """Flux' and Kustomize's parsers refuse a key that stands twice."""
    kind = MONITORING[value]
    label, wanted = ("grafana_dashboard", "1") if kind == "ConfigMap" else ("release", "prometheus")
    given = (f"commonLabels.{label}=ours", "monitoring.labels.release=prometheus")
    enabled = f"monitoring.{value}.enabled=true"
    text = template(*WITH_IMAGE, "--set", ",".join((*given, enabled)))

    (found,) = (each for each in text.split("\n---\n") if f"\nkind: {kind}\n" in each)
    values = re.findall(rf"^    {label}: (.*)$", found, re.MULTILINE)
    assert [yaml.safe_load(each) for each in values] == [wanted]


def test_keys_that_a_person_left_without_a_value_are_as_absent() -> None:
    """As `extraEnv:` is above lines that are all comments: YAML has null there."""
    keys = [
        *("affinity", "commonLabels", "deploymentAnnotations", "dnsConfig", "extraEnv"),
        *("extraObjects", "extraVolumeMounts", "extraVolumes", "imagePullSecrets"),
        *("monitoring.labels", "podAnnotations", "podLabels", "queueImagePullSecrets"),
        *("serviceAccount.annotations", "tolerations", "watchNamespaces"),
    ]
    enabled = ",".join(f"monitoring.{each}.enabled=true" for each in MONITORING)
    options = (*WITH_IMAGE, "--set", enabled)

    empty = ",".join(f"{each}=null" for each in keys)
    assert rendered(*options, "--set", empty) == rendered(*options)


def test_common_labels_change_nothing_else_of_the_crds() -> None:
    found = [each for each in objects("names") if each["kind"] == "CustomResourceDefinition"]
    for each in found:
        assert each["metadata"].pop("annotations")["helm.sh/resource-policy"] == "keep"
        del (
            each["metadata"]["labels"]["team"],
            each["metadata"]["labels"]["example.org/cost-center"],
        )

    assert sorted(map(str, found)) == sorted(map(str, manifests(CRDS)))


def test_without_rbac_there_is_no_role_and_no_service_account() -> None:
    kinds = {each["kind"] for each in objects("account")}

    assert kinds & (RBAC | {"ServiceAccount"}) == set()


def test_an_administrator_renders_the_same_roles_of_the_same_values() -> None:
    values = ("--values", CHART / "ci" / "account-values.yaml", "--set", "rbac.create=true")
    roles = [each for each in rendered(*values) if each["kind"] in RBAC]
    subjects = {
        (each["name"], each["namespace"]) for role in roles for each in role.get("subjects", ())
    }

    assert subjects == {("mail-operators", "postroad-system")}
    assert {"postroad-operator-users", "postroad-operator-executors"} <= {
        each["metadata"]["name"] for each in roles
    }


def test_a_disruption_budget_can_be_left_out() -> None:
    assert "PodDisruptionBudget" not in {each["kind"] for each in objects("single")}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            "podDisruptionBudget.minAvailable=0,podDisruptionBudget.maxUnavailable=0",
            "podDisruptionBudget: give minAvailable or maxUnavailable, not both",
        ),
        (
            "serviceAccount.create=false",
            "serviceAccount.name: name the ServiceAccount that is there",
        ),
        (
            f"nameOverride={'a' * 30},class={'b' * 30}",
            "has more than 63 characters: choose a shorter nameOverride or class",
        ),
        (
            "extraEnv[0].name=POSTROAD_OPERATOR_CLASS",
            "extraEnv: POSTROAD_OPERATOR_CLASS is there already: set the chart's value for it",
        ),
        (
            "extraEnv[0].name=POSTROAD_HEALTH_PORT",
            "extraEnv: POSTROAD_HEALTH_PORT: probes and the Service ask port 8080: leave it out",
        ),
        (
            "extraEnv[0].name=A,extraEnv[1].name=A",
            "extraEnv: A is there already: .* or name it once",
        ),
        (
            "extraVolumes[0].name=tmp,extraVolumes[0].emptyDir.medium=Memory",
            "extraVolumes: tmp is there already: choose another name",
        ),
        (
            "extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/ca",
            "extraVolumeMounts: extraVolumes has no ca",
        ),
        (
            "extraVolumeMounts[0].name=tmp,extraVolumeMounts[0].mountPath=/tmp/",
            "extraVolumeMounts: /tmp is there already: choose another path",
        ),
    ],
)
def test_values_that_contradict_one_another_are_refused(values: str, complaint: str) -> None:
    with pytest.raises(HelmFailed, match=complaint):
        rendered(*WITH_IMAGE, "--set", values)


def test_names_that_yaml_takes_for_other_types_stay_names() -> None:
    names = ("nameOverride", "fullnameOverride", "serviceAccount.name")
    options = [option for each in names for option in ("--set-string", f"{each}=no")]
    found = {each["kind"]: each for each in rendered(*WITH_IMAGE, *options)}

    deployment = found["Deployment"]
    assert deployment["metadata"]["name"] == found["ServiceAccount"]["metadata"]["name"] == "no"
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "no"
    assert found["Service"]["spec"]["selector"]["app.kubernetes.io/name"] == "no"
    assert found["ClusterRoleBinding"]["subjects"][0]["name"] == "no"


@pytest.mark.parametrize("budget", ["minAvailable", "maxUnavailable"])
def test_a_budget_of_zero_is_not_taken_for_none(budget: str) -> None:
    values = (*WITH_IMAGE, "--set", f"podDisruptionBudget.{budget}=0")
    (found,) = (each for each in rendered(*values) if each["kind"] == "PodDisruptionBudget")

    assert {budget: 0}.items() <= found["spec"].items()
    assert len(found["spec"]) == 3


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ("image.repository=mail/postroad", "mail/postroad:0.1.0"),
        ("image.registry=quay.io,image.repository=mail/postroad", "quay.io/mail/postroad:0.1.0"),
        (
            "global.imageRegistry=mirror,image.registry=quay.io,image.repository=mail/postroad",
            "mirror/mail/postroad:0.1.0",
        ),
        (
            "global.imageRegistry=mirror:5000,image.repository=quay.io/mail/postroad",
            "mirror:5000/mail/postroad:0.1.0",
        ),
        ("global.imageRegistry=mirror,image.repository=postroad", "mirror/postroad:0.1.0"),
    ],
)
def test_a_registry_goes_before_the_repository(values: str, image: str) -> None:
    (found,) = (each for each in rendered("--set", values) if each["kind"] == "Deployment")
    (container,) = found["spec"]["template"]["spec"]["containers"]

    assert container["image"] == image
    assert at(container, "env/POSTROAD_OPERATOR_IMAGE/value") == image
