"""A git repository that a user pushes to and Flux reads by HTTP, on loopback."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

BRANCH = "main"


@dataclass(frozen=True)
class Repository:
    """A working copy, and the address of the bare repository that it is pushed to."""

    copy: Path
    url: str

    def commit(self, files: Mapping[str, str | None], subject: str) -> str:
        """Write files (None: remove them), commit and push; return the revision as Flux has it."""
        for name, text in files.items():
            path = self.copy / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return self._push(subject)

    def revert(self, subject: str) -> str:
        """Undo the last commit by another one; return its revision."""
        self._git("revert", "--no-commit", "HEAD")
        return self._push(subject)

    def _push(self, subject: str) -> str:
        self._git("add", "--all")
        self._git("commit", "-q", "-m", subject)
        self._git("push", "-q", "origin", BRANCH)
        return f"{BRANCH}@sha1:{self._git('rev-parse', 'HEAD').strip()}"

    def _git(self, *arguments: str) -> str:
        return git("-C", self.copy, *arguments)


def git(*arguments: str | Path) -> str:
    """Run git as a user without a configuration."""
    author = {f"GIT_{who}_{what}": "postroad@demo.example" for who in ("AUTHOR", "COMMITTER")
              for what in ("NAME", "EMAIL")}  # fmt: skip
    apart = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | author | apart,
    ).stdout


@contextmanager
def served(folder: Path) -> Iterator[Repository]:
    """Make an empty repository below `folder` and serve it until the end of the block."""
    bare, copy = folder / "served" / "mail.git", folder / "copy"
    git("init", "-q", "--bare", "-b", BRANCH, bare)
    git("init", "-q", "-b", BRANCH, copy)
    git("-C", copy, "remote", "add", "origin", bare)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(bare.parent))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Repository(copy, f"http://127.0.0.1:{server.server_port}/{bare.name}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(root: Path) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Hands each request to `git http-backend`, a CGI program."""

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _answer(self, body: bytes) -> None:
            url = urlsplit(self.path)
            variables = {
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "",
                "PATH_INFO": url.path,
                "QUERY_STRING": url.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            answered = subprocess.run(
                ["git", "http-backend"],
                input=body,
                stdout=subprocess.PIPE,
                env=os.environ | variables,
            )
            head, _, content = answered.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", str(HTTPStatus.OK.value)).split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Handler
