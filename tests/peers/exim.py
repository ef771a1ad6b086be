"""Debian's Exim, the heavy daemon."""

from __future__ import annotations

from peers.server import DebianPeer

CONFIGURATION = """\
primary_hostname = peer.example
spool_directory = {base}/spool
log_file_path = {base}/log/%slog
pid_file_path = {base}/exim.pid
daemon_smtp_ports = {port}
local_interfaces = 127.0.0.1
disable_ipv6
rfc1413_hosts =
smtp_accept_max = 1000
smtp_accept_max_per_host = 0
smtp_accept_queue_per_connection = 0
remote_max_parallel = {road.concurrency}
queue_run_max = 5
recipients_max = {road.most_recipients}
message_size_limit = {road.limit_bytes}
smtputf8_advertise_hosts = *
acl_smtp_rcpt = recipient
acl_smtp_data = accept
keep_environment =
never_users =
{tls}
begin acl
recipient:
  deny recipients = {road.refused}
       message = 5.1.1 no
  accept

begin routers
onward:
  driver = manualroute
  domains = *
  transport = onward
  route_list = * 127.0.0.1 byname
  self = send

begin transports
onward:
  driver = smtp
  port = {road.next_port}
  allow_localhost
  tls_verify_hosts =
  tls_try_verify_hosts =

begin retry
* * F,1h,{road.retry_seconds}s
"""

TLS = """\
tls_advertise_hosts = *
tls_certificate = {peer.chain}
tls_privatekey = {peer.key}
"""


class Exim(DebianPeer):
    """An Exim that relays everything."""

    name = "Exim"
    package, minimum = "exim4-daemon-heavy", "4.96"

    def configure(self) -> None:
        for name in ("etc", "spool", "log"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        tls = TLS.format(peer=self) if self.road.certificates else "tls_advertise_hosts =\n"
        (self.base / "etc/exim4.conf").write_text(
            CONFIGURATION.format(base=self.base, port=self.port, road=self.road, tls=tls)
        )

    def script(self) -> str:
        # From any other place, Exim would drop root because of the configuration; its deliveries
        # need root.
        return (
            f"touch {self.base}/exim.pid; chown -R Debian-exim {self.base}/spool {self.base}/log"
            f" {self.base}/exim.pid $(ls {self.base}/*.pem 2>/dev/null);"
            f" mount --bind {self.base}/etc /etc/exim4;"
            f" exec exim4 -bdf -q{self.road.retry_seconds}s"
        )
