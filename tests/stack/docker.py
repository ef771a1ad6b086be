"""The same servers as containers, where a Docker engine answers; the cluster by kind.

Images are pulled; where they cannot be, equal ones are made (`pulling`, `node_image`), and the
stack's output has which. On Linux, pods reach our loopback through the gateway of kind's network;
elsewhere they do not.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stack import (
    contexts,
    folders,
    golang,
    images,
    kube,
    node_image,
    processes,
    pulling,
    rabbitmq,
    s3,
)
from stack.cache import Entry
from stack.cassandra import Cassandra
from stack.cluster import Cluster
from stack.errors import MissingRequirement, StackError
from stack.progress import Progress
from stack.rabbitmq import RabbitMQ
from stack.records import Record
from stack.s3 import VersityGW
from stack.server import ManagedServer

PROVIDER = "docker"

CASSANDRA_START = """\
sed -i -e 's/AllowAllAuthenticator/PasswordAuthenticator/' \
 -e 's/AllowAllAuthorizer/CassandraAuthorizer/' /etc/cassandra/cassandra.yaml \
 && exec docker-entrypoint.sh cassandra -f
"""
"""The image has no setting for passwords."""


@functools.cache
def engine_answers() -> bool:
    """Tell whether there is a Docker engine that we may use."""
    if shutil.which("docker") is None:
        return False
    try:
        command = ["docker", "info", "--format", "{{.ServerVersion}}"]
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def run(*arguments: str | Path) -> str:
    """Run docker, or another program when its name comes first.

    Raises:
        StackError: it failed; the message has what it said.
    """
    try:
        return subprocess.run(
            [str(argument) for argument in arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except subprocess.CalledProcessError as error:
        raise StackError(f"{arguments[0]} {arguments[1]}: {error.stderr.strip()}") from error


class Container(ManagedServer):
    """A server in a container. Of its base classes it comes before the native one, which has all
    but the way in which a server is run."""

    image: ClassVar[str]
    inner_ports: ClassVar[dict[str, int]]
    """Our port's name, and the port inside."""

    @property
    def provider(self) -> str:
        """A Docker engine."""
        return PROVIDER

    @property
    def container(self) -> str:
        """The container's name."""
        return f"pr-{folders.fingerprint(self.directory)}-{self.name}"

    def settings(self, record: Record) -> dict[str, str]:
        """Return the container's environment."""
        return {}

    def arguments(self) -> Sequence[str]:
        """Return what follows the image's name."""
        return ()

    def is_prepared(self) -> bool:
        """Tell whether the image is there."""
        return pulling.is_here(self.image)

    def check_machine(self) -> None:
        """Ask for nothing: the engine has all."""

    def missing(self) -> list[str]:
        """Look for the image."""
        return [] if self.is_prepared() else ["container images"]

    def prepare(self, progress: Progress) -> None:
        """Pull the image, or make an equal one."""
        make = functools.partial(pulling.server, self.name, self.image)
        pulling.obtain(self.image, progress, make)

    def launch(self, record: Record) -> None:
        """Start the container it has, or make one."""
        if self._status():
            run("docker", "start", self.container)
            return
        command = ["docker", "run", "--detach", "--name", self.container]
        for name, inside in self.inner_ports.items():
            command += ["--publish", f"127.0.0.1:{record.ports[name]}:{inside}"]
        for name, value in self.settings(record).items():
            command += ["--env", f"{name}={value}"]
        run(*command, self.image, *self.arguments())

    def _status(self) -> str:
        """Return Docker's word for the state of the container; empty when there is none."""
        command = ["docker", "container", "inspect", "--format", "{{.State.Status}}"]
        answer = subprocess.run(
            [*command, self.container], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip()

    def is_alive(self) -> bool:
        """Return whether the container runs, frozen or not."""
        return self._status() in ("running", "paused", "restarting")

    def is_frozen(self) -> bool:
        """Return whether the engine has paused it."""
        return self._status() == "paused"

    def end(self) -> None:
        """Kill the container; it keeps its data."""
        if self.is_alive():
            run("docker", "kill", self.container)

    def stop(self) -> None:
        """Stop the container."""
        run("docker", "stop", self.container)

    def pause(self) -> None:
        """Freeze the container."""
        run("docker", "pause", self.container)

    def resume(self) -> None:
        """Let the container go on."""
        run("docker", "unpause", self.container)

    def remove(self) -> None:
        """Remove the container and its data."""
        if self._status():
            run("docker", "rm", "--force", "--volumes", self.container)
        super().remove()

    @property
    def logs(self) -> list[Path]:
        """Write the container's output to a file, and return that file."""
        if self._status():
            command = ["docker", "logs", "--tail", "1000", self.container]
            with self.main_log.open("wb") as output:
                subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        return [self.main_log]

    @property
    def pid(self) -> int | None:
        """Unknown: the process may run in a virtual machine."""
        return None

    @property
    def memory_bytes(self) -> int | None:
        """Unknown: `docker stats` knows."""
        return None


class DockerRabbitMQ(Container, RabbitMQ):
    """RabbitMQ with its management plugin."""

    image = "rabbitmq:3-management"
    inner_ports: ClassVar = {"amqp": 5672, "management": 15672}

    def settings(self, record: Record) -> dict[str, str]:
        """Return user and password."""
        return {
            "RABBITMQ_DEFAULT_USER": rabbitmq.USER,
            "RABBITMQ_DEFAULT_PASS": record.secrets["password"],
        }


class DockerCassandra(Container, Cassandra):
    """One Cassandra node with passwords on."""

    image = "cassandra:5"
    inner_ports: ClassVar = {"cql": 9042}

    def settings(self, record: Record) -> dict[str, str]:
        """Return a small heap."""
        return {"MAX_HEAP_SIZE": "1G", "HEAP_NEWSIZE": "200M"}

    def arguments(self) -> Sequence[str]:
        """Switch passwords on, then start."""
        return ("bash", "-c", CASSANDRA_START)


class DockerVersityGW(Container, VersityGW):
    """versitygw on a folder of the container."""

    image = "versity/versitygw:v1.8.0"
    inner_ports: ClassVar = {"s3": 7070}

    def settings(self, record: Record) -> dict[str, str]:
        """Return the root user's keys."""
        return {
            "ROOT_ACCESS_KEY": s3.ACCESS_KEY,
            "ROOT_SECRET_KEY": record.secrets["password"],
        }

    def arguments(self) -> Sequence[str]:
        """Serve the container's /tmp."""
        return ("--port", ":7070", "--health", s3.HEALTH, "--region", s3.REGION, "posix", "/tmp")


class KindCluster(Container, Cluster):
    """A cluster of one node by kind."""

    image = "kindest/node:v1.34.0"
    inner_ports: ClassVar = {}

    @property
    def cluster(self) -> str:
        """The cluster's name, from which kind makes the container's."""
        return f"pr-{folders.fingerprint(self.directory)}"

    @property
    def container(self) -> str:
        """The node's container."""
        return f"{self.cluster}-control-plane"

    @property
    def kubectl(self) -> kube.Kubectl:
        """Run the kubectl in PATH, or our own where there is none."""
        found = shutil.which("kubectl")
        return kube.Kubectl(self.kubeconfig, Path(found) if found else None)

    @property
    def endpoint(self) -> str:
        """The cluster's name; its address is in the kubeconfig."""
        return f"kind {self.cluster}"

    @property
    def gateway(self) -> str:
        """The machine's address on kind's network."""
        text = run("docker", "network", "inspect", "kind", "--format", "{{json .IPAM.Config}}")
        return next(
            str(entry["Gateway"])
            for entry in json.loads(text)
            if "." in entry.get("Gateway", "")  # not the IPv6 one
        )

    @property
    def node_image(self) -> str:
        """The image of its node: the one that the user names, else the one that was found or made
        here."""
        named = os.environ.get(NODE_IMAGE_VARIABLE)
        made = f"kindest/node:v{kube.kubernetes_version()}"
        return named or (made if pulling.is_here(made) else self.image)

    def check_machine(self) -> None:
        """Refuse systems on which pods do not reach the machine's loopback."""
        if sys.platform != "linux":
            raise MissingRequirement(
                "pods of kind reach this machine's servers on Linux only; use a virtual machine"
                " with Debian 12"
            )

    def is_prepared(self) -> bool:
        """Return whether node image, kind and kubectl are there."""
        return pulling.is_here(self.node_image) and all(_is_found(each) for each in PROGRAMS)

    def prepare(self, progress: Progress) -> None:
        """Have kind, kubectl and the node image.

        Raises:
            MissingRequirement: a program is missing, and cannot be built here.
        """
        for program, entry in PROGRAMS.items():
            if shutil.which(program) is None:
                for made in (*golang.toolchain(), entry()):
                    made.ensure(progress)
        image = self.node_image
        make = functools.partial(node_image.make, f"kindest/node:v{kube.kubernetes_version()}")
        pulling.obtain(image, progress, make)

    def launch(self, record: Record) -> None:
        """Start the node that exists, or make a cluster."""
        if self._status():
            run("docker", "start", self.container)
            return
        self._kind(
            *("create", "cluster", "--name", self.cluster, "--image", self.node_image),
            *("--kubeconfig", self.kubeconfig, "--wait", "180s"),
        )

    def _kind(self, *arguments: str | Path) -> None:
        run(shutil.which("kind") or node_image.kind().path / "kind", *arguments)

    def answers(self) -> bool:
        """Ask for its nodes."""
        try:
            return " Ready " in self.kubectl("get", "nodes", timeout_seconds=5)
        except (OSError, subprocess.SubprocessError):
            return False

    def after_start(self, record: Record) -> None:
        """Let pods reach what is published."""
        processes.kill_members(self.directory)
        self.start_forwarder()

    def end(self) -> None:
        """Kill node and forwarder."""
        processes.kill_members(self.directory)
        super().end()

    def build_image(
        self,
        context: Path,
        name: str,
        progress: Progress,
        dockerfile: Path | None,
        target: str | None = None,
        more: Mapping[str, Path] | None = None,
    ) -> None:
        """Build an image and give it to the cluster. Where the base was made here, buildah builds
        it, because a build by Docker does not see the machine's certificates and pip settings."""
        pulling.obtain(images.BASE_NAME, progress, pulling.ensure_base)
        if pulling.was_made_here(images.BASE_NAME):
            self.load_image(images.build(context, name, progress, dockerfile, target, more))
            return
        file = dockerfile or context / "Dockerfile"
        chosen = contexts.options(target, more)
        run("docker", "build", "--tag", name, "--file", file, *chosen, context)
        self._kind("load", "docker-image", name, "--name", self.cluster)

    def load_image(self, archive: Path) -> None:
        """Give the cluster the images of an archive."""
        self._kind("load", "image-archive", archive, "--name", self.cluster)

    def remove(self) -> None:
        """Delete the cluster."""
        if self._status():
            self._kind("delete", "cluster", "--name", self.cluster)
        super().remove()


NODE_IMAGE_VARIABLE = "POSTROAD_STACK_KIND_IMAGE"
"""Names the image of kind's node."""

PROGRAMS: dict[str, Callable[[], Entry]] = {"kind": node_image.kind, "kubectl": kube.program}
"""What is built where PATH has none."""


def _is_found(program: str) -> bool:
    return shutil.which(program) is not None or PROGRAMS[program]().path.is_dir()


SERVERS: dict[str, type[ManagedServer]] = {
    "rabbitmq": DockerRabbitMQ,
    "cassandra": DockerCassandra,
    "s3": DockerVersityGW,
    "kubernetes": KindCluster,
}
