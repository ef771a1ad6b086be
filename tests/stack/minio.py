"""A second S3 server: MinIO, which has what versitygw lacks (rules that expire, synced writes).

Only tests run it, as a program of its own; nothing of it is part of postroad.
"""

from collections.abc import Sequence

from stack import golang, probes, processes
from stack.cache import Entry
from stack.records import Record
from stack.s3 import ACCESS_KEY, S3Server

MINIO = ("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")


class MinIO(S3Server):
    """MinIO with one drive; it never asks the outside for anything."""

    name = "minio"
    variables = "POSTROAD_MINIO"

    def answers(self) -> bool:
        """Ask for its health."""
        return probes.http_answers(f"{self.endpoint}/minio/health/ready")

    def entries(self) -> Sequence[Entry]:
        """Its program, and what builds it."""
        return (*golang.toolchain(), self.program())

    def program(self) -> Entry:
        """Return the cache entry of the program."""
        return golang.installed("minio", *MINIO, "about 7 minutes of CPU, once")

    def launch(self, record: Record) -> None:
        """Start it."""
        drive = self.directory / "drive"
        drive.mkdir(exist_ok=True)
        switched_off = ("BROWSER", "UPDATE", "CALLHOME_ENABLE")
        processes.start(
            self.directory,
            [
                *(self.program().path / "minio", "server", "--quiet"),
                *("--address", f"127.0.0.1:{record.ports['s3']}"),
                *("--certs-dir", self.directory / "certificates"),
                drive,
            ],
            self.main_log,
            environment={
                "MINIO_ROOT_USER": ACCESS_KEY,
                "MINIO_ROOT_PASSWORD": record.secrets["password"],
                **{f"MINIO_{name}": "off" for name in switched_off},
            },
        )
