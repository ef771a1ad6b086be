"""A server that the environment names: the stack uses it, and never starts or ends it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Never
from urllib.parse import unquote, urlsplit

from stack import exports, ports
from stack.errors import NotPossible
from stack.progress import Progress
from stack.server import Server, State

DEFAULT_PORTS = {"rabbitmq": 5672, "cassandra": 9042, "s3": 80, "minio": 80, "kubernetes": 443}


class ExistingServer(Server):
    """A server given by environment variables."""

    def __init__(self, name: str, directory: Path, variables: Mapping[str, str]) -> None:
        """Take its kind and the variables that name it."""
        super().__init__(directory)
        self.name = name  # type: ignore[misc]  # one class serves every kind of server
        self._variables = dict(variables)

    @property
    def provider(self) -> str:
        """The environment gave it."""
        return "environment"

    @property
    def endpoint(self) -> str:
        """The address in the environment, without user and password."""
        value = self._variables[exports.LEADING[self.name]]
        return (
            f"{urlsplit(value).scheme}://{urlsplit(value).netloc.rpartition('@')[2]}"
            if ("://" in value)
            else value
        )

    def environment(self) -> dict[str, str]:
        """Return the variables as they were given."""
        return dict(self._variables)

    def state(self) -> State:
        """Tell whether it accepts connections."""
        return State.RUNNING if self.answers() else State.STOPPED

    def answers(self) -> bool:
        """Return whether it accepts connections; of a cluster, whether its kubeconfig exists."""
        if self.name == "kubernetes":
            return Path(self._variables["KUBECONFIG"].split(":")[0]).is_file()
        host, port = self._address()
        return ports.answers(port, host, timeout_seconds=3)

    def _address(self) -> tuple[str, int]:
        value = self._variables[exports.LEADING[self.name]]
        if self.name == "cassandra":
            port = self._variables.get("POSTROAD_CASSANDRA_PORT")
            return value.split(",")[0].strip(), int(port or DEFAULT_PORTS["cassandra"])
        parts = urlsplit(value)
        default = {"amqps": 5671, "https": 443}.get(parts.scheme, DEFAULT_PORTS[self.name])
        return unquote(parts.hostname or "127.0.0.1"), parts.port or default

    def prepare(self, progress: Progress) -> None:
        """Need nothing."""

    def start(self, progress: Progress) -> None:
        """Only wait for it, because only its owner starts it."""
        self.wait_ready(timeout_seconds=30)

    def remove(self) -> None:
        """Leave it alone."""

    def stop(self) -> None:
        """Refuse."""
        self._refuse("stop")

    def kill(self) -> None:
        """Refuse."""
        self._refuse("kill")

    def pause(self) -> None:
        """Refuse."""
        self._refuse("pause")

    def resume(self) -> None:
        """Refuse."""
        self._refuse("resume")

    def _refuse(self, what: str) -> Never:
        raise NotPossible(
            f"cannot {what} {self.name}: the environment names it"
            f" ({exports.LEADING[self.name]}), the stack did not start it"
        )
