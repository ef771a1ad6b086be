"""Processes of this release and of an older one, on one queue: as during a rolling upgrade.

The older one is unpacked from the history of this repository and runs with the same libraries.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import zipfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

OLDER = "HEAD"
"""The commit that people upgrade from: the tag of the latest release, and moved to each as it is
tagged. Until there is one, the newest commit, beside which the files here may have changes."""

ROOT = Path(__file__).parents[2]
HERE = ROOT / "operator"
CRD = "crds/mailqueues.yaml"
MAX_ANSWER = 60
"""Seconds that a command may take on a machine that is busy with much else."""


def unpack_older(folder: Path) -> Path:
    """Put the older release's sources into a folder; return what goes on the path. Skips the test
    where the history is not there, and fails it where POSTROAD_REQUIRE names `history`."""
    _unpack(OLDER, folder, "operator")
    return folder / "operator"


def unpack_oldest(path: str, spec: Mapping[str, Any], folder: Path) -> None:
    """Put the whole source of a commit into a folder: the oldest one that has a file, and whose CRD
    of MailQueues has the fields of a spec. Skips and fails as `unpack_older`."""
    if _git("rev-parse", "--is-shallow-repository").strip() != b"false":
        _without_history("the commits of long ago are")
    brought = _git("log", "--diff-filter=A", "--format=%H", "--", path).decode().split()[-1:]
    if not brought:
        _without_history(f"the commit that brought {path} is")
    later = _git("log", "--reverse", "--format=%H", f"{brought[0]}..HEAD", "--", CRD).decode()
    for commit in (*brought, *later.split()):
        (version,) = yaml.safe_load(_git("show", f"{commit}:{CRD}"))["spec"]["versions"]
        if _has(version["schema"]["openAPIV3Schema"]["properties"]["spec"], spec):
            _unpack(commit, folder)
            return
    _without_history("a commit with the fields of the MailQueues of these tests is")


def _has(schema: Mapping[str, Any], value: Any) -> bool:
    """True if a schema has all fields of a value."""
    if isinstance(value, list):
        return all(_has(schema["items"], each) for each in value)
    fields = schema.get("properties")
    if not isinstance(value, Mapping) or fields is None:
        return True
    return all(name in fields and _has(fields[name], each) for name, each in value.items())


def _unpack(commit: str, folder: Path, *paths: str) -> None:
    made = _git("archive", "--format=zip", commit, *paths)
    if not made:
        _without_history(f"commit {commit} is")
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        archive.extractall(folder)


def _git(*arguments: str) -> bytes:
    """Return what git printed about this source; nothing where it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    return b"" if done.returncode else done.stdout


def _without_history(what: str) -> NoReturn:
    required = "history" in os.environ.get("POSTROAD_REQUIRE", "").split(",")
    (pytest.fail if required else pytest.skip)(
        f"{what} not here: use a clone with its history (git fetch --unshallow)"
    )


class Peer:
    """A process of one release that obeys; `transmitted` and `retried` are names in order."""

    def __init__(self, name: str, process: Process, environment: Mapping[str, str]) -> None:
        self.name = name
        self.environment = environment
        self.transmitted: list[str] = []
        self.retried: list[str] = []
        self._process = process
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, path: Path, log: Path, environment: Mapping[str, str]) -> Peer:
        """Start a process whose postroad comes from `path`."""
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(Path(__file__).with_name("queue_driver.py"))),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stream,
                env={**os.environ, **environment, "PYTHONPATH": str(path)},
            )
        peer = cls(name, process, environment)
        home = Path(await peer.ask("home"))
        assert home.is_relative_to(path), f"{name} imported {home}"
        return peer

    async def ask(self, command: str, **values: object) -> Any:
        """Let it carry out a command; return what that returned."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **values}).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), MAX_ANSWER)
        assert "error" not in answer, f"{self.name}: {command}: {answer['error']}"
        return answer["result"]

    async def end(self) -> None:
        """Close its queue and let it end."""
        await self.ask("close")
        assert await self._process.wait() == 0

    async def kill(self) -> None:
        """End it, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if "transmitted" in said:
                self.transmitted.append(said["transmitted"])
            elif "retried" in said:
                self.retried.append(said["retried"])
            else:
                self._answers.put_nowait(said)
        self._answers.put_nowait({"error": "it ended"})
