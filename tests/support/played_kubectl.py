"""A script in place of kubectl that answers from a folder of resources, `NAME.json`.

A file `away` in the folder makes the cluster unreachable; the context's namespace is `mail`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

KUBECTL = """#!/bin/sh
[ -e {folder}/away ] && {{ echo 'dial tcp: connection refused' >&2; exit 1; }}
case "$*" in
*"config view"*) printf mail ;;
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


def put(folder: Path, name: str, history: list[dict[str, Any]]) -> None:
    """Put a MailQueue whose status has this history."""
    resource = {"kind": "MailQueue", "status": {"history": history}}
    (folder / f"{name}.json").write_text(json.dumps(resource))
