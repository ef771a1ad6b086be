"""What a release consists of, each file a function of the commit alone: wheel, chart, manifests."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from release.errors import ReleaseRefused
from release.source import Commit
from release.versions import Version

CRDS_HEADER = "# The CRDs of postroad: kubectl apply --server-side -f {name}\n"
INSTALL_HEADER = """\
# CRDs and operator of postroad, after naming your image in it, in both places:
# kubectl apply --server-side -f {name}
"""


def wheel(source: Path, folder: Path, version: Version, commit: Commit) -> Path:
    """Build the wheel. Its files have the commit's date. Raises: ReleaseRefused."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(commit.epoch)},
        capture_output=True,
        text=True,
    )
    path = folder / f"postroad-{version.python}-py3-none-any.whl"
    if done.returncode or not path.is_file():
        raise ReleaseRefused(f"hatchling built no {path.name}:\n{done.stderr}{done.stdout}")
    return path


def chart(source: Path, folder: Path, version: Version, commit: Commit) -> Path:
    """Pack the chart as `helm package` does, which writes the present time into it."""
    path = folder / f"postroad-{version.semantic}.tgz"
    root = source / "charts" / "postroad"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as files:
        # Helm reads Chart.yaml first.
        for each in sorted(_files(root), key=lambda each: (each.name != "Chart.yaml", each)):
            entry = tarfile.TarInfo(f"postroad/{each.relative_to(root).as_posix()}")
            content = each.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), commit.epoch, 0o644
            files.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=commit.epoch))
    return path


def crds(source: Path, folder: Path, version: Version) -> Path:
    """Write all CRDs as one file."""
    path = folder / f"postroad-crds-{version.semantic}.yaml"
    path.write_text(CRDS_HEADER.format(name=path.name) + _joined(source / "crds"))
    return path


def manifest(source: Path, folder: Path, version: Version) -> Path:
    """Write CRDs and operator as one file."""
    path = folder / f"postroad-{version.semantic}.yaml"
    install = (source / "manifests" / "install.yaml").read_text()
    lines = [line for line in install.splitlines(keepends=True) if not line.startswith("# ")]
    text = INSTALL_HEADER.format(name=path.name) + _joined(source / "crds") + "---\n"
    path.write_text(text + "".join(lines))
    return path


def _joined(folder: Path) -> str:
    return "---\n".join(each.read_text() for each in sorted(folder.glob("*.yaml")))


def _files(root: Path) -> Iterator[Path]:
    return (each for each in root.rglob("*") if each.is_file())
