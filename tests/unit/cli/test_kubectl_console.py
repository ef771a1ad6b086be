"""`kubectl mailqueue console`, with a script for kubectl and a server for the console."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.cli import kubectl_mailqueue

KUBECTL = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
*"config view --raw"*) cat {folder}/kubeconfig.json ;;
*"config view"*) printf mail ;;
*"port-forward"*) echo "Forwarding from 127.0.0.1:{port} -> 8600" ;;
*"create token"*) printf '{{"status": {{"token": "of-an-account"}}}}' ;;
*"get mailqueues.postroad.dev outgoing"*) cat {folder}/queue.json ;;
*"get queueclusters.postroad.dev main"*) cat {folder}/cluster.json ;;
*"get queueclusters"*) printf '{{"items": ['; cat {folder}/cluster.json; printf ']}}' ;;
esac
"""


class Console(BaseHTTPRequestHandler):
    """Takes one token."""

    link: object = "/?token=once"

    def do_POST(self) -> None:
        is_good = self.headers["Authorization"] in ("Bearer of-an-account", "Bearer of-the-user")
        body = {"link": self.link} if is_good and self.path == "/session" else {"detail": "no"}
        text = json.dumps(body).encode()
        self.send_response(201 if is_good else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Console)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def folder(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(folder=tmp_path, port=port))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    declare(tmp_path, {})
    kubeconfig(tmp_path, {"token": "of-the-user"})
    return tmp_path


def declare(folder: Path, console: object) -> None:
    queue = {
        "metadata": {"name": "outgoing", "namespace": "mail"},
        "spec": {"clusterRef": {"name": "main", "namespace": "servers"}},
    }
    spec = {} if console is None else {"console": console}
    cluster = {"metadata": {"name": "main", "namespace": "servers"}, "spec": spec}
    (folder / "queue.json").write_text(json.dumps(queue))
    (folder / "cluster.json").write_text(json.dumps(cluster))


def kubeconfig(folder: Path, user: dict[str, str]) -> None:
    found = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "kubeconfig.json").write_text(json.dumps(found))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kubectl_mailqueue, ["console", *arguments, "--no-browser"])


def test_the_user_s_own_token_leads_to_the_queue(folder: Path, port: int) -> None:
    done = run("outgoing")

    assert done.exit_code == 0, done.output
    assert f"open http://127.0.0.1:{port}/?token=once&to=/queues/mail/outgoing" in done.output
    assert "of-the-user" not in done.output
    calls = (folder / "calls").read_text()
    assert "port-forward --namespace servers --address 127.0.0.1 service/main-console :80" in calls
    assert "of-the-user" not in calls, "no token stands in a command line"


def test_a_service_account_s_token_is_for_this_console_alone(folder: Path) -> None:
    done = run("outgoing", "--service-account", "postmaster")

    assert done.exit_code == 0, done.output
    calls = (folder / "calls").read_text()
    assert "create token postmaster --audience postroad.dev/consoles/servers/main" in calls


def test_without_a_name_the_only_console_of_the_namespace_is_meant(folder: Path) -> None:
    assert "token=once\n" in run().output
    declare(folder, None)
    assert "0 QueueClusters with a console" in run().output
    assert "has no console" in run("outgoing").output


def test_a_user_without_a_token_gets_advice(folder: Path) -> None:
    kubeconfig(folder, {})
    assert "--service-account" in run("outgoing").output


def test_a_console_that_does_not_take_the_token_is_quoted(folder: Path) -> None:
    kubeconfig(folder, {"token": "of-a-stranger"})
    output = run("outgoing").output
    assert "the console answers 401: no" in output
    assert "of-a-stranger" not in output


@pytest.mark.parametrize("link", ["@evil.example/?token=x", ".evil.example/", "/login", 5, None])
def test_a_link_that_leads_elsewhere_is_not_opened(
    folder: Path, link: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "link", link)
    done = run("outgoing")
    assert "the link of the console leads elsewhere" in done.output
    assert "open http" not in done.output
    assert done.exit_code == 1
