"""Debian's Postfix, and the load programs that come with it."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from peers.server import APART, DebianPeer, Road, end, inside
from stack import ports
from support.ports import free_port

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
local_header_rewrite_clients =
relayhost = [127.0.0.1]:{road.next_port}
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_recipient_restrictions =
    check_recipient_access inline:{{ {{ {road.refused} = 550 5.1.1 no }} }}
smtpd_client_connection_count_limit = 0
smtpd_client_connection_rate_limit = 0
smtp_destination_concurrency_limit = {road.concurrency}
initial_destination_concurrency = {road.concurrency}
minimal_backoff_time = {road.retry_seconds}s
queue_run_delay = {road.retry_seconds}s
smtpd_recipient_limit = {road.most_recipients}
message_size_limit = {road.limit_bytes}
mailbox_size_limit = 0
smtputf8_enable = yes
smtp_tls_security_level = may
default_process_limit = 200
disable_dns_lookups = yes
smtp_dns_support_level = disabled
maillog_file_prefixes = {base}
maillog_file = {base}/log/maillog
"""

TLS = """\
smtpd_tls_security_level = may
smtpd_tls_cert_file = {peer.chain}
smtpd_tls_key_file = {peer.key}
"""

UNTHROTTLED = "in_flow_delay = 0\n"
"""A setting: accept mail also when deliveries are slower. By default Postfix lets each client wait
a second then. Source: postconf(5)."""


class Postfix(DebianPeer):
    """A Postfix that relays everything; `settings` are further lines of main.cf."""

    name = "Postfix"
    package, minimum = "postfix", "3.7"
    beside = (
        *("libsasl2-modules", "swaks", "libnet-ssleay-perl"),
        *("msmtp", "mutt", "bsd-mailx"),
    )

    def __init__(self, base: Path, road: Road, settings: str = "") -> None:
        super().__init__(base, road)
        self._settings = settings

    def configure(self) -> None:
        for name in ("etc", "spool", "data", "log"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        text = MAIN.format(base=self.base, road=self.road)
        if self.road.certificates is not None:
            text += TLS.format(peer=self)
        (self.base / "etc/main.cf").write_text(text + self._settings)
        prototype = self.root / "usr/share/postfix/master.cf.dist"
        (self.base / "etc/master.cf").write_text(_services(prototype.read_text(), self.port))

    def script(self) -> str:
        return (
            f"chown postfix {self.base}/data; rm -f {self.base}/spool/pid/master.pid;"
            " test -e /etc/postfix/main.cf || echo > /etc/postfix/main.cf;"
            f" exec postfix -c {self.base}/etc start-fg"
        )


def _services(prototype: str, port: int) -> str:
    """Return Debian's services without chroot, SMTP on our port, and the log service."""
    text = re.sub(
        r"^smtp +inet .*$", f"127.0.0.1:{port} inet n - n - - smtpd", prototype, flags=re.M
    )
    text = re.sub(r"^([a-z0-9-]+ +(?:unix|inet|fifo) +\S+ +\S+ +)y ", r"\1n ", text, flags=re.M)
    return text if "postlog" in text else f"{text}postlog unix-dgram n - n - 1 postlogd\n"


def programs() -> Path:
    """Return the folder of the release that has Postfix' programs and swaks. Raises: StackError."""
    postfix = Postfix(Path("/"), Road(0))
    postfix.prepare()
    return postfix.root


class SmtpSink:
    """Postfix' smtp-sink: accepts everything, and counts."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self._process, self.port, self._log = process, port, log

    @classmethod
    async def start(cls, folder: Path) -> SmtpSink:
        port, log = free_port(), folder / "sink.log"
        script = f"exec smtp-sink -u nobody -c 127.0.0.1:{port} 1000"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *map(str, (*APART, *inside(programs(), folder, script))),
                stdout=stream,
                stderr=DEVNULL,
            )
        while not ports.answers(port):
            if process.returncode is not None:
                raise RuntimeError(f"smtp-sink ended with code {process.returncode}")
            await asyncio.sleep(0.05)
        return cls(process, port, log)

    @property
    def received(self) -> int:
        """The number of mails that it accepted."""
        numbers = re.findall(rb"\d+", self._log.read_bytes()[-200:])
        return int(numbers[-1]) if numbers else 0

    async def stop(self) -> None:
        await end(self._process)


def source_command(
    folder: Path, port: int, mails: int, sessions: int, size: int, *, is_kept: bool = False
) -> Sequence[str | Path]:
    """Return the command of smtp-source that sends mails of `size` octets; each in a session of its
    own, unless sessions are kept."""
    kept = "-d " if is_kept else ""
    script = (
        f"exec smtp-source {kept}-s {sessions} -l {size} -m {mails} -f sender@source.example"
        f" -t recipient@sink.example 127.0.0.1:{port}"
    )
    return inside(programs(), folder, script)


async def smtp_source(
    folder: Path, port: int, mails: int, sessions: int, size: int, *, is_kept: bool = False
) -> None:
    """Send mails; returns when the last one was answered with 250. Raises: RuntimeError."""
    command = source_command(folder, port, mails, sessions, size, is_kept=is_kept)
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=PIPE, stderr=PIPE)
    _, error = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"smtp-source: {error.decode()[-500:]}")
