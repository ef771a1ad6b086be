"""Haraka, installed by npm."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers.server import Peer
from stack import cache
from stack.cache import Entry
from stack.errors import MissingRequirement

VERSION, OLDEST_NODE = "3.3.4", 20

ONWARD = """\
'use strict';
exports.register = function () {{
  this.register_hook('rcpt', 'take');
  this.register_hook('get_mx', 'onward');
}};
exports.take = function (next, connection, params) {{
  if (params[0].address.toLowerCase() === '{road.refused}') return next(DENY, 'no');
  connection.relaying = true;
  next(OK);
}};
exports.onward = (next) => {{
  next(OK, [{{ priority: 0, exchange: '127.0.0.1', port: {road.next_port} }}]);
}};
"""
SETTINGS = {
    "smtp.ini": "listen=127.0.0.1:{port}\nnodes={nodes}\n",
    "outbound.ini": (
        "concurrency_max={road.concurrency}\nlocal_mx_ok=true\n"
        "temp_fail_intervals={road.retry_seconds}s*100\n"
    ),
    "me": "peer.example\n",
    "log.ini": "[main]\nlevel=WARN\n",
}


class Haraka(Peer):
    """A Haraka that queues and relays all mail, in as many processes as `nodes`."""

    name = "Haraka"
    nodes = 1
    logins: Mapping[str, str] = {}
    """Passwords by user; where there are some, it offers AUTH PLAIN."""

    def entries(self) -> Sequence[Entry]:
        return (_program(),)

    def version(self) -> str:
        return VERSION

    def configure(self) -> None:
        for name in ("config", "plugins", "queue"):
            (self.base / name).mkdir(exist_ok=True)
        config = self.base / "config"
        for name, text in SETTINGS.items():
            filled = text.format(port=self.port, road=self.road, nodes=self.nodes)
            (config / name).write_text(filled)
        usual = (_program().path / "node_modules/Haraka/config/connection.ini").read_text()
        limited = re.sub(r"^bytes=.*$", f"bytes={self.road.limit_bytes}", usual, flags=re.M)
        (config / "connection.ini").write_text(limited)
        plugins = ["onward"]
        if self.road.certificates is not None:
            plugins.insert(0, "tls")
            _write_parameters(config / "dhparams.pem")
            (config / "tls.ini").write_text(f"key={self.key}\ncert={self.chain}\n")
        if self.logins:
            plugins.insert(-1, "auth/flat_file")
            users = "".join(f"{user}={password}\n" for user, password in self.logins.items())
            text = f"[core]\nmethods=PLAIN\nconstrain_sender=false\n[users]\n{users}"
            (config / "auth_flat_file.ini").write_text(text)
        (config / "plugins").write_text("\n".join(plugins) + "\n")
        (self.base / "plugins/onward.js").write_text(ONWARD.format(road=self.road))

    def command(self) -> Sequence[str | Path]:
        return ("node", _program().path / "node_modules/Haraka/bin/haraka", "-c", self.base)


def _write_parameters(path: Path) -> None:
    """Give it a group of RFC 7919; without one it would draw a group of its own for a minute."""
    words = "openssl genpkey -genparam -algorithm DH -pkeyopt group:ffdhe2048 -out"
    subprocess.run([*words.split(), str(path)], check=True, capture_output=True)


def _program() -> Entry:
    def make(folder: Path, log: Path) -> None:
        _require_node()
        quiet = ("--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts", "--no-save")
        cache.run(["npm", "install", *quiet, f"Haraka@{VERSION}"], log, directory=folder)

    return Entry("haraka", cache.key_of(VERSION), f"Haraka {VERSION}: npm install", make)


def _require_node() -> None:
    wanted = f"Haraka needs Node {OLDEST_NODE} or newer with npm in PATH"
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise MissingRequirement(wanted)
    shown = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    if int(shown.stdout.strip().lstrip("v").partition(".")[0]) < OLDEST_NODE:
        raise MissingRequirement(f"{wanted}; found {shown.stdout.strip()}")
