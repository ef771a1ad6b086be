"""The software bill of materials: what the image has beside Python's base, by the lock that it is
built with.

Source: SPDX 2.3, JSON format; Package URL specification, type pypi."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from release.checksums import sha256
from release.source import Commit
from release.versions import Version

NAMESPACE = "https://spdx.org/spdxdocs/postroad"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)([^\\\n]*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def write(lock: Path, wheel: Path, folder: Path, version: Version, commit: Commit) -> Path:
    """Write the bill for a wheel and the libraries of a lock."""
    path = folder / f"postroad-{version.semantic}.spdx.json"
    packages = [_of_the_wheel(wheel, version), *_of_the_lock(lock.read_text())]
    identities = [each["SPDXID"] for each in packages]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"postroad-{version.semantic}",
        "documentNamespace": f"{NAMESPACE}-{version.semantic}-{commit.identity}",
        "creationInfo": {"created": commit.date, "creators": ["Tool: postroad-make-release"]},
        "packages": packages,
        "relationships": [
            _related("SPDXRef-DOCUMENT", "DESCRIBES", identities[0]),
            *(_related(identities[0], "DEPENDS_ON", each) for each in identities[1:]),
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def _of_the_wheel(wheel: Path, version: Version) -> dict[str, Any]:
    package = _package("postroad", version.python, "")
    checksum = {"algorithm": "SHA256", "checksumValue": sha256(wheel)}
    fields = {"packageFileName": wheel.name, "checksums": [checksum]}
    return {**package, **fields, "licenseDeclared": "Apache-2.0"}


def _of_the_lock(text: str) -> list[dict[str, Any]]:
    """Return the packages of a lock. Each has several files with a hash each, of which an
    installation takes one: they stand in its comment, because SPDX has the checksums of one file
    only."""
    found = list(_REQUIREMENT.finditer(text))
    ends = [each.start() for each in found[1:]] + [len(text)]
    packages = []
    for each, end in zip(found, ends, strict=True):
        name, version, marker = each[1], each[2], each[3].strip(" ;")
        hashes = sorted(_HASH.findall(text[each.end() : end]))
        package = _package(name, version, marker)
        package["comment"] = "sha256 of its files: " + " ".join(hashes)
        packages.append(package)
    return packages


def _package(name: str, version: str, marker: str) -> dict[str, Any]:
    unlike = re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}")
    package = {
        "SPDXID": f"SPDXRef-Package-{unlike}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{name}@{version}",
            }
        ],
    }
    return package | ({"summary": f"where {marker}"} if marker else {})


def _related(one: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
