"""maddy, built by Go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peers.server import Peer
from stack import golang
from stack.cache import Entry

MODULE, VERSION = "github.com/foxcpp/maddy", "v0.8.1"

CONFIGURATION = """\
state_dir {base}/state
runtime_dir {base}/run
hostname peer.example
tls {tls}
log stderr

smtp tcp://127.0.0.1:{port} {{
    max_message_size {limit}B
    max_recipients {road.most_recipients}
    default_source {{
        destination {road.refused} {{
            reject 550 5.1.1 "no"
        }}
        default_destination {{
            deliver_to &waiting
        }}
    }}
}}

target.queue waiting {{
    target &onward
    max_parallelism {road.concurrency}
}}

target.smtp onward {{
    targets tcp://localhost:{road.next_port}
    starttls {starttls}
}}
"""


class Maddy(Peer):
    """A maddy that relays everything."""

    name = "maddy"

    def entries(self) -> Sequence[Entry]:
        return (*golang.toolchain(), self._program())

    def _program(self) -> Entry:
        return golang.installed_from_inside(
            "maddy", MODULE, "./cmd/maddy", VERSION, "about a minute of CPU, once"
        )

    def version(self) -> str:
        return VERSION.removeprefix("v")

    def configure(self) -> None:
        made = self.road.certificates
        text = CONFIGURATION.format(
            base=self.base,
            port=self.port,
            road=self.road,
            limit=self.road.limit_bytes,
            starttls="yes" if self.road.secures else "no",
            tls="off" if made is None else f"file {self.chain} {self.key}",
        )
        (self.base / "maddy.conf").write_text(text)

    def command(self) -> Sequence[str | Path]:
        program = self._program().path / "maddy"
        trust = f"SSL_CERT_FILE={self.authority}"  # the setting tls_client ends 0.8.1 in a panic
        return ("env", trust, program, "-config", self.base / "maddy.conf", "run")
