"""An S3 server: versitygw with its posix backend, where an object is a file.

It answers 501 to lifecycle rules, ignores encryption headers and never syncs. So tests over it show
the protocol, not durability.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from stack import golang, probes
from stack.cache import Entry
from stack.native import NativeServer
from stack.records import Record

REGION = "us-east-1"
ACCESS_KEY = "postroad"
HEALTH = "/health"
VERSITYGW = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


class S3Server(NativeServer):
    """A server of the S3 protocol on loopback, of any make."""

    port_names = ("s3",)
    variables: ClassVar[str]
    """How the names of its variables begin."""

    @property
    def endpoint(self) -> str:
        """Where S3 listens."""
        return f"http://{self.host}:{self.record.ports['s3']}"

    def service_ports(self) -> dict[int, int]:
        """Return its ports for pods."""
        return {9000: self.record.ports["s3"]}

    def environment(self) -> dict[str, str]:
        """Return endpoint, region and keys."""
        return {
            f"{self.variables}_ENDPOINT": self.endpoint,
            f"{self.variables}_REGION": REGION,
            f"{self.variables}_ACCESS_KEY": ACCESS_KEY,
            f"{self.variables}_SECRET_KEY": self.record.secrets["password"],
        }


class VersityGW(S3Server):
    """versitygw, with bucket versioning."""

    name = "s3"
    variables = "POSTROAD_S3"

    def answers(self) -> bool:
        """Ask for its health."""
        return probes.http_answers(f"{self.endpoint}{HEALTH}")

    def entries(self) -> Sequence[Entry]:
        """Its program, and what builds it."""
        return (*golang.toolchain(), program())

    def more(self) -> Sequence[str | Path]:
        """Return more options."""
        return ()

    def launch(self, record: Record) -> None:
        """Start it."""
        store = self.home
        for name in ("objects", "versions", "users"):
            (store / name).mkdir(exist_ok=True)
        keys = {"ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": record.secrets["password"]}
        self.run(
            [
                *(program().path / "versitygw", "--quiet", "--region", REGION),
                *("--port", f"{self.host}:{record.ports['s3']}", "--health", HEALTH),
                *("--iam-dir", store / "users", *self.more()),
                *("posix", "--versioning-dir", store / "versions"),
                store / "objects",
            ],
            {f"ROOT_{name}": value for name, value in keys.items()},
        )


def program() -> Entry:
    """Return the cache entry of the program."""
    return golang.installed("versitygw", *VERSITYGW, "about 1 minute on idle cores")
