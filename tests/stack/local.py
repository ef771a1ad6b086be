"""The stack as a whole: its servers, the provider of each, and operations on several at once.

A server has one of three providers: the environment names it, or a Docker engine answers, or this
machine runs it itself. The stack chooses once and keeps the choice until `down`.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from stack import cache, docker, exports, folders, images, locks, records, tools
from stack.cassandra import Cassandra
from stack.cluster import Cluster
from stack.control_plane import ControlPlane
from stack.errors import MissingRequirement, NotPossible, StackError
from stack.existing import ExistingServer
from stack.kind import KindCluster
from stack.kubernetes import Kubernetes
from stack.minio import MinIO
from stack.progress import Progress
from stack.rabbitmq import RabbitMQ
from stack.s3 import VersityGW
from stack.server import ManagedServer, Server, State

NATIVE: Mapping[str, Callable[[Path], ManagedServer]] = {
    "rabbitmq": RabbitMQ,
    "cassandra": Cassandra,
    "s3": VersityGW,
    "minio": MinIO,
    "kubernetes": Kubernetes,
    "apiserver": ControlPlane,
}

CONTAINERS: Mapping[str, Callable[[Path], ManagedServer]] = {
    "rabbitmq": docker.DockerRabbitMQ,
    "cassandra": docker.DockerCassandra,
    "s3": docker.DockerVersityGW,
    "kubernetes": KindCluster,
}

PROVIDER_VARIABLE = "POSTROAD_STACK_PROVIDER"
"""The value `native` forbids to use a Docker engine that answers."""

DEFAULT = ("rabbitmq", "cassandra", "s3", "kubernetes")
"""The servers that `up` starts when it names none."""

ORDER = ("apiserver", *DEFAULT, "minio")
"""The order in which servers export variables: KUBECONFIG is the cluster's when both the cluster
and the API server alone run."""


class Stack:
    """The servers of one folder. Making one starts nothing."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Take the stack's folder (the user's default when None), and the variables that name
        servers which the stack did not start."""
        self.directory = directory or folders.state_directory()
        self.progress = progress or Progress()
        self._environment = os.environ if environment is None else environment

    def server(self, name: str) -> Server:
        """Return a server by name, from the provider that has it.

        Raises:
            StackError: there is no server of that name.
        """
        if name not in NATIVE:
            raise StackError(f"no server is called {name}; there are {', '.join(NATIVE)}")
        given = exports.given(name, self._environment)
        if given:
            return ExistingServer(name, self.directory / name, given)
        return self._own(name)

    def _own(self, name: str) -> ManagedServer:
        directory = self.directory / name
        record = records.load(directory / records.FILE_NAME)
        provider = record.provider if record else self._provider(name)
        makers = CONTAINERS if provider == docker.PROVIDER else NATIVE
        return makers[name](directory)

    def _provider(self, name: str) -> str:
        wanted = self._environment.get(PROVIDER_VARIABLE)
        if name not in CONTAINERS or wanted == "native":
            return "native"
        return docker.PROVIDER if docker.engine_answers() else "native"

    def servers(self) -> list[Server]:
        """Return all servers, up or not."""
        return [self.server(name) for name in NATIVE]

    @property
    def rabbitmq(self) -> Server:
        """The message broker."""
        return self.server("rabbitmq")

    @property
    def cassandra(self) -> Server:
        """The database."""
        return self.server("cassandra")

    @property
    def s3(self) -> Server:
        """The object store."""
        return self.server("s3")

    @property
    def kubernetes(self) -> Cluster:
        """The cluster, when this stack runs it.

        Raises:
            NotPossible: the environment names it, and another program runs it.
        """
        server = self.server("kubernetes")
        if not isinstance(server, Cluster):
            raise NotPossible(
                "KUBECONFIG names a cluster that the stack did not start; for the stack's own, run"
                " the command without it: env -u KUBECONFIG COMMAND"
            )
        return server

    def publish(self, namespace: str) -> None:
        """Let pods of a namespace reach the servers by their names and usual ports, paused and slow
        ones included."""
        for server in self._started(NATIVE):
            if ports := server.service_ports():
                self.kubernetes.publish_ports(namespace, server.name, ports)

    def image(
        self,
        context: Path,
        name: str,
        dockerfile: Path | None = None,
        target: str | None = None,
        more: Mapping[str, Path] | None = None,
    ) -> None:
        """Build an image, unless its context is unchanged, and give it to the cluster. `target`: a
        stage of the Dockerfile; `more`: further contexts by their names."""
        cluster = self.kubernetes
        if isinstance(cluster, KindCluster):
            with self.progress.step(f"image {name}: build and load"):
                cluster.build_image(context, name, self.progress, dockerfile, target, more)
            return
        archive = images.build(context, name, self.progress, dockerfile, target, more)
        with self.progress.step(f"image {name}: load"):
            cluster.load_image(archive)

    def missing_of_image(self, context: Path, name: str) -> list[str]:
        """Return what has to be made before the cluster can be given an image."""
        return images.missing(context, name)

    def check(self, names: Iterable[str] = ()) -> None:
        """Look for what no preparation can give to these servers.

        Raises:
            MissingRequirement: some cannot run here; the message names all that they lack.
        """
        refusals: list[str] = []
        for server in self._parts(names)[0]:
            try:
                server.check_machine()
            except MissingRequirement as error:
                refusals.append(str(error))
        if refusals:
            raise MissingRequirement("\n".join(dict.fromkeys(refusals)))

    def prepare(self, names: Iterable[str] = ()) -> None:
        """Build, download and install servers and tools, several at once."""
        self.check(names)
        servers, preparations = self._parts(names)
        preparations += [functools.partial(server.prepare, self.progress) for server in servers]
        _side_by_side(preparations)

    def up(self, names: Iterable[str] = ()) -> None:
        """Have the servers running and the tools built, at once; quick and harmless when all is
        there.

        Raises:
            StackError: one did not start; the others were still waited for.
        """
        self.check(names)
        servers, preparations = self._parts(names)
        _side_by_side([functools.partial(self._up, server) for server in servers] + preparations)

    def _parts(self, names: Iterable[str]) -> tuple[list[Server], list[Callable[[], None]]]:
        """Return the servers of these names, and the preparations of the tools among them."""
        names = tuple(names) or DEFAULT
        servers = [self.server(name) for name in names if name not in tools.TOOLS]
        chosen = [name for name in names if name in tools.TOOLS]
        return servers, [functools.partial(tools.prepare, name, self.progress) for name in chosen]

    def _up(self, server: Server) -> None:
        if server.state() is State.RUNNING:
            return
        server.prepare(self.progress)
        with self._held(server.name):
            server.start(self.progress)

    def down(self, names: Iterable[str] = ()) -> None:
        """End servers and remove their data; leave servers of the environment alone."""
        for name in tuple(names) or tuple(reversed(list(NATIVE))):
            # Also without a folder, because a start that was cut short may have left only
            # processes.
            with self._held(name):
                self._own(name).remove()
                self._lock(name).unlink()
        for folder in (self.directory / "locks", self.directory):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def running(self, names: Iterable[str] = ()) -> list[Server]:
        """Return the servers that answer."""
        servers = [self.server(name) for name in tuple(names) or NATIVE]
        return [server for server in servers if server.state() is State.RUNNING]

    def environments(self, names: Iterable[str] = ()) -> dict[str, dict[str, str]]:
        """Return the variables of each server that runs, paused and slow ones included."""
        started = self._started(tuple(names) or ORDER)
        return {server.name: server.environment() for server in started}

    def _started(self, names: Iterable[str]) -> list[Server]:
        """Return the servers that have processes."""
        servers = [self.server(name) for name in names]
        return [each for each in servers if each.state() not in (State.ABSENT, State.STOPPED)]

    def environment(self, names: Iterable[str] = ()) -> dict[str, str]:
        """Return the variables of all servers that run (or of those named)."""
        merged: dict[str, str] = {}
        for variables in self.environments(names).values():
            merged.update(variables)
        return merged

    def _lock(self, name: str) -> Path:
        return self.directory / "locks" / name

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[None]:
        waiting = f"{name}: another process is at it, waiting"
        with locks.held(self._lock(name), lambda: self.progress.say(waiting)):
            yield


def open_stack(*names: str, directory: Path | None = None) -> Stack:
    """Return a stack in which these servers run (all default ones when none is named).

    Starts the servers that do not run. A stack that runs already is left as it is, and is not ended
    later.
    """
    stack = Stack(directory)
    stack.up(names)
    return stack


def _side_by_side(tasks: list[Callable[[], None]]) -> None:
    """Run tasks in threads; raise the first error once all have ended, or stop all on Ctrl-C."""
    errors: list[Exception] = []

    def attempt(task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # raised in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(task,), daemon=True) for task in tasks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        cache.interrupt()
        raise
    if len(errors) > 1 and all(isinstance(error, StackError) for error in errors):
        raise StackError("\n".join(str(error) for error in errors))
    if errors:
        raise errors[0]
