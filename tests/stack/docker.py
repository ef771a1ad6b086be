"""The same servers as containers, where a Docker engine answers.

Images are pulled; where they cannot be, equal ones are made (`pulling`), and the stack's output has
which.
"""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from stack import folders, pulling, rabbitmq, s3
from stack.cassandra import Cassandra
from stack.errors import StackError
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

    image = "rabbitmq:4-management"
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
