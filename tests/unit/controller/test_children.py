"""The builders: what pods get, how a partial template is merged, when a child counts as changed."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from postroad.controller.kubernetes.api import CONFIGURATION_HASH
from postroad.controller.kubernetes.drift import is_current, merged, with_hash
from postroad.controller.pods.manifests import wanted_children
from postroad.controller.pods.readiness import has_ready_pods, shortage
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.parts import AllowedNamespaces, allows
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.errors import InvalidInput
from postroad.settings import from_environment
from support.resources import intake, relay

CLUSTER = QueueClusterSpec.model_validate(
    {
        "rabbitmq": {"url": "amqp://rabbitmq:5672/%2F", "secretRef": {"name": "rabbitmq"}},
        "cassandra": {
            "contactPoints": ["c1", "c2"],
            "keyspace": "postroad",
            "secretRef": {"name": "cassandra"},
            "tls": {"mode": "Disabled"},
        },
        "s3": {"url": "http://s3:9000", "secretRef": {"name": "s3"}},
    }
)
RELAY = {"relay": {"host": "sink", "port": 2525, "tls": {"mode": "None"}}}


def queue(**spec: Any) -> Queue:
    return Queue.of(
        {
            "metadata": {"namespace": "mail", "name": "out", "uid": "u1", "generation": 1},
            "spec": {"clusterRef": {"name": "main"}} | spec,
        }
    )


def children(
    wanted: Queue, *, autoscaled: bool = False, **context: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    pods = PodContext(CLUSTER, "postroad:1", **context)
    built = wanted_children(wanted, pods, autoscaled=autoscaled)
    return {(kind.name, child["metadata"]["name"]): child for kind, child in built}


def worker_pod(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = found["Deployment", "out-worker"]["spec"]["template"]
    return template


def test_a_queue_without_programs_has_only_its_configuration() -> None:
    assert set(children(queue())) == {("ConfigMap", "out-queue"), ("ServiceAccount", "out-queue")}


def test_all_children_are_there_and_owned() -> None:
    found = children(
        queue(
            workers={"replicas": 3, "handler": RELAY},
            intake=intake(replicas=1),
        ),
    )

    assert set(found) == {
        ("ConfigMap", "out-queue"),
        ("ConfigMap", "out-delivery"),
        ("ConfigMap", "out-intake"),
        ("ServiceAccount", "out-queue"),
        ("Service", "out-intake"),
        ("Deployment", "out-intake"),
        ("Deployment", "out-worker"),
        ("PodDisruptionBudget", "out-worker"),
    }
    for each in found.values():
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("u1", True)


def test_pods_read_servers_and_behaviour_from_the_configuration() -> None:
    spec = {
        "workers": {"handler": RELAY, "concurrency": 9},
        "intake": intake(),
        "retry": {"lanes": ["90s", "1h30m"], "maxAge": "48h", "softBounce": True},
        "broker": {"deliveryLimit": 4},
        "reports": {
            "enabled": False,
            "delayAfter": "2h",
            "author": "reports@x.example",
            "administrator": "postmaster@x.example",
            "largestReturnedBytes": 0,
            "perMinute": 5,
        },
    }

    data = children(queue(**spec))["ConfigMap", "out-queue"]["data"]

    assert data == {
        "POSTROAD_QUEUE": "distributed://mail.out",
        "POSTROAD_RABBITMQ_URI": "amqp://rabbitmq:5672/%2F",
        "POSTROAD_CASSANDRA_CONTACT_POINTS": "c1,c2",
        "POSTROAD_CASSANDRA_PORT": "9042",
        "POSTROAD_CASSANDRA_LOCAL_DATACENTER": "datacenter1",
        "POSTROAD_CASSANDRA_KEYSPACE": "postroad",
        "POSTROAD_CASSANDRA_TLS": "disabled",
        "POSTROAD_S3_ENDPOINT": "http://s3:9000",
        "POSTROAD_S3_REGION": "us-east-1",
        "POSTROAD_S3_BUCKET": "postroad-mail-out",
        "POSTROAD_BROKER_DELIVERY_LIMIT": "4",
        "POSTROAD_RETRY_LANES": "1m30s,1h30m",
        "POSTROAD_RETRY_MAX_AGE": "48h",
        "POSTROAD_RETRY_SOFT_BOUNCE": "true",
        "POSTROAD_RETRY_DEAD_LETTER_LIFETIME": "720h",
        "POSTROAD_REPORTS_ENABLED": "false",
        "POSTROAD_REPORTS_DELAY_AFTER": "2h",
        "POSTROAD_REPORTS_AUTHOR": "reports@x.example",
        "POSTROAD_REPORTS_ADMINISTRATOR": "postmaster@x.example",
        "POSTROAD_REPORTS_LARGEST_RETURNED_BYTES": "0",
        "POSTROAD_REPORTS_PER_MINUTE": "5",
        "POSTROAD_WORKER_CONCURRENCY": "9",
    }


@pytest.mark.parametrize(
    ("ports", "health"), [([2525], 8080), ([8080], 8081), ([8080, 8081], 8082)]
)
def test_an_intake_may_have_the_port_that_probes_have_elsewhere(
    ports: list[int], health: int
) -> None:
    listeners = [relay(name=f"at-{port}", port=port) for port in ports]
    _, container, environment = intake_of(children(queue(intake=intake(listeners=listeners))))

    numbers = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert len(set(numbers.values())) == len(numbers)
    assert numbers[container["livenessProbe"]["httpGet"]["port"]] == health
    settings = from_environment(environment)
    assert (settings.health_host, settings.health_port) == ("*", health), "the kubelet is elsewhere"


def intake_of(found: dict[tuple[str, str], dict[str, Any]]) -> tuple[Any, Any, dict[str, str]]:
    """The intake's pod, its container, and the settings that it has as values."""
    pod = found["Deployment", "out-intake"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container, {each["name"]: each.get("value") for each in container["env"]}


@pytest.mark.parametrize(
    "ports", [{"smtp": 2525}, {"mx": 25, "smtps": 465, "submission": 587}], ids=["high", "low"]
)
def test_service_and_pods_have_the_ports_of_the_listeners(ports: dict[str, int]) -> None:
    listeners = [relay(name=name, port=port) for name, port in ports.items()]
    found = children(queue(intake=intake(listeners=listeners)))
    pod, container, _ = intake_of(found)

    service = found["Service", "out-intake"]["spec"]["ports"]
    assert {each["name"]: each["port"] for each in service} == ports
    assert all(each["targetPort"] == each["name"] for each in service)
    listening = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert listening == {"health": 8080, **ports}
    sysctls = [each["name"] for each in pod["securityContext"].get("sysctls", [])]
    privileged = min(ports.values()) < 1024
    assert sysctls == (["net.ipv4.ip_unprivileged_port_start"] if privileged else [])


@pytest.mark.parametrize("hostname", [None, "mx.example.org"])
def test_an_intake_without_a_hostname_has_the_name_that_its_clients_use(
    hostname: str | None,
) -> None:
    """Workers then have none, and name their address (RFC 5321 4.1.1.1)."""
    found = children(queue(intake=intake(), workers={"handler": RELAY}, hostname=hostname))
    _, _, environment = intake_of(found)
    shared = found["ConfigMap", "out-queue"]["data"].get("POSTROAD_HOSTNAME")

    assert shared == hostname
    assert (environment.get("POSTROAD_HOSTNAME") or shared) == (hostname or "out-intake.mail.svc")
    assert "POSTROAD_HOSTNAME" not in str(worker_pod(found)["spec"]["containers"])


def test_a_webhook_has_its_secret_and_its_authorities_in_a_folder_of_the_workers() -> None:
    webhook = {
        "url": "https://app.example.org/mail",
        "secretRef": {"name": "of-the-app"},
        "tls": {"caRef": {"name": "ours"}},
        "timeout": "5s",
    }
    found = children(queue(workers={"handler": {"webhook": webhook}}, intake=intake()))
    pod = worker_pod(found)["spec"]

    (volume,) = [each for each in pod["volumes"] if each["name"] == "worker-webhook"]
    (container,) = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    data = found["ConfigMap", "out-queue"]["data"]
    assert {each["secret"]["name"] for each in volume["projected"]["sources"]} == {
        "of-the-app",
        "ours",
    }
    assert environment["POSTROAD_WORKER_WEBHOOK_LOGIN_FOLDER"] == "/etc/postroad/worker-webhook"
    assert environment["POSTROAD_WORKER_WEBHOOK_CA_FILE"].startswith(
        "/etc/postroad/worker-webhook/"
    )
    assert data["POSTROAD_WORKER_WEBHOOK_URL"] == "https://app.example.org/mail"
    assert data["POSTROAD_WORKER_WEBHOOK_TIMEOUT"] == "5s"
    assert "of-the-app" not in str(intake_of(found))


def test_a_function_is_named_to_the_workers() -> None:
    function = {"name": "app.mail:deliver"}
    data = children(queue(workers={"handler": {"function": function}}))["ConfigMap", "out-queue"][
        "data"
    ]

    assert data["POSTROAD_WORKER_FUNCTION_NAME"] == "app.mail:deliver"
    assert data["POSTROAD_WORKER_FUNCTION_TIMEOUT"] == "1m"


def test_credentials_are_files_and_not_in_the_environment() -> None:
    (container,) = worker_pod(children(queue(workers={"handler": RELAY})))["spec"]["containers"]

    written = {each["name"]: each["value"] for each in container["env"]}
    assert written == {
        "POSTROAD_HEALTH_HOST": "*",
        "POSTROAD_RABBITMQ_LOGIN_FOLDER": "/etc/postroad/rabbitmq",
        "POSTROAD_CASSANDRA_LOGIN_FOLDER": "/etc/postroad/cassandra",
        "POSTROAD_S3_LOGIN_FOLDER": "/etc/postroad/s3",
        "POSTROAD_WORKER_DELIVERY_FILE": "/etc/postroad/delivery/delivery.yaml",
    }


def test_pods_keep_to_the_restricted_profile() -> None:
    pod = worker_pod(children(queue(workers={"handler": RELAY})))["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize(
    ("spec", "context", "rolls"),
    [
        ({}, {}, False),
        ({"view": {"bucketCount": 5}}, {}, False),
        ({"retry": {"maxAge": "48h"}}, {}, True),
        ({}, {"tls_versions": {"s3": "2"}}, True),
    ],
    ids=["nothing", "the view", "retries", "a secret"],
)
def test_pods_roll_when_something_that_they_read_changes(
    spec: dict[str, Any], context: dict[str, Any], rolls: bool
) -> None:
    def stamp(found: dict[tuple[str, str], dict[str, Any]]) -> str:
        return str(worker_pod(found)["metadata"]["annotations"][CONFIGURATION_HASH])

    base = {"workers": {"handler": RELAY}}
    before = stamp(children(queue(**base), tls_versions={"s3": "1"}))

    after = stamp(children(queue(**base, **spec), **({"tls_versions": {"s3": "1"}} | context)))

    assert (before != after) == rolls


def test_a_partial_template_changes_the_worker_and_brings_containers_of_its_own() -> None:
    template = {
        "metadata": {"labels": {"team": "mail"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "containers": [
                {"name": "worker", "env": [{"name": "EXTRA", "value": "1"}]},
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    found = children(queue(workers={"handler": RELAY, "template": template}))
    pod = worker_pod(found)
    worker, sidecar = pod["spec"]["containers"]

    selected = found["Deployment", "out-worker"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["team"] == "mail"
    assert pod["spec"]["nodeSelector"] == {"disk": "fast", "kubernetes.io/os": "linux"}
    assert worker["image"] == "postroad:1"
    assert {"name": "EXTRA", "value": "1"} in worker["env"]
    assert len(worker["env"]) == 6
    assert sidecar == {"name": "sidecar", "image": "x"}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": "x"}, "spec.workers.template.spec must be an object"),
        ({"metadata": []}, "spec.workers.template.metadata must be an object"),
        ({"metadata": {"labels": "x"}}, "metadata.labels must be an object"),
        ({"metadata": {"annotations": ["x"]}}, "metadata.annotations must be an object"),
        ({"spec": {"containers": {"name": "worker"}}}, "spec.containers must be a list"),
        ({"spec": {"containers": ["worker"]}}, "spec.containers[0] must be an object with a name"),
        ({"spec": {"containers": [{"image": "x"}]}}, "containers[0] must be an object with a name"),
        ({"spec": {"initContainers": [{"name": ["x"]}]}}, "initContainers[0] must be an object"),
        (
            {"spec": {"containers": [{"name": "worker", "env": [{"value": "1"}]}]}},
            "spec.containers[worker].env[0] must be an object with a name",
        ),
    ],
    ids=str,
)
def test_a_template_of_another_shape_is_refused_by_its_path(
    template: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        children(queue(workers={"handler": RELAY, "template": template}))


@pytest.mark.parametrize(
    "template",
    [{"metadata": None}, {"metadata": {"labels": None, "annotations": None}}, {"spec": None}],
    ids=str,
)
def test_a_template_may_remove_what_it_likes(template: dict[str, Any]) -> None:
    """What is then missing is the API server's to say."""
    found = children(queue(workers={"handler": RELAY, "template": template}))

    labels = worker_pod(found)["metadata"]["labels"]
    assert found["Deployment", "out-worker"]["spec"]["selector"]["matchLabels"].items() <= (
        labels.items()
    )


def test_merging_changes_neither_side() -> None:
    base: dict[str, Any] = {"env": [{"name": "a", "value": "1"}], "args": ["x"], "keep": {"b": 1}}
    partial = {"env": [{"name": "a", "value": "2"}], "args": ["y"], "keep": None}
    before = copy.deepcopy((base, partial))

    assert merged(base, partial) == {"env": [{"name": "a", "value": "2"}], "args": ["y"]}
    assert (base, partial) == before


def test_replicas_are_left_to_an_autoscaler() -> None:
    wanted = queue(workers={"replicas": 3, "handler": RELAY})

    ours = children(wanted)["Deployment", "out-worker"]["spec"]
    theirs = children(wanted, autoscaled=True)["Deployment", "out-worker"]["spec"]

    assert ours["replicas"] == 3
    assert "replicas" not in theirs


CHILD = with_hash(
    {
        "metadata": {"name": "x", "labels": {"a": "b"}},
        "spec": {
            "replicas": 0,
            "paused": False,
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "0.5"}}}],
        },
    }
)


def change(path: str, value: object) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(CHILD)
    *parents, last = path.split(".")
    node: Any = found
    for each in parents:
        node = node[int(each)] if isinstance(node, list) else node[each]
    node[last] = value
    return found


@pytest.mark.parametrize(
    ("found", "current"),
    [
        (copy.deepcopy(CHILD), True),
        (change("spec.strategy", {"type": "RollingUpdate"}), True),
        (change("metadata.labels.theirs", "yes"), True),
        (change("spec.containers.0.image", "defaulted"), True),
        (change("spec.containers.0.resources.limits.cpu", "500m"), True),
        (change("spec.containers.0.resources.limits.cpu", "600m"), False),
        (change("spec.replicas", 1), False),
        (change("spec.paused", None), True),
        (change("spec.paused", True), False),
        (change("spec.containers", []), False),
        (change("metadata.labels.a", "c"), False),
        (change("metadata.annotations", {}), False),
        (None, False),
    ],
)
def test_only_wanted_fields_decide_whether_a_child_is_current(
    found: dict[str, Any] | None, current: bool
) -> None:
    assert is_current(CHILD, found) is current


def test_entries_that_no_field_tells_apart_are_compared_in_order() -> None:
    one, other = ({"key": "mail", "effect": each} for each in ("NoSchedule", "NoExecute"))
    wanted = {"spec": {"tolerations": [one, other]}}

    assert is_current(wanted, copy.deepcopy(wanted))
    assert not is_current(wanted, {"spec": {"tolerations": [one, one]}})


def test_the_order_of_fields_changes_no_child() -> None:
    before = with_hash({"metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}})

    assert is_current(with_hash({"data": {"b": "2", "a": "1"}, "metadata": {"name": "x"}}), before)


def test_a_field_that_is_no_longer_wanted_is_noticed_by_the_hash() -> None:
    before = with_hash({"metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}})

    assert not is_current(with_hash({"metadata": {"name": "x"}, "data": {"a": "1"}}), before)


@pytest.mark.parametrize(
    ("allowed", "asking", "labels", "expected"),
    [
        ({}, "mail", {}, True),
        ({}, "other", {}, False),
        ({"from": "All"}, "other", {}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}, "other", {"a": "b"}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}, "other", {}, False),
        ({"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}, "mail", {}, True),
        ({"from": "Selector", "selector": {}}, "other", {}, True),
        ({"from": "Selector"}, "other", {}, False),
    ],
)
def test_a_cluster_serves_the_namespaces_that_it_allows(
    allowed: dict[str, Any], asking: str, labels: dict[str, str], expected: bool
) -> None:
    model = AllowedNamespaces.model_validate(allowed)

    assert allows(model, "mail", asking, labels) is expected


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ["x", "y"], {"k": "y"}, True),
        ("In", ["x"], {}, False),
        ("NotIn", ["x"], {"k": "x"}, False),
        ("NotIn", ["x"], {}, True),
        ("Exists", [], {"k": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {"k": ""}, False),
        ("DoesNotExist", [], {}, True),
    ],
)
def test_label_expressions_are_kubernetes_own(
    operator: str, values: list[str], labels: dict[str, str], expected: bool
) -> None:
    expression = {"key": "k", "operator": operator, "values": values}
    allowed = {"from": "Selector", "selector": {"matchExpressions": [expression]}}

    assert allows(AllowedNamespaces.model_validate(allowed), "a", "b", labels) is expected


def deployment(generation: int = 2, seen: int = 2, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"generation": generation},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": seen, **status},
    }


ALL = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        (deployment(**ALL), True),
        (deployment(seen=1, **ALL), False),
        (deployment(**ALL | {"updatedReplicas": 1}), False),
        (deployment(**ALL | {"replicas": 3}), False),
        (deployment(**ALL | {"readyReplicas": 1}), False),
        (deployment(), False),
    ],
    ids=["all", "not seen yet", "old ones", "too many", "too few", "none"],
)
def test_workers_are_ready_when_enough_new_ones_are(found: dict[str, Any], ready: bool) -> None:
    assert (shortage(found, 2, "workers") is None) is ready


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (deployment(**ALL | {"readyReplicas": 1}), True),
        (deployment(seen=1, **ALL), False),
        (deployment(), False),
        (deployment(**ALL) | {"spec": {"replicas": 0}}, False),
    ],
    ids=["one", "not seen yet", "none", "none wanted"],
)
def test_pods_that_are_ready_count_once_the_present_spec_is_seen(
    found: dict[str, Any], expected: bool
) -> None:
    assert has_ready_pods(found) is expected


def test_a_stuck_deployment_says_why() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "quota exceeded"}

    missing = shortage(deployment(conditions=[condition]), 2, "workers")

    assert missing is not None
    assert missing.endswith("quota exceeded")
