"""What `pod`, `template`, `service` and `serviceAccount` make of the children of a MailQueue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from postroad.controller.kubernetes.api import COMPONENT
from postroad.controller.pods.manifests import declared_hash, wanted_children
from postroad.controller.pods.pipeline_children import pipeline_children
from postroad.controller.pods.pods import DEFAULT_RESOURCES
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PipelineProgram, PodContext, Queue
from postroad.errors import InvalidInput
from support import spec_cases
from support.resources import intake, relay

SERVERS = QueueClusterSpec.model_validate(
    {
        "rabbitmq": spec_cases.RABBITMQ,
        "cassandra": spec_cases.CASSANDRA,
        "s3": {"url": "http://s3:9000", "secretRef": {"name": "s3"}},
    }
)
CONTEXT = PodContext(
    SERVERS, "postroad:1", None, PipelineProgram("pipeline:1", "postroad-pipeline")
)
POD: dict[str, Any] = {
    "labels": {"team": "mail"},
    "annotations": {"sidecar.istio.io/inject": "true"},
    "resources": {"requests": {"cpu": "2"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "mail", "operator": "Exists"}, {"key": "mail", "effect": "NoExecute"}],
    "affinity": {"nodeAffinity": {"x": 1}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "priorityClassName": "mail",
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {"runAsUser": 2000},
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "logLevel": "Debug",
}
HANDLER: dict[str, Any] = {"mx": {}}


def queue(name: str = "out", **spec: Any) -> Queue:
    metadata = {"namespace": "mail", "name": name, "uid": "u1", "generation": 1}
    return Queue.of({"metadata": metadata, "spec": {"clusterRef": {"name": "main"}} | spec})


def placed(**placement: Any) -> Queue:
    """Return a queue with workers, intake, and a job with executors, all placed alike."""
    return queue(
        workers={"handler": HANDLER} | placement,
        intake=intake(listeners=[relay(port=25)]) | placement,
        pipeline={
            "archive": {"schedule": "7 * * * *"},
            "addresses": {"keep": "None"},
            "executors": {"instances": 2},
        }
        | placement,
    )


def children(wanted: Queue, context: PodContext = CONTEXT) -> dict[tuple[str, str], dict[str, Any]]:
    built = [*wanted_children(wanted, context), *pipeline_children(wanted, context)]
    return {(kind.name, child["metadata"]["name"]): child for kind, child in built}


def pods(wanted: Queue, context: PodContext = CONTEXT) -> dict[str, dict[str, Any]]:
    """Return the pod templates by component."""
    found = children(wanted, context)
    job = found["CronJob", "out-archive"]["spec"]["jobTemplate"]["spec"]["template"]
    executor = json.loads(found["ConfigMap", "out-pipeline"]["data"]["pod.json"])
    return {
        "worker": found["Deployment", "out-worker"]["spec"]["template"],
        "intake": found["Deployment", "out-intake"]["spec"]["template"],
        "pipeline": job,
        "executor": executor,
    }


def test_every_pod_pulls_by_the_secrets_of_the_operator_and_by_its_own() -> None:
    context = replace(CONTEXT, pull_secrets=("mirror", "registry"))
    both = [{"name": "mirror"}, {"name": "registry"}]

    for component, template in pods(placed(), context).items():
        assert template["spec"]["imagePullSecrets"] == both, component
    for component, template in pods(placed(pod=POD), context).items():
        assert template["spec"]["imagePullSecrets"] == both, component
    more = {"imagePullSecrets": [{"name": "own"}]}
    for component, template in pods(placed(pod=more), context).items():
        assert template["spec"]["imagePullSecrets"] == [*both, {"name": "own"}], component


def test_without_pull_secrets_pods_leave_them_to_their_service_account() -> None:
    assert all("imagePullSecrets" not in each["spec"] for each in pods(placed()).values())


def own(template: dict[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def test_every_pod_is_placed_alike() -> None:
    for component, template in pods(placed(pod=POD)).items():
        metadata, spec = template["metadata"], template["spec"]
        assert metadata["labels"].items() >= {"team": "mail", COMPONENT: component}.items()
        assert metadata["annotations"]["sidecar.istio.io/inject"] == "true"
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "disk": "fast"}
        assert spec["tolerations"] == POD["tolerations"]
        assert spec["affinity"] == POD["affinity"]
        assert spec["priorityClassName"] == "mail"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["securityContext"]["runAsUser"] == 2000
        assert spec["securityContext"]["runAsNonRoot"] is True
        (spread,) = spec["topologySpreadConstraints"]
        assert spread["topologyKey"] == "zone"
        assert spread["labelSelector"]["matchLabels"][COMPONENT] == component
        assert "team" not in spread["labelSelector"]["matchLabels"]
        env = {each["name"]: each.get("value") for each in own(template)["env"]}
        assert (env["HTTPS_PROXY"], env["POSTROAD_LOG_LEVEL"]) == ("http://proxy", "DEBUG")


def test_resources_are_in_place_of_those_of_the_operator_and_executors_have_their_own() -> None:
    found = pods(placed(pod=POD))

    assert {each: own(found[each]).get("resources") for each in found} == {
        "worker": {"requests": {"cpu": "2"}},
        "intake": {"requests": {"cpu": "2"}},
        "pipeline": {"requests": {"cpu": "2"}},
        "executor": None,
    }
    assert own(pods(placed())["intake"])["resources"] == DEFAULT_RESOURCES


def test_an_intake_at_a_low_port_keeps_its_sysctl_beside_what_is_declared() -> None:
    security = pods(placed(pod=POD))["intake"]["spec"]["securityContext"]

    assert [each["name"] for each in security["sysctls"]] == ["net.ipv4.ip_unprivileged_port_start"]


@pytest.mark.parametrize("component", ["worker", "intake", "pipeline"])
def test_the_template_is_over_the_pod(component: str) -> None:
    template = {
        "metadata": {"labels": {"team": "post"}},
        "spec": {
            "priorityClassName": None,
            "nodeSelector": {"disk": "slow"},
            "containers": [
                {"name": component, "resources": {"requests": {"cpu": "3"}}},
                {"name": "beside", "image": "x"},
            ],
        },
    }

    spec = placed(pod=POD, template=template)
    found = pods(spec)[component]

    assert found["metadata"]["labels"]["team"] == "post"
    assert found["spec"]["nodeSelector"]["disk"] == "slow"
    assert "priorityClassName" not in found["spec"]
    mine, beside = found["spec"]["containers"]
    assert mine["resources"]["requests"] == {"cpu": "3"}
    assert beside["name"] == "beside"


def test_no_pod_has_a_fixed_user_or_group_so_that_openshift_gives_it_one() -> None:
    for template in pods(placed()).values():
        security = template["spec"]["securityContext"]
        assert security.keys() <= {"runAsNonRoot", "seccompProfile", "sysctls"}
        assert own(template)["securityContext"]["readOnlyRootFilesystem"] is True
        for volume in template["spec"]["volumes"]:
            for source in volume.values():
                if isinstance(source, dict) and "defaultMode" in source:
                    assert source["defaultMode"] & 0o004, "not readable for another group"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}},
            "labels.app.kubernetes.io/name",
        ),
        ({"metadata": {"labels": {"app.kubernetes.io/component": None}}}, "io/component"),
        ({"metadata": {"annotations": {"postroad.dev/configuration-hash": "x"}}}, "hash"),
        ({"spec": {"containers": [{"name": "SELF", "command": ["sh"]}]}}, "SELF.command"),
        ({"spec": {"containers": [{"name": "SELF", "args": None}]}}, "SELF.args"),
        ({"spec": {"volumes": [{"name": "s3", "emptyDir": {}}]}}, "volumes.s3"),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "SELF",
                            "volumeMounts": [{"mountPath": "/etc/postroad/s3", "name": "x"}],
                        }
                    ]
                }
            },
            "volumeMounts./etc/postroad/s3",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("component", ["worker", "intake", "pipeline"])
def test_a_template_that_takes_away_what_pods_need_is_refused_by_its_field(
    component: str, template: dict[str, Any], said: str
) -> None:
    mine = json.loads(json.dumps(template).replace("SELF", component))
    part = "workers" if component == "worker" else component
    declared = placed().spec.model_dump(by_alias=True, exclude_unset=True)
    declared[part]["template"] = mine

    with pytest.raises(InvalidInput) as refused:
        children(queue(**{key: each for key, each in declared.items() if key != "clusterRef"}))

    assert f"spec.{part}.template: the operator decides about" in str(refused.value)
    assert said.replace("SELF", component) in str(refused.value)


def test_a_template_may_bound_tmp_and_bring_containers_and_volumes_of_its_own() -> None:
    template = {
        "metadata": {"labels": {"app.kubernetes.io/part-of": "shop"}},
        "spec": {
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "x", "emptyDir": {}},
            ],
            "containers": [
                {"name": "beside", "command": ["sh"], "args": ["-c"]},
                {"name": "worker", "volumeMounts": [{"name": "x", "mountPath": "/run/x"}]},
            ],
        },
    }
    found = children(queue(workers={"handler": HANDLER, "template": template}))

    spec = found["Deployment", "out-worker"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "1Gi"}
    assert {each["name"] for each in spec["containers"]} == {"worker", "beside"}


def service(**declared: Any) -> dict[str, Any]:
    found: dict[str, Any] = children(queue(intake=intake(service=declared)))[
        "Service", "out-intake"
    ]
    return found


def test_the_service_of_the_intake_is_as_declared() -> None:
    found = service(
        type="LoadBalancer",
        annotations={"example.org/lb": "internal"},
        loadBalancerClass="example.org/lb",
        externalTrafficPolicy="Local",
        sourceRanges=["192.0.2.0/24"],
        ipFamilies=["IPv6", "IPv4"],
    )

    assert found["metadata"]["annotations"]["example.org/lb"] == "internal"
    assert (
        found["spec"].items()
        >= {
            "type": "LoadBalancer",
            "loadBalancerClass": "example.org/lb",
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack",
        }.items()
    )
    assert service(ipFamilies=["IPv6"])["spec"]["ipFamilyPolicy"] == "SingleStack"
    assert service()["spec"].keys() == {"type", "selector", "ports"}


def test_a_change_of_the_service_is_none_of_the_pods() -> None:
    before, after = queue(intake=intake()), queue(intake=intake(service={"type": "NodePort"}))

    assert declared_hash(before, CONTEXT) == declared_hash(after, CONTEXT)
    assert declared_hash(queue(intake=intake(pod=POD)), CONTEXT) != declared_hash(before, CONTEXT)


def test_annotations_of_the_service_account_are_at_those_that_the_operator_makes() -> None:
    declared = placed().spec.model_dump(by_alias=True, exclude_unset=True)
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/mail"}

    found = children(queue(**declared | {"serviceAccount": {"annotations": annotations}}))

    for name in ("out-queue", "out-pipeline"):
        account = found["ServiceAccount", name]
        assert account["metadata"]["annotations"].items() >= annotations.items()
        assert account["automountServiceAccountToken"] is False


def test_a_service_account_that_is_there_is_used_and_none_made() -> None:
    declared = placed().spec.model_dump(by_alias=True, exclude_unset=True)

    wanted = queue(**declared | {"serviceAccount": {"name": "mail"}})
    found = children(wanted)

    assert not [name for kind, name in found if kind == "ServiceAccount"]
    accounts = {each["spec"]["serviceAccountName"] for each in pods(wanted).values()}
    assert accounts == {"mail"}
    (subject,) = found["RoleBinding", "out-pipeline"]["subjects"]
    assert subject["name"] == "mail"


def test_an_account_that_is_named_as_the_operators_is_made() -> None:
    found = children(queue(workers={"handler": HANDLER}, serviceAccount={"name": "out-queue"}))

    assert ("ServiceAccount", "out-queue") in found
