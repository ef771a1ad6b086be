"""Makes a release: a folder that appears whole or not at all."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from release import artifacts, checksums, images, provenance, sbom, signatures, source
from release.errors import ReleaseRefused
from release.versions import Version, check, parse

LISTING = "release.json"


def make(
    repository: Path, version: str, out: Path, key: Path | None = None, base: str = ""
) -> Path:
    """Make the release of the commit that is checked out, in a folder of `out` with the name of its
    version; return that folder. `base`: the image that buildah builds on; none: buildx builds.
    Raises: ReleaseRefused."""
    wanted = parse(version)
    signer = signatures.load(key) if key else None
    commit = source.head(repository)
    folder = out / wanted.semantic
    if folder.exists():
        raise ReleaseRefused(f"{folder} is there already: a version is released once")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=out) as temporary:
        tree, made = Path(temporary) / "source", Path(temporary) / "made"
        made.mkdir()
        source.export(repository, commit, tree)
        check(wanted, tree)
        skipped = _fill(tree, made, wanted, commit, base)
        if signer is None:
            skipped["signatures"] = "no key was named: KEY=key.pem"
        _list(made, wanted, commit, skipped)
        sums = checksums.write(made.iterdir(), made)
        if signer is not None:
            signatures.sign(sums, signer)
            for statement in made.glob("*.intoto.json"):
                signatures.attest(statement, signer)
            signatures.publish(signer, made)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError as error:  # another one made it meanwhile
            raise ReleaseRefused(f"{folder} cannot be made: {error.strerror}") from error
    return folder


def _fill(
    tree: Path, folder: Path, version: Version, commit: source.Commit, base: str
) -> dict[str, str]:
    """Write the files of a release; return what was skipped, with the reason."""
    skipped: dict[str, str] = {}
    wheel = artifacts.wheel(tree, folder, version, commit)
    artifacts.chart(tree, folder, version, commit)
    artifacts.crds(tree, folder, version)
    artifacts.manifest(tree, folder, version)
    if base:
        skipped |= images.build_here(tree, folder, version, commit, base)
    elif reason := images.missing_builder():
        skipped |= {f"image {each}": reason for each in images.PLATFORMS}
    else:
        images.build(tree, folder, version, commit)
        base = images.base_of(tree)
    sbom.write(tree / "locks" / "run.txt", wheel, folder, version, commit)
    provenance.write(list(folder.iterdir()), tree, folder, version, commit, base)
    return skipped


def _list(folder: Path, version: Version, commit: source.Commit, skipped: dict[str, str]) -> None:
    listing = {
        "version": version.semantic,
        "commit": commit.identity,
        "date": commit.date,
        "files": sorted(each.name for each in folder.iterdir()),
        "skipped": skipped,
    }
    (folder / LISTING).write_text(json.dumps(listing, indent=1) + "\n")
