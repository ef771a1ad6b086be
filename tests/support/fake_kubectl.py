"""A script in place of kubectl that answers from a folder of resources, `NAME.json`.

A file `away` in the folder makes the cluster unreachable; the context's namespace is `mail`.
Lists are files named like the kind. What `exec` and `create` were called with is written down;
`exec` answers with the files `stdout`, `stderr` and the exit code in `code`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

KUBECTL = """#!/bin/sh
echo "$*" >> {folder}/calls
[ -e {folder}/away ] && {{ echo 'dial tcp: connection refused' >&2; exit 1; }}
case "$*" in
*"config view"*) printf mail ;;
"exec "*)
    for word; do printf '%s\\n' "$word"; done > {folder}/executed
    case "$*" in *" --stdin "*) cat > {folder}/stdin ;; esac
    cat {folder}/stdout; cat {folder}/stderr >&2
    code=$(cat {folder}/code)
    [ "$code" = 0 ] || echo "command terminated with exit code $code" >&2
    exit "$code" ;;
"create "*) cat > {folder}/created.json ;;
*"get "*) for word; do [ -e {folder}/"$word".json ] && cat {folder}/"$word".json; done; exit 0 ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, with the script first in PATH."""
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put(
    folder: Path,
    name: str,
    history: list[dict[str, Any]],
    *,
    spec: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Put a MailQueue whose status has this history."""
    resource = {
        "kind": "MailQueue",
        "metadata": metadata or {},
        "spec": spec or {},
        "status": {"history": history},
    }
    (folder / f"{name}.json").write_text(json.dumps(resource))


def put_list(folder: Path, kind: str, items: list[dict[str, Any]]) -> None:
    """Put what a list of this kind answers."""
    (folder / f"{kind}.json").write_text(json.dumps({"items": items}))


def answer(folder: Path, stdout: str, *, code: int = 0, stderr: str = "") -> None:
    """Say what a command in a pod prints, and how it ends."""
    for name, text in (("stdout", stdout), ("stderr", stderr), ("code", str(code))):
        (folder / name).write_text(text)


def executed(folder: Path) -> list[str]:
    """Return the words of the last `kubectl exec`."""
    return (folder / "executed").read_text().splitlines()


def calls(folder: Path) -> list[str]:
    """Return what kubectl was called with, one line each."""
    return (folder / "calls").read_text().splitlines()
