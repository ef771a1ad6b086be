"""Where the files of a release come from, as a statement that tools read.

Source: in-toto Attestation Framework, Statement v1; SLSA 1.0, Provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from release.checksums import sha256
from release.source import Commit
from release.versions import Version

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
LOCKS = ("locks/run.txt", "locks/dev.txt")
"""What is in the image, and what builds."""


def write(
    files: Iterable[Path],
    source: Path,
    folder: Path,
    version: Version,
    commit: Commit,
    base: str = "",
) -> Path:
    """Write the statement about files of a folder. It has no time of the run, so that a second run
    gives the same statement; and no level of SLSA, because the builder is a person's machine.
    `base`: what the image was built on, as its builder got it; none: there is no image."""
    path = folder / f"postroad-{version.semantic}.intoto.json"
    dependencies: list[dict[str, object]] = [
        {"uri": "git+postroad", "digest": {"gitCommit": commit.identity}}
    ]
    dependencies += [
        {"uri": f"file:{name}", "digest": {"sha256": sha256(source / name)}} for name in LOCKS
    ]
    if base:
        _, _, digest = base.partition("@sha256:")
        named = {"digest": {"sha256": digest}} if digest else {}
        dependencies.append({"uri": f"docker://{base}", **named})
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": each.name, "digest": {"sha256": sha256(each)}} for each in sorted(files)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:postroad:make-release:v1",
                "externalParameters": {"version": version.semantic},
                "internalParameters": {"SOURCE_DATE_EPOCH": commit.epoch},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": "urn:postroad:make-release"}},
        },
    }
    path.write_text(json.dumps(statement, indent=1) + "\n")
    return path
