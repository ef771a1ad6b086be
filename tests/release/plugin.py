"""Makes `kubectl-mailqueue` as one file, and its manifest for Krew: `python -m release.plugin`.

The file is a zip application: postroad's modules and the libraries that the plugin imports, as they
are installed here. Two runs give the same file."""

from __future__ import annotations

import hashlib
import io
import platform
import re
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from gzip import compress
from importlib.metadata import distribution
from pathlib import Path

import yaml

from support.repository import ROOT

LIBRARIES = (
    *("annotated-types", "click", "idna", "prometheus-client", "pydantic", "pydantic-core"),
    *("pyyaml", "structlog", "typing-extensions", "typing-inspection"),
)
"""Distributions that commands of the plugin import; yaml does without its compiled part."""

BEGIN = b"#!/usr/bin/env python3\n"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
DATE = (1980, 1, 1, 0, 0, 0)
NAME = "kubectl-mailqueue"
PLACE = "https://example.org/postroad"
"""Where the archive is published, unless another place is given."""


def make(folder: Path, place: str = PLACE) -> Path:
    """Write the file, the archive that Krew unpacks, and the manifest; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = dict(_files())
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + content)
    begin = (Path(__file__).parent / "plugin_main.py").read_text()
    machine = f"{sys.platform}-{platform.machine()}"
    filled = f'PYTHONS = ["{PYTHON}"]\nMACHINE, DIGEST = "{machine}", "{digest.hexdigest()[:16]}"\n'
    empty = begin.index("PYTHONS: "), begin.index("\n\n\ndef unpacked")
    begin = begin[: empty[0]] + filled + begin[empty[1] :]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted({**files, "__main__.py": begin.encode()}.items()):
            entry = zipfile.ZipInfo(name, DATE)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    path = folder / NAME
    path.write_bytes(BEGIN + packed.getvalue())
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    _manifest(folder, path, place)
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    package = ROOT / "operator" / "postroad"
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(package.parent).as_posix(), path.read_bytes()
    for each in LIBRARIES:
        found = distribution(each)
        for file in found.files or ():
            name = file.as_posix()
            is_compiled_twin = name.startswith("yaml/_yaml")
            if ".." in name or "__pycache__" in name or is_compiled_twin:
                continue
            if name.endswith((".py", ".so", "/METADATA", ".typed")):
                yield name, Path(str(found.locate_file(file))).read_bytes()
    yield (
        f"postroad-{_version()}.dist-info/METADATA",
        (f"Metadata-Version: 2.1\nName: postroad\nVersion: {_version()}\n".encode()),
    )


def _version() -> str:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found
    return found[1]


def _manifest(folder: Path, path: Path, place: str) -> None:
    """Write the archive, and the manifest as Krew's documentation has it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as files:
        for name, content, mode in (
            (NAME, path.read_bytes(), 0o755),
            ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            files.addfile(entry, io.BytesIO(content))
    archive = folder / f"{NAME}-{sys.platform}-{platform.machine()}.tar.gz"
    archive.write_bytes(compress(packed.getvalue(), mtime=0))
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "unknown")
    labels = {"os": sys.platform, "arch": architecture}
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "mailqueue"},
        "spec": {
            "version": f"v{_version()}",
            "homepage": place,
            "shortDescription": "Look at and change mail in the queues of postroad",
            "description": (
                "Commands for MailQueue resources: browse, hold, remove, requeue and more run in a "
                "pod of the queue, with your rights and none of the queue's credentials."
            ),
            "caveats": f"Needs kubectl, and Python {PYTHON} as python3.",
            "platforms": [
                {
                    "selector": {"matchLabels": labels},
                    "uri": f"{place}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": NAME,
                    "files": [{"from": "*", "to": "."}],
                }
            ],
        },
    }
    (folder / "mailqueue.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), *sys.argv[2:3]))
