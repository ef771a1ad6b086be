"""Debian's Dovecot as an LMTP server: it delivers into mailboxes below its folder."""

from __future__ import annotations

from pathlib import Path

from peers.server import DebianPeer

CONFIGURATION = """\
protocols = lmtp
base_dir = {base}/run
state_dir = {base}/run
listen = 127.0.0.1
log_path = {base}/log
auth_username_chars =
auth_mechanisms = plain login scram-sha-256
auth_failure_delay = 0
mail_location = maildir:~/mail
mail_save_crlf = yes
first_valid_uid = 1
first_valid_gid = 1
mail_uid = mail
mail_gid = mail
postmaster_address = postmaster@peer.example
hostname = peer.example
lmtp_save_to_detail_mailbox = no
ssl = {ssl}
{tls}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {port}
  }}
}}
passdb {{
  driver = passwd-file
  args = {base}/users
}}
userdb {{
  driver = static
  args = uid=mail gid=mail home={base}/mail/%u
}}
"""


class Dovecot(DebianPeer):
    """A Dovecot that keeps mail of the `users` given."""

    name = "Dovecot (LMTP)"
    package, minimum = "dovecot-lmtpd", "1:2.3"
    users: tuple[str, ...] = ()

    def configure(self) -> None:
        for name in ("run", "mail"):
            (self.base / name).mkdir(exist_ok=True)
        tls, is_secured = "", self.road.certificates is not None
        if is_secured:
            tls = f"ssl_cert = <{self.chain}\nssl_key = <{self.key}"
        self.know(self.users)
        (self.base / "dovecot.conf").write_text(
            CONFIGURATION.format(
                base=self.base, port=self.port, tls=tls, ssl="yes" if is_secured else "no"
            )
        )

    def know(self, users: tuple[str, ...]) -> None:
        """Make mailboxes for exactly these users."""
        self.users = users
        lines = "".join(f"{user}:{{PLAIN}}x\n" for user in users)
        (self.base / "users").write_text(lines)
        (self.base / "users").chmod(0o644)

    @property
    def logins(self) -> Path:
        """The socket of its authentication service for clients."""
        return self.base / "run/auth-client"

    def script(self) -> str:
        return f"chown mail:mail {self.base}/mail; exec dovecot -F -c {self.base}/dovecot.conf"

    def mails(self) -> dict[str, list[bytes]]:
        """Return the mails in each mailbox."""
        found: dict[str, list[bytes]] = {}
        for path in sorted((self.base / "mail").glob("*/mail/*/*")):
            if path.is_file() and path.parent.name in ("new", "cur"):
                found.setdefault(_user(path), []).append(path.read_bytes())
        return found


def _user(path: Path) -> str:
    return path.parents[2].name
