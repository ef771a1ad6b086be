"""Debian's OpenSMTPD."""

from __future__ import annotations

from peers.server import DebianPeer

CONFIGURATION = """\
{pki}
smtp max-message-size "{road.limit_bytes}"
smtp limit max-rcpt {road.most_recipients}
listen on 127.0.0.1 port {port} hostname peer.example {tls}
action "onward" relay host "smtp://127.0.0.1:{road.next_port}" helo peer.example
match from any for rcpt-to "{road.refused}" reject
match from any for any action "onward"
"""


class OpenSmtpd(DebianPeer):
    """An OpenSMTPD that relays everything."""

    name = "OpenSMTPD"
    package, minimum = "opensmtpd", "6.8"

    def configure(self) -> None:
        for name in ("spool", "run"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
            (self.base / name).chmod(0o711)
        pki = tls = ""
        if self.road.certificates is not None:
            pki = f'pki peer cert "{self.chain}"\npki peer key "{self.key}"'
            tls = "tls pki peer"
        (self.base / "smtpd.conf").write_text(
            CONFIGURATION.format(port=self.port, road=self.road, pki=pki, tls=tls)
        )

    def script(self) -> str:
        return (
            f"mkdir -p /var/spool/smtpd; mount --bind {self.base}/spool /var/spool/smtpd;"
            f" mount --bind {self.base}/run /run; exec smtpd -d -f {self.base}/smtpd.conf"
        )
