"""A real kubectl, for tests and the demo that act as a user does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from stack import patience

Manifest = dict[str, Any]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C takes a seventh of the time; not every build of the library has it."""


class KubectlFailed(Exception):
    """kubectl failed; the message is its output."""


class TooLate(AssertionError):
    """What was waited for did not come."""


class Kubectl:
    """kubectl with one cluster's credentials; `command` is how it is called."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run it and return what it printed. Raises: KubectlFailed with what it complained."""
        done = subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=patience.stretched(timeout),
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
        if done.returncode:
            raise KubectlFailed(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def apply(self, *manifests: Manifest, force: bool = True, dry_run: bool = False) -> str:
        """Server-side apply as a user would. Raises: KubectlFailed with the refusal."""
        conflicts = ["--force-conflicts"] if force else []
        conflicts += ["--dry-run=server"] if dry_run else []
        text = yaml.safe_dump_all(manifests)
        return self("apply", "--server-side", *conflicts, "-f", "-", stdin=text)

    def get(self, kind: str, name: str, namespace: str) -> Manifest:
        """Return an object. Raises: KubectlFailed when there is none."""
        found: Manifest = json.loads(self("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def list(self, kind: str, namespace: str, selector: str = "") -> list[Manifest]:
        """Return the objects of a kind."""
        chosen = ["-l", selector] if selector else []
        found: list[Manifest] = json.loads(
            self("get", kind, "-n", namespace, *chosen, "-o", "json")
        )["items"]
        return found

    def condition(self, kind: str, name: str, namespace: str, condition: str) -> Manifest:
        """Return one condition of an object; an empty one when it has none such."""
        conditions = self.get(kind, name, namespace).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == condition), {})

    @contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """Forward a loopback port to a Service or Pod; yields the port."""
        process = subprocess.Popen(
            [*self._command, "port-forward", "-n", namespace, target, f":{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        reading: threading.Thread | None = None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"127\.0\.0\.1:(\d+) ->", line):
                    # It writes a line for each connection, and would stop at a full pipe.
                    reading = threading.Thread(target=process.stdout.read, daemon=True)
                    reading.start()
                    yield int(found[1])
                    return
            raise KubectlFailed("".join(said).strip())
        finally:
            process.terminate()
            process.wait(10)
            if reading is not None:
                reading.join(10)
            process.stdout.close()


def eventually(
    claim: Callable[[], object], *, within_seconds: float, every_seconds: float = 0.5
) -> Any:
    """Wait until `claim()` is truthy and return it. Raises: TooLate with its last answer.

    An AssertionError or KubectlFailed in the claim counts as not yet.
    """
    within_seconds = patience.stretched(within_seconds)
    deadline = time.monotonic() + within_seconds
    last: object = None
    while True:
        try:
            last = claim()
            if last:
                return last
        except (AssertionError, KubectlFailed) as error:
            last = error
        if time.monotonic() > deadline:
            raise TooLate(f"not within {within_seconds:.0f} s; last: {last!r}")
        time.sleep(every_seconds)


def documents_in(text: str) -> list[Any]:
    """Read every document of YAML."""
    return list(yaml.load_all(text, _LOADER))  # a SafeLoader


def manifests(path: Path) -> list[Manifest]:
    """Read every document of a file or of a folder's files."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    return [each for file in files for each in documents_in(file.read_text()) if each]


def secret(name: str, namespace: str, data: Mapping[str, str]) -> Manifest:
    """Return a Secret."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": dict(data),
    }
