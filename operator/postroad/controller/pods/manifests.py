"""Builds the manifests of a MailQueue's children: pure.

Children are named after the MailQueue, owned by it, and labelled for `kubectl` and the operator.
Labels and annotations of the MailQueue are not copied, because they are about that resource alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from postroad.controller.kubernetes import api
from postroad.controller.kubernetes.drift import hash_in, hash_of, with_hash
from postroad.controller.pods.network_policies import network_policies
from postroad.controller.pods.pods import OUTBOX_VOLUME, pod_template
from postroad.controller.pods.settings_files import FIELDS, DeliveryFiles, IntakeFiles
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Handler
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.domain.values.instants import format_duration
from postroad.ports.kubernetes import Kind, Object

Child = tuple[Kind, dict[str, Any]]

STORE_BYTES = 128 << 20
"""Octets of a volume beside the mail of an outbox: the log, and what a store keeps free."""

WORKER, INTAKE, QUEUE = "worker", "intake", "queue"


def wanted_children(
    queue: Queue,
    context: PodContext,
    components: Collection[str] = (QUEUE, INTAKE, WORKER),
    *,
    autoscaled: bool = False,
    present: Object | None = None,
) -> list[Child]:
    """Return the children of these components, in the order in which to apply them. `QUEUE`: what
    all pods share. Raises: InvalidInput for a template of another shape. `autoscaled`: the
    Deployments come without replicas, which the operator would otherwise set back. `present`: a
    StatefulSet, whose volumes cannot be changed."""
    configuration = queue_configuration(queue, context)
    workers, intake = queue.spec.workers, queue.spec.intake
    templates = {
        each: pod_template(queue, context, each, labels(queue, each), configuration, declared)
        for each, declared in ((INTAKE, intake), (WORKER, workers))
        if declared and each in components
    }
    children = _shared(queue, context, configuration) if QUEUE in components else []
    if intake and INTAKE in templates:
        template = templates[INTAKE]
        if (files := IntakeFiles.of(queue)) is not None:
            children.append(_settings(queue, files, INTAKE))
        children.append(_service(queue, intake))
        intakes = _deployment(queue, context, INTAKE, intake.replicas, template, autoscaled)
        children += intakes if intake.outbox is None else _stateful(queue, intakes, present)
    if workers and WORKER in templates:
        template = templates[WORKER]
        if (delivery := DeliveryFiles.of(queue)) is not None:
            children.append(_settings(queue, delivery, WORKER))
        children += _deployment(queue, context, WORKER, workers.replicas, template, autoscaled)
    return [(kind, with_hash(child)) for kind, child in children]


def _settings(queue: Queue, files: DeliveryFiles | IntakeFiles, component: str) -> Child:
    data = {"data": files.data()}
    return owned_child(queue, api.CONFIG_MAP, files.config_map, component, data)


def paced_children(
    queue: Queue,
    context: PodContext,
    component: str,
    present: Object | None,
    *,
    autoscaled: bool,
    granted: bool,
) -> tuple[list[Child], bool]:
    """Return the children of a component whose Deployment is `present`, and whether the operator
    wants to replace its pods and may not yet. Until that is `granted`, what a user declares has its
    effect, with the image that runs."""
    build = partial(wanted_children, components=(component,), autoscaled=autoscaled)
    wanted = build(queue, context, present=present)
    if present is None or not wanted:
        return wanted, False
    runs, newest = hash_in(present, api.TEMPLATE_HASH), _hash(wanted, api.TEMPLATE_HASH)
    if granted:
        return _marked(wanted, is_changed=runs != newest), False
    if runs == newest:
        return wanted, False
    older, image = wanted, _image_of(present, component)
    if queue.spec.image is None and image is not None:
        running = replace(context, image=image)
        older = build(queue, running, present=present)
    template, declared = _hash(older, api.TEMPLATE_HASH), _hash(older, api.DECLARED_HASH)
    if template == runs:  # a mark of the release before counts until its pods are replaced
        return _marked(older, is_changed=hash_in(present, api.UPGRADED) is not None), True
    if declared != hash_in(present, api.DECLARED_HASH):
        return older, template != newest
    return [each for each in older if each[0] not in api.WORKLOADS], True


def _marked(wanted: list[Child], *, is_changed: bool) -> list[Child]:
    """Return the children of an upgrade, with a mark at a Deployment whose template changes: what
    is applied later leaves it out."""
    for kind, child in wanted:
        if kind in api.WORKLOADS and is_changed:
            child["metadata"]["annotations"][api.UPGRADED] = "true"
    return wanted


def workload_kind(queue: Queue, component: str) -> Kind:
    """Return the kind that makes the pods of a component."""
    intake = queue.spec.intake if component == INTAKE else None
    return api.DEPLOYMENT if intake is None or intake.outbox is None else api.STATEFUL_SET


def _hash(children: Sequence[Child], annotation: str) -> str | None:
    (deployment,) = (child for kind, child in children if kind in api.WORKLOADS)
    return hash_in(deployment, annotation)


def _image_of(deployment: Mapping[str, Any], component: str) -> str | None:
    """Return the image of workers or intake. Their containers are called as their component."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    images = (each.get("image") for each in containers if each["name"] == component)
    return next(images, None)


def _shared(queue: Queue, context: PodContext, configuration: Mapping[str, str]) -> list[Child]:
    data, name = {"data": dict(configuration)}, f"{queue.name.name}-queue"
    return [
        owned_child(queue, api.CONFIG_MAP, name, QUEUE, data),
        *own_account(queue, QUEUE),
        *(
            owned_child(queue, api.NETWORK_POLICY, f"{queue.name.name}-{of}", QUEUE, {"spec": each})
            for of, each in network_policies(queue, context).items()
        ),
    ]


def own_account(queue: Queue, component: str) -> list[Child]:
    """Return the ServiceAccount `<name>-<component>`; none where pods have another."""
    name, declared = f"{queue.name.name}-{component}", queue.spec.service_account
    if queue.account(component) != name:
        return []
    body = {"automountServiceAccountToken": False}
    annotations = declared.annotations if declared is not None else {}
    return [owned_child(queue, api.SERVICE_ACCOUNT, name, component, body, annotations=annotations)]


def queue_configuration(queue: Queue, context: PodContext) -> dict[str, str]:
    """Return the environment of the pods, without credentials."""
    cluster, spec = context.cluster, queue.spec
    reports = spec.reports
    values: dict[str, object | None] = {
        "QUEUE": f"distributed://{queue.name}",
        "RABBITMQ_URI": cluster.rabbitmq.url,
        "RABBITMQ_MANAGEMENT_URL": cluster.rabbitmq.management_url,
        "CASSANDRA_CONTACT_POINTS": ",".join(cluster.cassandra.contact_points),
        "CASSANDRA_PORT": cluster.cassandra.port,
        "CASSANDRA_LOCAL_DATACENTER": cluster.cassandra.local_datacenter,
        "CASSANDRA_KEYSPACE": cluster.cassandra.keyspace,
        "CASSANDRA_TLS": cluster.cassandra.tls.mode.value,
        "CASSANDRA_TLS_NAME": cluster.cassandra.tls.server_name,
        "S3_ENDPOINT": cluster.s3.url,
        "S3_REGION": cluster.s3.region,
        "S3_BUCKET": queue.bucket(cluster),
        "BROKER_DELIVERY_LIMIT": spec.broker.delivery_limit,
        "RETRY_LANES": ",".join(map(format_duration, spec.retry.lanes)),
        "RETRY_MAX_AGE": format_duration(spec.retry.max_age),
        "RETRY_SOFT_BOUNCE": str(spec.retry.soft_bounce).lower(),
        "RETRY_DEAD_LETTER_LIFETIME": format_duration(spec.retry.dead_letter_lifetime),
        "REPORTS_ENABLED": str(reports.enabled).lower(),
        "REPORTS_DELAY_AFTER": format_duration(reports.delay_after),
        "REPORTS_AUTHOR": reports.author,
        "REPORTS_ADMINISTRATOR": reports.administrator,
        "REPORTS_LARGEST_RETURNED_BYTES": reports.largest_returned_bytes,
        "REPORTS_PER_MINUTE": reports.per_minute,
        "HOSTNAME": spec.hostname,
    }
    if spec.workers:
        values["WORKER_CONCURRENCY"] = spec.workers.concurrency
        values |= _program(spec.workers.handler)
    return {f"POSTROAD_{name}": str(each) for name, each in values.items() if each is not None}


def _program(handler: Handler) -> dict[str, object]:
    """Return the settings of the program that gets the mail; none where there is no program."""
    if (webhook := handler.webhook) is not None:
        return {
            "WORKER_WEBHOOK_URL": webhook.url,
            "WORKER_WEBHOOK_TIMEOUT": format_duration(webhook.timeout),
            "WORKER_WEBHOOK_LARGEST_BYTES": webhook.largest_bytes,
        }
    if (function := handler.function) is not None:
        return {
            "WORKER_FUNCTION_NAME": function.name,
            "WORKER_FUNCTION_TIMEOUT": format_duration(function.timeout),
            "WORKER_FUNCTION_LARGEST_BYTES": function.largest_bytes,
        }
    return {}


def labels(queue: Queue, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "postroad",
        api.INSTANCE: queue.name.name,
        api.COMPONENT: component,
    }


def selector(queue: Queue, component: str) -> str:
    return ",".join(f"{name}={value}" for name, value in labels(queue, component).items())


def owned_child(
    queue: Queue,
    kind: Kind,
    name: str,
    component: str,
    body: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Child:
    """Return an object that a MailQueue owns, with these fields, further labels, annotations."""
    all_tags = labels(queue, component) | {api.MANAGED_BY: "postroad"} | dict(tags or {})
    return child_of(queue.key, queue.uid, kind, name, all_tags, body, annotations)


def child_of(
    owner: api.Key,
    uid: str,
    kind: Kind,
    name: str,
    tags: Mapping[str, str],
    body: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> Child:
    """Return an object that a resource of the operator owns."""
    metadata = {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(tags),
        "ownerReferences": [owner_reference(owner, uid)],
    } | ({"annotations": dict(annotations)} if annotations else {})
    type_meta = {"apiVersion": kind.api_version, "kind": kind.name}
    return kind, {**type_meta, "metadata": metadata, **body}


def owner_reference(owner: api.Key, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": api.API_VERSION,
        "kind": owner.kind,
        "name": owner.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    owners = child["metadata"].get("ownerReferences") or []
    return any(each.get("controller") and each["uid"] == uid for each in owners)


def owned_by(owner: Mapping[str, Any], found: Sequence[Object]) -> list[Object]:
    """Return the objects that a controller made: any other may have their labels."""
    return [each for each in found if is_owned(each, owner["metadata"]["uid"])]


def belongs_to(child: Mapping[str, Any], queue: Queue) -> bool:
    """True if an object is a MailQueue's, or is taken over by it."""
    return belongs(child, queue.uid, {api.INSTANCE: queue.name.name})


def belongs(child: Mapping[str, Any], uid: str, tags: Mapping[str, str]) -> bool:
    """True if an object is that of a resource with this uid: it owns it, or the operator applied it
    for one of this name, which `tags` have, and it has no controller any more, as after a restore
    from a backup, or a deletion with `--cascade=orphan`. Applying it makes the resource its owner.
    """
    metadata = child["metadata"]
    owners, present = metadata.get("ownerReferences") or [], metadata.get("labels") or {}
    if any(each.get("controller") for each in owners):
        return is_owned(child, uid)
    is_ours = {**tags, api.MANAGED_BY: "postroad"}.items() <= present.items()
    return is_ours and not {api.APPLIED_HASH, api.USER_SINCE}.isdisjoint(
        metadata.get("annotations") or {}
    )


def _deployment(
    queue: Queue,
    context: PodContext,
    component: str,
    replicas: int,
    template: dict[str, Any],
    autoscaled: bool,
) -> list[Child]:
    name = f"{queue.name.name}-{component}"
    selected = {"matchLabels": labels(queue, component)}
    template["metadata"]["labels"][api.MANAGED_BY] = "postroad"
    spec: dict[str, Any] = {
        "selector": selected,
        "revisionHistoryLimit": 3,
        "template": template,
    }
    if not autoscaled:
        spec["replicas"] = replicas
    kind, deployment = owned_child(queue, api.DEPLOYMENT, name, component, {"spec": spec})
    deployment["metadata"]["annotations"] = {
        api.TEMPLATE_HASH: hash_of(template),
        api.DECLARED_HASH: declared_hash(queue, context),
    } | ({api.AUTOSCALED: "true"} if autoscaled else {})
    children = [(kind, deployment)]
    may_grow = component == WORKER and queue.spec.workers and queue.spec.workers.autoscaling
    if replicas > 1 or autoscaled or may_grow:
        budget = {
            "spec": {
                "maxUnavailable": 1,
                # Else a node cannot be drained while its pods are not ready.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": selected,
            }
        }
        children.append(owned_child(queue, api.DISRUPTION_BUDGET, name, component, budget))
    return children


def _stateful(queue: Queue, children: list[Child], present: Object | None) -> list[Child]:
    """Return the children of an intake with a StatefulSet in place of the Deployment. Its volumes
    outlive the pods, the StatefulSet and the MailQueue, because mail may wait in them."""
    (_, deployment), *others = children
    intake = queue.spec.intake
    assert intake is not None
    assert intake.outbox is not None
    storage, storage_class = str(intake.outbox.size + STORE_BYTES), intake.outbox.storage_class_name
    if present is not None:  # the API server refuses another one, as that of a greater size
        (claim,) = present["spec"]["volumeClaimTemplates"]
        storage = claim["spec"]["resources"]["requests"]["storage"]
        storage_class = claim["spec"].get("storageClassName")
    claimed: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage}},
    } | ({} if storage_class is None else {"storageClassName": storage_class})
    spec = deployment["spec"] | {
        "serviceName": deployment["metadata"]["name"],
        "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "volumeClaimTemplates": [{"metadata": {"name": OUTBOX_VOLUME}, "spec": claimed}],
    }
    kind = api.STATEFUL_SET
    stateful = {**deployment, "apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
    return [(kind, stateful), *others]


def declared_hash(queue: Queue, context: PodContext) -> str:
    """Return a hash of what users declare of the pods of a queue. Defaults are left out, so that
    fields which a newer operator brings change nothing; of `delivery` and `intake` all that pods
    read again."""
    spec = queue.spec.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            **dict.fromkeys(("pipeline", "delivery", "network_policy"), True),
            "workers": {"replicas", "autoscaling"},
            "intake": {"service", "replicas", *FIELDS},
        },
    )
    if (files := IntakeFiles.of(queue)) is not None:
        spec["intake_files"] = [files.secrets, files.settings.fixed]
    if queue.spec.delivery is not None and (delivery := DeliveryFiles.of(queue)) is not None:
        spec["delivery"] = delivery.secrets
    specs = (
        spec,
        context.cluster.model_dump(
            mode="json", exclude_defaults=True, include={"rabbitmq", "cassandra", "s3"}
        ),
    )
    return hash_of([*specs, dict(context.tls_versions or {})])


def _service(queue: Queue, intake: Intake) -> Child:
    spec = {
        **intake.service.fields(),
        "selector": labels(queue, INTAKE),
        "ports": [
            {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
            for name, port in intake.ports.items()
        ],
    }
    name, annotations = f"{queue.name.name}-intake", intake.service.annotations
    return owned_child(queue, api.SERVICE, name, INTAKE, {"spec": spec}, annotations=annotations)
