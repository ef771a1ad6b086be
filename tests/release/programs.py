"""Programs that others read a release with: cosign and syft, built by Go, and the validator of
documents of SPDX."""

from __future__ import annotations

import sys
from pathlib import Path

from stack import cache, golang
from stack.cache import Entry
from support.repository import ROOT

COSIGN = ("github.com/sigstore/cosign/v2/cmd/cosign", "v2.6.1")
SYFT = ("github.com/anchore/syft/cmd/syft", "v1.57.1")
LOCK = ROOT / "locks" / "spdx.txt"


def cosign() -> Path:
    """Return cosign's program."""
    built = golang.installed("cosign", *COSIGN, "10 minutes of CPU, once")
    return golang.made(built) / "cosign"


def syft() -> Path:
    """Return syft's program."""
    return golang.made(golang.installed("syft", *SYFT, "15 minutes of CPU, once")) / "syft"


def validator() -> list[str | Path]:
    """Return the command that validates documents of SPDX."""

    def make(folder: Path, log: Path) -> None:
        python = folder / "bin" / "python"
        cache.run([sys.executable, "-m", "venv", folder], log)
        cache.run([python, "-m", "pip", "install", "-q", "--require-hashes", "-r", LOCK], log)

    key = cache.key_of(LOCK.read_bytes(), sys.version)
    made = golang.made(Entry("spdx-tools", key, "spdx-tools: install", make))
    # Its script in `bin` has the name that the folder had until it was whole.
    return [made / "bin" / "python", "-m", "spdx_tools.spdx.clitools.pyspdxtools"]
