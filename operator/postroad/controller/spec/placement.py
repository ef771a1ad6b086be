"""Parts of the spec of a MailQueue about its pods as Kubernetes sees them: where they run, with
what, as which account, and behind which Service.

What Kubernetes itself defines is passed on as it is: the CRD types it down to the level where a
misspelt name would be dropped silently, and what lies deeper is checked when the pods are made.
Source: ADR 0081."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from postroad.controller.spec.parts import Model, holds
from postroad.delivery_settings.patterns import NETWORK_PATTERN, ObjectName

OWN_LABELS = tuple(
    f"app.kubernetes.io/{of}" for of in ("name", "instance", "component", "managed-by")
)
OWN_PREFIX = "postroad.dev/"
OWN_ENVIRONMENT = "POSTROAD_"

LABELS_RESERVED = (
    "app.kubernetes.io/name, instance, component and managed-by, and what begins with "
    "postroad.dev/, are the operator's: choose another name"
)
ANNOTATIONS_RESERVED = "what begins with postroad.dev/ is the operator's: choose another name"
ENVIRONMENT_RESERVED = (
    "POSTROAD_ variables are the operator's: set the field of the MailQueue, or write the variable "
    "into template"
)


def is_own(name: str) -> bool:
    """True if a label or an annotation is the operator's."""
    return name in OWN_LABELS or name.startswith(OWN_PREFIX)


def _has_none_of_ours(names: Mapping[str, str]) -> bool:
    return not any(map(is_own, names))


def _names_no_setting(env: list[dict[str, Any]]) -> bool:
    return not any(str(each.get("name")).startswith(OWN_ENVIRONMENT) for each in env)


Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=63)]],
    Field(max_length=64),
    holds(_has_none_of_ours, LABELS_RESERVED),
]
Annotations = Annotated[
    dict[str, Annotated[str, Field(max_length=32768)]],
    Field(max_length=256),
    holds(_has_none_of_ours, ANNOTATIONS_RESERVED),
]
SourceRange = Annotated[
    str, Field(min_length=2, max_length=49, pattern=NETWORK_PATTERN.replace(")?$", ")$"))
]
PodEntries = Annotated[list[dict[str, Any]], Field(max_length=64)]


class Pod(Model):
    """Placement of pods and what they run with. What it leaves out, the operator decides;
    `template` changes what comes of both."""

    labels: Labels = Field(default={})
    """Further labels of the pods."""

    annotations: Annotations = Field(default={})
    """Further annotations of the pods."""

    resources: dict[str, Any] | None = None
    """Resources of the container, in place of all that the operator requests and limits."""

    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)
    ] = Field(default={})
    """Labels that a node must have, beside kubernetes.io/os: linux."""

    tolerations: PodEntries = Field(default=[])
    """Taints of nodes that pods bear with."""

    affinity: dict[str, Any] | None = None
    """Nodes and pods to be near to, or far from."""

    topology_spread_constraints: PodEntries | None = None
    """Spread over nodes and zones, in place of the operator's: at best one pod a node, and a zone.
    Without a labelSelector, a constraint counts the pods of this component."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods. Absent: the cluster's default."""

    image_pull_secrets: PodEntries = Field(default=[])
    """Secrets of the namespace with logins at the registry of the image."""

    security_context: dict[str, Any] = Field(default={})
    """Users and groups of the pods. Absent: the user of the image, or the one that the cluster
    gives to the namespace, as OpenShift does."""

    env: Annotated[
        list[dict[str, Any]], Field(max_length=256), holds(_names_no_setting, ENVIRONMENT_RESERVED)
    ] = Field(default=[])
    """Further environment variables of the container, such as HTTPS_PROXY."""

    log_level: Literal["Debug", "Info", "Warning", "Error"] | None = None
    """Least severity that is logged. Absent: Info."""

    def applied(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pod template of the operator, of one container, with what is given here."""
        metadata, spec = template["metadata"], dict(template["spec"])
        (container,) = spec["containers"]
        env = [*container.get("env", ()), *self.env]
        if self.log_level is not None:
            env.append({"name": "POSTROAD_LOG_LEVEL", "value": self.log_level.upper()})
        resources = {"resources": self.resources} if self.resources is not None else {}
        spec["containers"] = [{**container, "env": env, **resources}]
        spec["nodeSelector"] = {**spec["nodeSelector"], **self.node_selector}
        spec["securityContext"] = {**spec["securityContext"], **self.security_context}
        pulled = [*spec.get("imagePullSecrets", ()), *self.image_pull_secrets]
        secrets = {each["name"]: each for each in pulled}
        alone = {
            "tolerations": self.tolerations,
            "affinity": self.affinity,
            "priorityClassName": self.priority_class_name,
            "imagePullSecrets": list(secrets.values()),
        }
        spec |= {field: value for field, value in alone.items() if value}
        if self.topology_spread_constraints is not None:
            selector = {"matchLabels": metadata["labels"]}
            spec["topologySpreadConstraints"] = [
                {"labelSelector": selector, **each} for each in self.topology_spread_constraints
            ]
        named = {
            "labels": {**self.labels, **metadata["labels"]},
            "annotations": {**self.annotations, **metadata["annotations"]},
        }
        return {**template, "metadata": {**metadata, **named}, "spec": spec}


class Service(Model):
    """The Service of the intake, with the ports of the pods."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Way by which clients reach the intake. ClusterIP: from within the cluster alone."""

    annotations: Annotations = Field(default={})
    """Annotations of the Service, as load balancers of clouds read them."""

    load_balancer_class: Annotated[str, Field(min_length=1, max_length=317)] | None = None
    """Implementation of the load balancer. Cannot be changed while type is LoadBalancer. Absent:
    the cluster's default."""

    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Local: connections go to pods of the node that they reach, and the intake sees the client's
    address, which `from` of a listener needs. Cluster: to any pod, from the address of a node.
    Absent: Cluster."""

    source_ranges: Annotated[list[SourceRange], Field(min_length=1, max_length=64)] | None = None
    """Networks whose clients the load balancer lets in. Absent: all."""

    ip_families: (
        Annotated[list[Literal["IPv4", "IPv6"]], Field(min_length=1, max_length=2)] | None
    ) = None
    """Families of the Service's addresses, the first of which cannot be taken away later; two need
    a cluster with both. Absent: the cluster's default."""

    @model_validator(mode="after")
    def _fits_the_type(self) -> Service:
        if self.type != "LoadBalancer" and (self.load_balancer_class or self.source_ranges):
            raise ValueError(
                "loadBalancerClass and sourceRanges go with a load balancer: set type LoadBalancer"
            )
        if self.type == "ClusterIP" and self.external_traffic_policy:
            raise ValueError(
                "externalTrafficPolicy goes with clients from outside: set type LoadBalancer or "
                "NodePort"
            )
        return self

    def fields(self) -> dict[str, Any]:
        """Return the fields of the Service's spec that this decides."""
        given = self.model_dump(
            by_alias=True, exclude_none=True, exclude={"annotations", "source_ranges"}
        )
        if self.source_ranges is not None:
            given["loadBalancerSourceRanges"] = self.source_ranges
        if self.ip_families is not None:
            is_dual = len(self.ip_families) > 1
            given["ipFamilyPolicy"] = "RequireDualStack" if is_dual else "SingleStack"
        return given


class NetworkPolicy(Model):
    """NetworkPolicies of all pods, where the network of the cluster knows them."""

    enabled: bool = False
    """True if pods may connect to the ports of the servers, of DNS and of the next hops alone, and
    be reached at the intake's ports and that of metrics. Policies add up: what a proxy or a further
    container needs has one of your own."""


class ServiceAccount(Model):
    """ServiceAccount of all pods, by which they have the identity of a cloud."""

    name: ObjectName | None = None
    """One that is there, which the operator neither makes nor changes. Absent: `<name>-queue`, and
    `<name>-pipeline` for jobs with executors, which the operator makes."""

    annotations: Annotations = Field(default={})
    """Annotations of those that the operator makes, such as eks.amazonaws.com/role-arn."""

    @model_validator(mode="after")
    def _is_one(self) -> ServiceAccount:
        if self.name is not None and self.annotations:
            raise ValueError(
                "serviceAccount: annotate the ServiceAccount that name names yourself, or leave "
                "name out"
            )
        return self
