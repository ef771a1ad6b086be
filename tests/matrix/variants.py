"""Servers that the default stack does not run: other releases, and ones that offer TLS only."""

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from stack import kube, ports
from stack.cache import Entry
from stack.cassandra import CONFIGURATION, Cassandra, jars
from stack.control_plane import ControlPlane
from stack.cql import Connection
from stack.native import NativeServer
from stack.rabbitmq import USER, RabbitMQ
from stack.records import Record
from stack.s3 import VersityGW
from stack.server import ManagedServer
from support.certificates import Certificates

HELM4 = "v4.3.1"
STORE_PASSWORD = "changeit"
"""The password of the key store, which must have one; it lies beside the key."""


class NewestRabbitMQ(RabbitMQ):
    """RabbitMQ of Debian's testing release."""

    name = "rabbitmq4.3"
    suite, minimum = "forky", "4.3"


MEASURED = (
    *("java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
    *("java.math", "java.net", "java.nio"),
)


class Cassandra41(Cassandra):
    """Cassandra 4.1 on Java 17, for which it was not made: it measures objects by an agent, because
    Java 17 hides the fields of lambdas from it, which needs more packages open."""

    name = "cassandra4.1"
    version = "4.1.10"
    configuration = CONFIGURATION.replace("commitlog_disk_access_mode: legacy\n", "")

    def options(self) -> list[str]:
        agent = next(jars(self.version).path.glob("jamm-*.jar"))
        opened = [f"--add-opens java.base/{name}=ALL-UNNAMED" for name in MEASURED]
        return [*super().options(), f"-javaagent:{agent}", *opened]


class Encrypted(NativeServer):
    """The common part of servers that offer TLS only: certificates for `localhost`."""

    @property
    def certificates(self) -> Certificates:
        """The files of the server and of the authority that vouches for it, made once."""
        folder = self.directory / "tls"
        if not folder.exists():
            folder.mkdir()
            return Certificates.make(folder)
        return Certificates(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")


TLS_LISTENERS = """\
listeners.tcp = none
listeners.ssl.1 = {{host}}:{{amqp}}
ssl_options.cacertfile = {{authority}}
ssl_options.certfile = {{chain}}
ssl_options.keyfile = {{key}}
ssl_options.verify = verify_none
ssl_options.fail_if_no_peer_cert = false
management.ssl.ip = {{host}}
management.ssl.port = {{management}}
management.ssl.cacertfile = {{authority}}
management.ssl.certfile = {{chain}}
management.ssl.keyfile = {{key}}
"""


class EncryptedRabbitMQ(Encrypted, RabbitMQ):
    """RabbitMQ with amqps and https only."""

    name = "rabbitmq-tls"

    def launch(self, record: Record) -> None:
        made, text = self.certificates, TLS_LISTENERS
        for name in ("authority", "chain", "key"):
            text = text.replace("{{" + name + "}}", str(getattr(made, name)))
        self.listeners = text
        super().launch(record)

    def answers(self) -> bool:
        return all(ports.answers(self.record.ports[name]) for name in ("amqp", "management"))

    def environment(self) -> dict[str, str]:
        plain, port = super().environment(), self.record.ports["amqp"]
        uri, api = plain["POSTROAD_RABBITMQ_URI"], plain["POSTROAD_RABBITMQ_MANAGEMENT_URL"]
        assert USER in uri
        assert str(port) in uri
        return {
            "POSTROAD_RABBITMQ_URI": _at_localhost(uri).replace("amqp:", "amqps:"),
            "POSTROAD_RABBITMQ_MANAGEMENT_URL": _at_localhost(api).replace("http:", "https:"),
        }


TLS_CQL = """\
client_encryption_options:
  enabled: true
  optional: false
  keystore: {{store}}
  keystore_password: {{password}}
  store_type: PKCS12
"""


class EncryptedCassandra(Encrypted, Cassandra):
    """Cassandra that encrypts all clients."""

    name = "cassandra-tls"

    def more(self) -> str:
        made, store = self.certificates, self.directory / "tls" / "server.p12"
        command = f"openssl pkcs12 -export -in {made.chain} -inkey {made.key} -name server"
        subprocess.run(
            [*command.split(), "-out", str(store), "-passout", f"pass:{STORE_PASSWORD}"],
            check=True,
            capture_output=True,
        )
        return TLS_CQL.replace("{{store}}", str(store)).replace("{{password}}", STORE_PASSWORD)

    def login(self, user: str, password: str, timeout_seconds: float = 3) -> Connection:
        context = ssl.create_default_context(cafile=self.certificates.authority)
        context.check_hostname = False
        cql = self.record.ports["cql"]
        return Connection(self.host, cql, user, password, timeout_seconds, context)

    def environment(self) -> dict[str, str]:
        return super().environment() | {"POSTROAD_CASSANDRA_TLS": "verify-ca"}


class EncryptedS3(Encrypted, VersityGW):
    """versitygw with https only."""

    name = "s3-tls"

    def more(self) -> Sequence[str | Path]:
        return ("--cert", self.certificates.chain, "--key", self.certificates.key)

    def answers(self) -> bool:
        return ports.answers(self.record.ports["s3"])

    @property
    def endpoint(self) -> str:
        return _at_localhost(super().endpoint).replace("http:", "https:")


class OtherKubernetes(ControlPlane):
    """API server and controllers of another release, beside the stack's own etcd."""

    version: ClassVar[str]

    def entries(self) -> Sequence[Entry]:
        return (*super().entries(), kube.components(self.version))

    def begin(self, name: str, command: list[str]) -> None:
        component = command[1]
        if component in kube.COMPONENTS:
            command = [str(kube.components(self.version).path / component), *command[2:]]
        super().begin(name, command)

    def environment(self) -> dict[str, str]:
        """Return its kubeconfig, and the folder of a stack whose API server it is: tests ask their
        stack for `apiserver`."""
        return super().environment() | {"POSTROAD_STACK_DIR": str(self.directory.parent)}


class Kubernetes131(OtherKubernetes):
    """Kubernetes 1.31: the newest release of which every module could be had, as of the others."""

    version = "1.31.13"


class Kubernetes132(OtherKubernetes):
    """Kubernetes 1.32."""

    version = "1.32.9"


class Kubernetes133(OtherKubernetes):
    """Kubernetes 1.33."""

    version = "1.33.13"


class Kubernetes135(OtherKubernetes):
    """Kubernetes 1.35, whose kubelet would refuse a machine with cgroup v1."""

    version = "1.35.4"


KUBERNETES = (Kubernetes131, Kubernetes132, Kubernetes133, Kubernetes135)


def _at_localhost(uri: str) -> str:
    return uri.replace("127.0.0.1", "localhost")


def authorities(servers: Sequence[ManagedServer], folder: Path) -> Path:
    """Return a file of the authorities of all servers that offer TLS."""
    file = folder / "ca.crt"
    encrypted = [each for each in servers if isinstance(each, Encrypted)]
    file.write_text("".join(each.certificates.authority.read_text() for each in encrypted))
    return file
