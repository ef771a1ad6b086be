"""What the builders need to know about a MailQueue and its QueueCluster, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroad.controller.cluster_spec import QueueClusterSpec
from postroad.controller.spec import MailQueueSpec
from postroad.domain.names import QueueName


@dataclass(frozen=True, slots=True)
class Queue:
    """A MailQueue resource."""

    name: QueueName
    uid: str
    generation: int
    spec: MailQueueSpec

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Queue:
        """Read a MailQueue. Raises: pydantic.ValidationError, InvalidQueueName."""
        metadata = found["metadata"]
        return cls(
            name=QueueName(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=MailQueueSpec.model_validate(found["spec"]),
        )

    @property
    def cluster_namespace(self) -> str:
        """Where its QueueCluster is."""
        return self.spec.cluster_ref.namespace or self.name.namespace

    def bucket(self, cluster: QueueClusterSpec) -> str:
        """The bucket that holds the bytes of its mail."""
        return self.spec.blobs.bucket or self.name.bucket(cluster.s3.bucket_prefix)

    @property
    def owns_bucket(self) -> bool:
        """Whether the bucket was made for this queue, and goes with it once it is empty."""
        return self.spec.blobs.bucket is None


@dataclass(frozen=True, slots=True)
class PodContext:
    """What the pods of a queue find around them.

    `secret_versions` tells the versions of the Secrets that the pods read, so that a change rolls
    them; `authorities` are the certificate authorities of all servers, in PEM form. Cassandra has
    no scheme to say it: it is spoken to over TLS when its Secret brings an authority.
    """

    cluster: QueueClusterSpec
    image: str
    authorities: str = ""
    secret_versions: Mapping[str, str] | None = None
    cassandra_tls: bool = False
