"""Image archives written by hand, for images too small for a Dockerfile."""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_archive(archive: Path, name: str, root: Path, command: Sequence[str]) -> None:
    """Write an image of one layer, the files below a folder, as an OCI archive."""
    with tempfile.TemporaryFile() as layer, tarfile.open(archive, "w") as out:
        with tarfile.open(fileobj=layer, mode="w") as content:
            content.add(root, arcname=".", filter=_as_root)
        size = layer.tell()
        layer.seek(0)
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
        layer.seek(0)
        info = tarfile.TarInfo(f"blobs/sha256/{digest}")
        info.size = size
        out.addfile(info, layer)
        configuration = _add_document(
            out,
            "application/vnd.oci.image.config.v1+json",
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": list(command)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            },
        )
        manifest = _add_document(
            out,
            "application/vnd.oci.image.manifest.v1+json",
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": configuration,
                "layers": [
                    {
                        "mediaType": "application/vnd.oci.image.layer.v1.tar",
                        "digest": f"sha256:{digest}",
                        "size": size,
                    }
                ],
            },
        )
        manifest["annotations"] = {"io.containerd.image.name": name}
        _add(out, "oci-layout", {"imageLayoutVersion": "1.0.0"})
        _add(out, "index.json", {"schemaVersion": 2, "manifests": [manifest]})


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = 0
    return info


def _add(out: tarfile.TarFile, name: str, document: object) -> bytes:
    content = json.dumps(document).encode()
    info = tarfile.TarInfo(name)
    info.size = len(content)
    out.addfile(info, io.BytesIO(content))
    return content


def _add_document(out: tarfile.TarFile, kind: str, document: object) -> dict[str, Any]:
    content = json.dumps(document).encode()
    digest = hashlib.sha256(content).hexdigest()
    _add(out, f"blobs/sha256/{digest}", document)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}
