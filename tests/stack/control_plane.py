"""An API server alone on loopback (etcd, API server, controllers), for tests of controllers.

It needs no root and no containers, and starts in about four seconds. It never runs pods. Several
run side by side, each in its own folder.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from stack import golang, kube, processes
from stack.cache import Entry
from stack.native import NativeServer
from stack.records import Record


class ControlPlane(NativeServer):
    """etcd, kube-apiserver and kube-controller-manager."""

    name = "apiserver"
    port_names = ("api", "etcd")
    debian = ("openssl",)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "credentials" / "admin.kubeconfig"

    @property
    def kubectl(self) -> kube.Kubectl:
        """Run kubectl against it."""
        return kube.Kubectl(self.kubeconfig)

    @property
    def endpoint(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self.record.ports['api']}"

    @property
    def logs(self) -> list[Path]:
        """A log for each component."""
        return [self.directory / f"{name}.log" for name in ("etcd", "apiserver", "controllers")]

    @property
    def main_log(self) -> Path:
        """The API server's log."""
        return self.directory / "apiserver.log"

    def environment(self) -> dict[str, str]:
        """Return where its kubeconfig is."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def entries(self) -> Sequence[Entry]:
        """Kubernetes' program, and what builds it."""
        return (*golang.toolchain(), kube.program())

    def secrets(self) -> dict[str, str]:
        """Return the users' tokens."""
        return kube.new_secrets()

    def launch(self, record: Record) -> None:
        """Start the three; each waits for those it needs."""
        credentials = self.directory / "credentials"
        kube.write_credentials(credentials, record, self.endpoint)
        program = str(kube.program().path / "kube")
        ports = record.ports
        self.begin("etcd", kube.etcd(program, f"{self.directory}/etcd", ports["etcd"]))
        server = kube.api_server(
            program, str(credentials), "127.0.0.1", ports["api"], ports["etcd"]
        )
        # Loopback cannot be an endpoint of the `kubernetes` service.
        self.begin("apiserver", [*server, "--endpoint-reconciler-type=none"])
        self.wait_until(lambda: self._asked(kube.Api.is_ready), self.ready_seconds)
        # Started earlier, they would give up after ten seconds without an API server.
        self.begin("controllers", kube.controllers(program, str(credentials)))

    def begin(self, name: str, command: list[str]) -> None:
        """Start a component, its output going to a log of this name."""
        processes.start(self.directory, command, self.directory / f"{name}.log")

    def answers(self) -> bool:
        """Return whether it is ready and namespaces get their service accounts."""
        return self._asked(kube.Api.serves)

    def _asked(self, question: Callable[[kube.Api], bool]) -> bool:
        record = self.record
        authority = self.directory / "credentials" / "apiserver.crt"
        address = ("127.0.0.1", record.ports["api"])
        return kube.asked(address, authority, record.secrets["admin"], question)
