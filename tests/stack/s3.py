"""An S3 server: versitygw with its posix backend, where an object is a file.

It answers 501 to lifecycle rules, ignores encryption headers and never syncs: it shows the
protocol, not durability.
"""

from collections.abc import Sequence

from stack import golang, probes, processes
from stack.cache import Entry
from stack.native import NativeServer
from stack.records import Record

REGION = "us-east-1"
ACCESS_KEY = "postroad"
HEALTH = "/health"
VERSITYGW = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


class VersityGW(NativeServer):
    """versitygw on loopback, with bucket versioning."""

    name = "s3"
    port_names = ("s3",)

    @property
    def endpoint(self) -> str:
        """Where S3 listens."""
        return f"http://127.0.0.1:{self.record.ports['s3']}"

    def service_ports(self) -> dict[int, int]:
        """Return its ports for pods."""
        return {9000: self.record.ports["s3"]}

    def environment(self) -> dict[str, str]:
        """Return endpoint, region and keys."""
        return {
            "POSTROAD_S3_ENDPOINT": self.endpoint,
            "POSTROAD_S3_REGION": REGION,
            "POSTROAD_S3_ACCESS_KEY": ACCESS_KEY,
            "POSTROAD_S3_SECRET_KEY": self.record.secrets["password"],
        }

    def answers(self) -> bool:
        """Ask for its health."""
        return probes.http_answers(f"{self.endpoint}{HEALTH}")

    def entries(self) -> Sequence[Entry]:
        """Its program, and what builds it."""
        return (*golang.toolchain(), self.program())

    def program(self) -> Entry:
        """Return the cache entry of the program."""
        return golang.installed("versitygw", *VERSITYGW, "about 1 minute on idle cores")

    def launch(self, record: Record) -> None:
        """Start it."""
        for name in ("objects", "versions", "users"):
            (self.directory / name).mkdir(exist_ok=True)
        keys = {"ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": record.secrets["password"]}
        processes.start(
            self.directory,
            [
                *(self.program().path / "versitygw", "--quiet", "--region", REGION),
                *("--port", f"127.0.0.1:{record.ports['s3']}", "--health", HEALTH),
                *("--iam-dir", self.directory / "users"),
                *("posix", "--versioning-dir", self.directory / "versions"),
                self.directory / "objects",
            ],
            self.main_log,
            environment={f"ROOT_{name}": value for name, value in keys.items()},
        )
