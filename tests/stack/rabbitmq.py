"""RabbitMQ 4 of Debian 13, as processes of our own with the management plugin.

Debian 12 has RabbitMQ 3.10 alone, so the programs come from a folder with the next release.
Debian's commands in /usr/sbin change the user and start an epmd that listens to the whole network.
So the stack calls the scripts below them, with an epmd of our own on loopback.
"""

import contextlib
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from stack import debian, ports, probes
from stack.cache import Entry
from stack.configuration_files import fill, write
from stack.native import NativeServer
from stack.records import Record

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
USER = "postroad"
REGISTRATION_SECONDS = 3.0
"""Longer than RabbitMQ takes to store a new quorum queue (1 second, measured)."""

LISTENERS = """\
listeners.tcp.1 = {{host}}:{{amqp}}
management.tcp.ip = {{host}}
management.tcp.port = {{management}}
"""

CONFIGURATION = """\
default_user = {{user}}
default_pass = {{password}}
default_user_tags.administrator = true
log.console = false
log.file = rabbitmq.log
log.file.level = info
disk_free_limit.absolute = {{disk_free_limit}}
vm_memory_high_watermark.absolute = 2GB
collect_statistics_interval = 1000
"""
"""The statistics interval is short, so that counts in the management API are current in tests."""


class RabbitMQ(NativeServer):
    """One RabbitMQ node on loopback."""

    name = "rabbitmq"
    port_names = ("amqp", "management", "epmd", "distribution")
    debian: ClassVar[Sequence[str]] = debian.REQUIRED
    suite, minimum = "trixie", "4.0"
    """The release of Debian, and the oldest version that it must have."""
    disk_free_limit = "1GB"
    node_name = "postroad@localhost"
    listeners = LISTENERS

    @classmethod
    def release(cls) -> Entry:
        """Return the cache entry of the release of Debian."""
        return debian.installed("rabbitmq-server", cls.suite, cls.minimum)

    def entries(self) -> Sequence[Entry]:
        """Its release."""
        return (self.release(),)

    def check_machine(self) -> None:
        """Refuse where a folder with another Debian cannot be made or entered."""
        debian.check()
        super().check_machine()

    def script(self, name: str, *words: str) -> Sequence[str | Path]:
        """Return the command that runs one of its scripts."""
        root = self.release().path / "root"
        return debian.entering(root, self.visible(), [SCRIPTS / name, *words])

    def visible(self) -> Sequence[Path]:
        """Return the folders of this machine that its processes need."""
        return [self.directory]

    @property
    def logs(self) -> list[Path]:
        """Its output, and its own log."""
        return [self.main_log, self.directory / "log" / "rabbitmq.log"]

    @property
    def endpoint(self) -> str:
        """Where AMQP listens."""
        return f"{self.host}:{self.record.ports['amqp']}"

    def service_ports(self) -> dict[int, int]:
        """Return its ports for pods."""
        chosen = self.record.ports
        return {5672: chosen["amqp"], 15672: chosen["management"]}

    def environment(self) -> dict[str, str]:
        """Return where AMQP and the management API are; user and password are in the addresses."""
        record = self.record
        login = f"{USER}:{quote(record.secrets['password'])}"
        return {
            "POSTROAD_RABBITMQ_URI": f"amqp://{login}@{self.host}:{record.ports['amqp']}/%2F",
            "POSTROAD_RABBITMQ_MANAGEMENT_URL": (
                f"http://{login}@{self.host}:{record.ports['management']}"
            ),
        }

    def launch(self, record: Record) -> None:
        """Start the node; it starts its epmd itself."""
        values = {
            "user": USER,
            "host": self.host,
            "disk_free_limit": self.disk_free_limit,
            **record.ports,
            **record.secrets,
        }
        write(
            self.directory / "rabbitmq.conf",
            fill(self.listeners + CONFIGURATION + self.more(), values),
        )
        write(self.directory / "enabled_plugins", "[rabbitmq_management].\n")
        write(self.directory / "rabbitmq-env.conf", "")
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            write(cookie, record.secrets.get("cookie") or secrets.token_hex(16), mode=0o400)
        self.run(self.script("rabbitmq-server"), self.settings(record))

    def more(self) -> str:
        """Return more lines of configuration."""
        return ""

    def settings(self, record: Record) -> dict[str, str]:
        """Return the environment of the node and of its tools."""
        home, data = self.directory, self.home / "data"
        return {
            "HOME": str(home),
            "ERL_EPMD_ADDRESS": self.host,
            "ERL_EPMD_PORT": str(record.ports["epmd"]),
            "RABBITMQ_HOME": str(SCRIPTS.parent),
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_USE_LONGNAME": "false",
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_MNESIA_DIR": str(data / "node"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(data / "feature_flags"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(home / "rabbitmq.pid"),
            "RABBITMQ_DIST_PORT": str(record.ports["distribution"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{{self.host.replace('.', ',')}}}"
            ),
        }

    def kill(self) -> None:
        """Kill it, but not within a second after the first declaration of a quorum queue.

        RabbitMQ stores the name of a new quorum queue only after that second. A queue whose
        node was killed before has no leader ever after, and every use of it hangs for a minute.
        """
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while self._registers_a_queue() and time.monotonic() < deadline:
            time.sleep(0.05)
        super().kill()

    def _registers_a_queue(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            folder = self.home / "data" / "node" / "quorum" / self.node_name
            newest = max(path.stat().st_mtime for path in folder.glob("*/config"))
            return (folder / "names.dets").stat().st_mtime < newest + 0.1
        return False

    def answers(self) -> bool:
        """Return whether the management API knows our user, and AMQP listens."""
        record = self.record
        return ports.answers(record.ports["amqp"], self.host) and management_answers(
            self.management_url(record), USER, record.secrets["password"]
        )

    def management_url(self, record: Record) -> str:
        """Return where the management API is."""
        return f"http://{self.host}:{record.ports['management']}"


class InstalledRabbitMQ(RabbitMQ):
    """RabbitMQ of this machine's own release: 3.10 in Debian 12."""

    name = "rabbitmq3"
    debian = ("rabbitmq-server",)

    def entries(self) -> Sequence[Entry]:
        """Nothing beside its package."""
        return ()

    def check_machine(self) -> None:
        """Refuse when its package is missing and cannot be installed."""
        NativeServer.check_machine(self)

    def script(self, name: str, *words: str) -> Sequence[str | Path]:
        """Return the script itself."""
        return [SCRIPTS / name, *words]


def management_answers(url: str, user: str, password: str) -> bool:
    """Tell whether the management API at this address knows the user."""
    answer = probes.http_json(f"{url}/api/whoami", probes.basic(user, password))
    return isinstance(answer, dict) and answer.get("name") == user
