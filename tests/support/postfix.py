"""Debian's Postfix as a peer: its own configuration, queue and ports on loopback, nothing shared
with a Postfix that may run on this machine. Needs root, as Postfix itself does.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

MAIN = """\
compatibility_level = 3.6
queue_directory = {base}/spool
data_directory = {base}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
shlib_directory = /usr/lib/postfix
meta_directory = /etc/postfix
mail_owner = postfix
setgid_group = postdrop
myhostname = peer.example
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
mydestination =
local_recipient_maps =
alias_maps =
relayhost = [127.0.0.1]:{relay}
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
smtpd_client_connection_rate_limit = 0
smtp_destination_concurrency_limit = {concurrency}
initial_destination_concurrency = {concurrency}
default_process_limit = 200
disable_dns_lookups = yes
smtp_dns_support_level = disabled
maillog_file_prefixes = {base}
maillog_file = {base}/log/maillog
"""

UNTHROTTLED = "in_flow_delay = 0\n"
"""A setting: accept mail also where deliveries do not keep pace. By default Postfix lets each
client wait a second then. Source: postconf(5)."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def command(*words: str) -> str:
    """Run a command to its end and return what it printed. Raises: RuntimeError."""
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)
    out, error = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{words[0]}: {error.decode()[-500:]}")
    return out.decode()


class Postfix:
    """A running Postfix that relays everything."""

    def __init__(self, base: Path, port: int) -> None:
        self._base, self.port = base, port

    @classmethod
    async def start(
        cls, base: Path, relay: int, concurrency: int = 20, settings: str = ""
    ) -> Postfix:
        """Start one whose files lie in `base`, which must not be in a private directory; `settings`
        are lines of main.cf."""
        port, etc = free_port(), base / "etc"
        for name in ("etc", "spool", "data", "log"):
            (base / name).mkdir(parents=True, exist_ok=True)
        shutil.chown(base / "data", "postfix")
        for each in (base, base / "spool"):
            each.chmod(0o755)
        text = MAIN.format(base=base, relay=relay, concurrency=concurrency)
        (etc / "main.cf").write_text(text + settings)
        (etc / "master.cf").write_text(_services(port))
        default = Path("/etc/postfix/main.cf")
        if not default.exists():  # without one, `postfix -c` refuses to work
            default.write_text(f"compatibility_level = 3.6\nalternate_config_directories = {etc}\n")
        found = cls(base, port)
        await found.resume()
        return found

    async def resume(self) -> None:
        """Start again what was stopped."""
        await command("postfix", "-c", str(self._base / "etc"), "start")

    def processes(self) -> list[int]:
        """Return the ids of the master and all it started."""
        return family(int((self._base / "spool/pid/master.pid").read_text()))

    async def stop(self) -> None:
        await command("postfix", "-c", str(self._base / "etc"), "stop")


def _services(port: int) -> str:
    """Return Debian's services without chroot, SMTP on our port, and the log service."""
    prototype = Path("/usr/share/postfix/master.cf.dist")
    if not prototype.exists():
        prototype = Path("/etc/postfix/master.cf.proto")
    text = re.sub(
        r"^smtp +inet .*$",
        f"127.0.0.1:{port} inet n - n - - smtpd",
        prototype.read_text(),
        flags=re.M,
    )
    text = re.sub(r"^([a-z0-9-]+ +(?:unix|inet|fifo) +\S+ +\S+ +)y ", r"\1n ", text, flags=re.M)
    return text if "postlog" in text else f"{text}postlog unix-dgram n - n - 1 postlogd\n"


class SmtpSink:
    """Postfix' smtp-sink: takes everything, and counts."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self._process, self.port, self._log = process, port, log

    @classmethod
    async def start(cls, folder: Path) -> SmtpSink:
        port, log = free_port(), folder / "sink.log"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *("smtp-sink", "-u", "nobody", "-c", f"127.0.0.1:{port}", "1000"),
                stdout=stream,
                stderr=DEVNULL,
            )
        await asyncio.sleep(0.5)
        return cls(process, port, log)

    @property
    def received(self) -> int:
        """How many mails it took."""
        numbers = re.findall(rb"\d+", self._log.read_bytes()[-200:])
        return int(numbers[-1]) if numbers else 0

    async def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        await self._process.wait()


async def smtp_source(port: int, mails: int, sessions: int, size: int) -> None:
    """Send mails with Postfix' smtp-source; returns when the last one was answered with 250."""
    await command(
        *("smtp-source", "-s", str(sessions), "-l", str(size), "-m", str(mails)),
        *("-f", "sender@source.example", "-t", "recipient@sink.example", f"127.0.0.1:{port}"),
    )


def family(parent: int) -> list[int]:
    """Return the ids of a process and of its children."""
    found = [parent]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU that processes have used, with their children that ended."""
    total = 0.0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total
