"""A MailQueue as read, and the context of its pods: the input of the builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from postroad.controller.kubernetes.api import ADOPT, MAIL_QUEUE, QUEUE_CLUSTER, ROTATE, Key
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.tls import ServerLoginReference
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidQueueName
from postroad.ports.kubernetes import Object


@dataclass(frozen=True, slots=True)
class Queue:
    """A MailQueue resource."""

    name: QueueName
    uid: str
    generation: int
    spec: MailQueueSpec
    adopted: str = ""
    """The id of the claim on its queue or bucket that it may take over."""

    rotate: str = ""
    """The annotation that asks for another user at RabbitMQ."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Queue:
        """Read a MailQueue. Raises: pydantic.ValidationError, InvalidQueueName."""
        metadata = found["metadata"]
        return cls(
            name=QueueName(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=MailQueueSpec.model_validate(found["spec"]),
            adopted=adopted_by(found),
            rotate=asks_to_rotate(found),
        )

    @property
    def key(self) -> Key:
        """The key of the resource."""
        return Key(MAIL_QUEUE.name, self.name.namespace, self.name.name)

    def account(self, of: str = "queue") -> str:
        """Return the ServiceAccount of its pods: the one that the spec names, or `<name>-<of>`."""
        account = self.spec.service_account
        named = None if account is None else account.name
        return named or f"{self.name.name}-{of}"

    @property
    def login_secret(self) -> str:
        """The name of the Secret with its user at RabbitMQ, where the operator makes one."""
        return f"{self.name.name}-rabbitmq"

    @property
    def cluster_namespace(self) -> str:
        """Namespace of its QueueCluster."""
        return self.spec.cluster_ref.namespace or self.name.namespace

    def with_workers(self, replicas: int) -> Queue:
        """Return the queue with another number of workers, where it declares workers."""
        workers = self.spec.workers and self.spec.workers.model_copy(update={"replicas": replicas})
        return replace(self, spec=self.spec.model_copy(update={"workers": workers}))

    def bucket(self, cluster: QueueClusterSpec) -> str:
        """The bucket that holds the bytes of its mail."""
        return self.spec.blobs.bucket or self.name.bucket(cluster.s3.bucket_prefix)

    @property
    def owns_bucket(self) -> bool:
        """True if the operator created the bucket for this queue, and deletes it when empty."""
        return self.spec.blobs.bucket is None


def adopted_by(found: Mapping[str, Any]) -> str:
    """Return the id of the claim that a resource may adopt; empty: none."""
    return str((found["metadata"].get("annotations") or {}).get(ADOPT, ""))


def asks_to_rotate(found: Mapping[str, Any]) -> str:
    """Return the annotation of a MailQueue that asks for another user at RabbitMQ."""
    return str((found["metadata"].get("annotations") or {}).get(ROTATE, ""))


def is_erased_with_its_resource(found: Mapping[str, Any]) -> bool:
    """True if the deletion of a MailQueue erases its mail; also of one whose spec is invalid."""
    spec = found["spec"]
    return spec.get("deletionPolicy") == "Delete" and not spec.get("paused")


def cluster_of(body: Mapping[str, Any]) -> Key:
    """Return the key of the QueueCluster that a MailQueue refers to."""
    reference = body["spec"].get("clusterRef") or {}
    namespace = reference.get("namespace") or body["metadata"]["namespace"]
    return Key(QUEUE_CLUSTER.name, namespace, reference.get("name", ""))


def referring(queues: Sequence[Object], cluster: Key) -> Sequence[Object]:
    """Return the MailQueues that refer to this QueueCluster."""
    return [each for each in queues if cluster_of(each) == cluster]


def own_bucket(queue: Mapping[str, Any], prefix: str) -> str | None:
    """Return the name of a MailQueue's own bucket; None for one that shares a bucket."""
    if (queue["spec"].get("blobs") or {}).get("bucket"):
        return None
    metadata = queue["metadata"]
    try:
        return QueueName(metadata["namespace"], metadata["name"]).bucket(prefix)
    except InvalidQueueName:
        return None


def cluster_of_pods(cluster: QueueClusterSpec, queue: Queue) -> QueueClusterSpec:
    """Return the QueueCluster as the pods of a queue use it: by the queue's own user where it has
    one."""
    if cluster.rabbitmq.users is None:
        return cluster
    own = {"secret_ref": ServerLoginReference(name=queue.login_secret), "users": None}
    rabbitmq = cluster.rabbitmq.model_copy(update=own)
    return cluster.model_copy(update={"rabbitmq": rabbitmq})


@dataclass(frozen=True, slots=True)
class PipelineProgram:
    """The image of the jobs of the pipeline (empty: the operator names none), and the ClusterRole
    of those with executors."""

    image: str
    role: str


NO_PIPELINE = PipelineProgram("", "postroad-pipeline")


@dataclass(frozen=True, slots=True)
class PodContext:
    """Facts that the pods of a queue depend on beside the MailQueue. `tls_versions`: versions of
    the authorities and certificates that the pods read when they start, so that a change replaces
    the pods. `pipeline`: what jobs of the pipeline run, and are allowed. `pull_secrets`: Secrets of
    the queue's namespace that its registry asks for, beside those of the MailQueue."""

    cluster: QueueClusterSpec
    image: str
    tls_versions: Mapping[str, str] | None = None
    pipeline: PipelineProgram = NO_PIPELINE
    pull_secrets: tuple[str, ...] = ()

    def pulled(self, pod_spec: dict[str, Any]) -> dict[str, Any]:
        """Return a pod's spec with the Secrets by which its images are pulled."""
        if not self.pull_secrets:
            return pod_spec
        return {**pod_spec, "imagePullSecrets": [{"name": each} for each in self.pull_secrets]}
