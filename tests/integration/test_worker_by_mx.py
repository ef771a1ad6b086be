"""A worker with the files that its pod would have delivers by MX records to port 25 of two sites,
and follows changes of them while it runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from postroad import Mail, open_queue
from support.built_pods import WorkerPod
from support.dns_server import DnsServer, running
from support.mounted_secret import MountedSecret
from support.programs import Program
from support.sasl_server import SaslServer
from support.signing import ed25519_pem, records, selected, verified
from support.sink import EXTENSIONS, Sink

ONE, TWO, RELAY = "192.0.2.1", "192.0.2.2", "192.0.2.3"
"""Addresses that a network namespace of the test's own has: loopback ones stand for the sender."""

DNS = f"""
    one.example     MX 10 mx.one.example
    mx.one.example  A {ONE}
    two.example     MX 10 mx.two.example
    mx.two.example  A {TWO}
"""
ALL = (*EXTENSIONS, "AUTH PLAIN")
LOGIN = {"username": "worker", "password": "secret"}


class PodFiles:
    """The files of a pod, below another root."""

    def __init__(
        self, root: Path, pod: WorkerPod, secrets: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._root = root
        self.file = self.at(pod.file)
        self._mounted = MountedSecret(self.file.parent, {self.file.name: self._text(pod)})
        for name, data in secrets.items():
            MountedSecret(self.at(pod.folder_of(name)), data)

    def at(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def _text(self, pod: WorkerPod) -> str:
        return pod.text().replace("/etc/postroad", str(self._root / "etc/postroad"))

    def renew(self, pod: WorkerPod) -> None:
        """Let the kubelet bring the ConfigMap."""
        self.write(self._text(pod))

    def write(self, text: str) -> None:
        self._mounted.renew({self.file.name: text})


class Scene:
    """A worker over an embedded queue, two sites and a smart host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = f"embedded://{folder}/store"

    def pod(self, *domains: str) -> WorkerPod:
        """Return the pod of a MailQueue whose mail for these domains goes by the smart host."""
        login = {"secretRef": {"name": "relay-login"}, "unverified": True}
        smart = {"host": RELAY, "port": 587, "tls": {"mode": "None"}, "login": login}
        conditions = {"domains": [*domains]} if domains else {"tenants": ["none"]}
        rule = {"name": "smart", "hops": [smart], **conditions}
        key = {"selector": "ed", "secretRef": {"name": "dkim", "key": "ed.pem"}}
        delivery = {
            "routing": {"resolver": {"servers": [self.dns.address]}, "rules": [rule]},
            "signing": [{"domain": "origin.example", "keys": [key]}],
        }
        workers: dict[str, Any] = {"handler": {"mx": {}}}
        return WorkerPod(workers=workers, delivery=delivery)

    async def play(self) -> None:
        async with AsyncExitStack() as stack:
            self.dns = await stack.enter_async_context(running(DnsServer(DNS)))
            one, two = [
                await stack.enter_async_context(Sink(host=host, port=25)) for host in (ONE, TWO)
            ]
            users = SaslServer(LOGIN["username"], LOGIN["password"])
            relay = await stack.enter_async_context(
                Sink(host=RELAY, port=587, users=users, extensions=ALL)
            )
            key = {"ed.pem": ed25519_pem().decode()}
            files = PodFiles(self.folder / "pod", self.pod(), {"dkim": key, "relay-login": LOGIN})
            program = await Program.start(
                self.folder,
                *("worker", "--queue", self.queue, "--create"),
                environment={
                    "POSTROAD_WORKER_DELIVERY_FILE": str(files.file),
                    "POSTROAD_HOSTNAME": "mx.origin.example",
                },
            )
            stack.push_async_callback(program.stop)
            await program.until_ready()
            await self.deliver(4, lambda: (len(one.mails), len(two.mails)) == (4, 4))
            assert verified(one.mails[0].content, records("origin.example", selected("ed"))) == [
                True
            ]

            files.renew(self.pod("one.example"))
            await self.followed(program, "delivery read again")
            await self.deliver(4, lambda: (len(relay.mails), len(two.mails)) == (4, 8))

            files.write("routing: {rules: [{name: one}]}")
            await self.followed(program, "delivery not changed, what was read before stays")
            assert "routing.rules[0]: give either mx" in program.log.read_text()
            await self.deliver(4, lambda: (len(relay.mails), len(two.mails)) == (8, 12))
            assert "postroad_delivery_file_refused 1.0" in await program.ask("/metrics")

            assert len(one.mails) == 4
            assert program.process.returncode is None
            arrived = Counter(
                recipient
                for sink in (one, two, relay)
                for mail in sink.mails
                for recipient in mail.recipients
            )
            assert set(arrived.values()) == {1}
            assert await program.stop() == 0

    async def deliver(self, count: int, arrived: Callable[[], bool]) -> None:
        """Queue mails for both sites, and wait until they arrived."""
        async with open_queue(self.queue) as queue:
            for _ in range(count):
                self.number = getattr(self, "number", 0) + 1
                recipients = (f"r{self.number}@one.example", f"r{self.number}@two.example")
                content = b"From: a@origin.example\r\nSubject: x\r\n\r\nx\r\n"
                await queue.enqueue(Mail("a@origin.example", recipients, content))
            while not arrived():
                await asyncio.sleep(0.02)

    async def followed(self, program: Program, event: str) -> None:
        """Ask the worker to look at its files, and wait until it has."""
        program.process.send_signal(signal.SIGHUP)
        while event not in program.log.read_text():
            await asyncio.sleep(0.02)


@pytest.mark.needs("unshare", "ip")
def test_a_worker_delivers_by_mx_and_follows_its_files(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    assert unshare
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [unshare, "--net", "--map-root-user", sys.executable, __file__, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    logs = [each.read_text() for each in tmp_path.glob("*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])


def main(folder: Path) -> None:
    """Play the scene in a network namespace of its own."""
    for words in ("link set lo up", *(f"addr add {each}/32 dev lo" for each in (ONE, TWO, RELAY))):
        subprocess.run(["ip", *words.split()], check=True)
    asyncio.run(asyncio.wait_for(Scene(folder).play(), 30))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
