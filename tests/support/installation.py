"""postroad in a real cluster: the operator installed, the servers published, queues applied.

What `make demo` and the e2e tests share. The steps are a user's: apply the CRDs, apply
`manifests/install.yaml`, create Secrets, apply a QueueCluster and MailQueues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import stack
from postroad.pipeline.java import jars
from stack import contexts, patience
from support.kubectl import Kubectl, Manifest, documents_in, eventually, manifests, secret

ROOT = Path(__file__).parents[2]
RELEASED_IMAGE = "postroad:0.1.0"
"""The image that `manifests/install.yaml` names."""

OPERATOR_NAMESPACE = "postroad-system"


def build_image(running: stack.Stack) -> str:
    """Build the image of this source, give it to the cluster, and return its name.

    Its tag is made of what is in it, so that a changed source is a changed Deployment.
    """
    name = image_name()
    running.image(ROOT, name)
    return name


def image_name() -> str:
    """Return the name that the image of this source has."""
    return f"postroad:source-{contexts.digest(ROOT)[:12]}"


def build_pipeline_image(running: stack.Stack) -> str:
    """Build the image of the jobs of the pipeline, give it to the cluster, return its name."""
    name = f"postroad-pipeline:source-{contexts.digest(ROOT)[:12]}"
    folder = jars.default_folder()
    jars.fetch(folder)
    running.image(ROOT, name, target="pipeline", more={"jars": folder})
    return name


@dataclass(frozen=True)
class Installation:
    """A cluster with the operator in it. `environment` names the servers (the stack's exports)."""

    kubectl: Kubectl
    environment: Mapping[str, str]
    image: str

    def install(self) -> None:
        """Install CRDs, RBAC and the operator, and wait until it runs."""
        self.kubectl.apply(*manifests(ROOT / "crds"))
        names = ("install", "executors", "consoles")
        text = "---\n".join((ROOT / "manifests" / f"{each}.yaml").read_text() for each in names)
        documents = documents_in(text.replace(RELEASED_IMAGE, self.image))
        self.kubectl.apply(*[each for each in documents if each["kind"] == "Namespace"])
        self.kubectl.apply(*[each for each in documents if each["kind"] != "Namespace"])
        seconds = patience.stretched(120)
        self.kubectl(
            *("rollout", "status", "deployment", "-n", OPERATOR_NAMESPACE),
            f"--timeout={seconds:.0f}s",
            timeout=130,
        )

    def namespace(self, name: str) -> None:
        """Create a namespace with the servers' Secrets in it."""
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.kubectl.apply(*self.secrets(name))

    def secrets(self, namespace: str) -> list[Manifest]:
        """Return the Secrets that the samples refer to, with this stack's credentials."""
        broker = urlsplit(self.environment["POSTROAD_RABBITMQ_URI"])
        return [
            secret(
                "rabbitmq",
                namespace,
                {
                    "username": unquote(broker.username or ""),
                    "password": unquote(broker.password or ""),
                },
            ),
            secret(
                "cassandra",
                namespace,
                {
                    "username": self.environment["POSTROAD_CASSANDRA_USERNAME"],
                    "password": self.environment["POSTROAD_CASSANDRA_PASSWORD"],
                },
            ),
            secret(
                "s3",
                namespace,
                {
                    "accessKey": self.environment["POSTROAD_S3_ACCESS_KEY"],
                    "secretKey": self.environment["POSTROAD_S3_SECRET_KEY"],
                },
            ),
        ]

    def queue_cluster(self, namespace: str, keyspace: str, name: str = "main") -> Manifest:
        """Return a QueueCluster for this stack's servers: one node each, so factor 1."""
        return {
            "apiVersion": "postroad.dev/v1beta1",
            "kind": "QueueCluster",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "rabbitmq": {
                    "url": "amqp://rabbitmq:5672/%2F",
                    "managementURL": "http://rabbitmq:15672",
                    "secretRef": {"name": "rabbitmq"},
                },
                "cassandra": {
                    "contactPoints": ["cassandra"],
                    "port": 9042,
                    "localDatacenter": self.environment["POSTROAD_CASSANDRA_LOCAL_DATACENTER"],
                    "keyspace": keyspace,
                    "replication": {"class": "NetworkTopologyStrategy", "factor": 1},
                    "secretRef": {"name": "cassandra"},
                    "tls": {"mode": "Disabled"},
                },
                "s3": {
                    "url": "http://s3:9000",
                    "region": self.environment["POSTROAD_S3_REGION"],
                    "secretRef": {"name": "s3"},
                },
            },
        }

    def wait_ready(self, kind: str, name: str, namespace: str, within_seconds: float = 120) -> None:
        """Wait until the resource says Ready=True for its present generation."""

        def ready() -> bool:
            found = self.kubectl.get(kind, name, namespace)
            status = found.get("status", {})
            assert status.get("observedGeneration") == found["metadata"]["generation"], status
            conditions = {each["type"]: each for each in status.get("conditions", [])}
            assert conditions.get("Ready", {}).get("status") == "True", conditions
            return True

        eventually(ready, within_seconds=within_seconds)
