"""Debian's milters, each configured for what a test looks at."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from peers.server import SUITE, DebianPeer, Road
from stack import debian
from stack.cache import Entry

BESIDE = ("opendkim", "opendkim-tools", "opendmarc", "clamav-milter", "clamav-daemon")


class Milter(DebianPeer):
    """A milter on 127.0.0.1; all of them are in one folder of Debian."""

    minimum = "3"
    shown: ClassVar[str]
    """The package whose version it has."""

    def __init__(self, base: Path, road: Road | None = None) -> None:
        super().__init__(base, road or Road(0))

    @property
    def address(self) -> str:
        return f"inet:127.0.0.1:{self.port}"

    def entries(self) -> Sequence[Entry]:
        return (debian.installed("rspamd", SUITE, self.minimum, *BESIDE),)

    def version(self) -> str:
        return debian.version(self.root, self.shown)

    @abstractmethod
    def configuration(self) -> dict[str, str]:
        """Return its files below `base`."""

    def configure(self) -> None:
        for name, text in self.configuration().items():
            file = self.base / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    async def _greets(self) -> None:
        """Wait until it listens: the intake's side begins."""
        assert self._process is not None
        while self._process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
        raise RuntimeError("it ended")


class Rspamd(Milter):
    """It refuses the test pattern of spam (GTUBE), and adds X-Spam-Status to the rest."""

    name = "rspamd"
    shown = package = "rspamd"

    def configuration(self) -> dict[str, str]:
        return {
            "local.d/worker-proxy.inc": (
                f'bind_socket = "127.0.0.1:{self.port}"; milter = yes; timeout = 60s; count = 1;\n'
                'upstream "local" { default = yes; self_scan = yes; }\n'
            ),
            "local.d/worker-normal.inc": "enabled = false;\n",
            "local.d/worker-controller.inc": f'bind_socket = "{self.base}/controller.sock";\n',
            "local.d/milter_headers.conf": 'use = ["x-spam-status"]; skip_local = false;\n',
            "local.d/logging.inc": 'type = "console";\n',
            "local.d/options.inc": 'dns { nameserver = ["127.0.0.1:9"]; timeout = 0.1s; }\n',
        }

    def script(self) -> str:
        variables = ("LOCAL_CONFDIR=.", "DBDIR=db", "RUNDIR=run", "LOGDIR=log")
        given = " ".join(f"--var={each.replace('=', f'={self.base}/')}" for each in variables)
        return (
            f"cd {self.base}; mkdir -p db run log; chown -R _rspamd .; "
            f"exec rspamd -f -u _rspamd -g _rspamd -c /etc/rspamd/rspamd.conf {given}"
        )


class OpenDkim(Milter):
    """It signs mail of `signed.example`, or verifies what it signs, by one key in PEM."""

    name = "opendkim"
    shown = package = "opendkim"
    private: str
    public: str
    signs = True

    def configuration(self) -> dict[str, str]:
        signing = (f"KeyFile {self.base}/key.private", "Domain signed.example", "Selector test")
        lines = [
            f"Socket inet:{self.port}@127.0.0.1",
            *("Syslog no", "Background no", "RequireSafeKeys no", "UserID root"),
            *("Canonicalization simple/simple", f"TestPublicKeys {self.base}/public"),
            *(signing if self.signs else ()),
            f"Mode {'s' if self.signs else 'v'}",
            f"InternalHosts {'127.0.0.1' if self.signs else '192.0.2.1'}",
        ]
        key = "".join(self.public.splitlines()[1:-1])
        return {
            "opendkim.conf": "\n".join(lines) + "\n",
            "key.private": self.private,
            "public": f"test._domainkey.signed.example v=DKIM1; k=rsa; p={key}\n",
        }

    def script(self) -> str:
        return f"exec opendkim -f -x {self.base}/opendkim.conf"


class OpenDmarc(Milter):
    """It refuses what a domain's policy refuses."""

    name = "opendmarc"
    shown = package = "opendmarc"
    nameserver: str

    def configuration(self) -> dict[str, str]:
        lines = [
            f"Socket inet:{self.port}@127.0.0.1",
            *("Syslog false", "Background false", "RejectFailures true", "UserID root"),
            *("SPFSelfValidate true", "IgnoreHosts /dev/null", "RequiredHeaders false"),
            *("AuthservID intake.example", "TrustedAuthservIDs intake.example"),
        ]
        return {
            "opendmarc.conf": "\n".join(lines) + "\n",
            "resolv.conf": f"nameserver {self.nameserver}\noptions timeout:2 attempts:2\n",
        }

    def script(self) -> str:
        return (
            f"mount --bind {self.base}/resolv.conf /etc/resolv.conf; "
            f"exec opendmarc -f -c {self.base}/opendmarc.conf"
        )


class ClamAv(Milter):
    """clamd with signatures of a test, and its milter, which refuses or quarantines."""

    name = "clamav-milter"
    shown = package = "clamav-milter"
    signatures: str
    on_infected = "Reject"

    def configuration(self) -> dict[str, str]:
        clamd = f"{self.base}/clamd.sock"
        return {
            "database/test.hdb": self.signatures,
            "clamd.conf": (
                f"LocalSocket {clamd}\nDatabaseDirectory {self.base}/database\nForeground yes\n"
                "User root\n"
            ),
            "milter.conf": (
                f"MilterSocket inet:{self.port}@127.0.0.1\nClamdSocket unix:{clamd}\n"
                f"OnInfected {self.on_infected}\nAddHeader Replace\nForeground yes\nUser root\n"
                f"RejectMsg virus %v\nLogFile {self.base}/milter.log\n"
            ),
        }

    def script(self) -> str:
        return (
            f"clamd -F -c {self.base}/clamd.conf & "
            f"until [ -S {self.base}/clamd.sock ]; do sleep 0.1; done; "
            f"exec clamav-milter -c {self.base}/milter.conf"
        )
