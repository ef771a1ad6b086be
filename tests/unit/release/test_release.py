"""A release: refused for what cannot be released, and otherwise the same files in every run."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from release import images, making, sbom
from release.checksums import NAME, sha256
from release.errors import ReleaseRefused
from release.making import LISTING, make
from release.source import Commit
from release.versions import parse
from support.chart import template
from support.kubectl import documents_in, manifests
from support.release_source import EPOCH, committed, git, signing_key
from support.repository import ROOT, needs_a_clone

VERSION = "0.1.0"
NO_BUILDER = "no Docker engine answers"

pytestmark = needs_a_clone


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return committed(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signing_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def made(source: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "missing_builder", lambda: NO_BUILDER)
        return make(source, VERSION, tmp_path_factory.mktemp("out"), key)


def digests(folder: Path) -> dict[str, str]:
    return {each.name: sha256(each) for each in folder.iterdir()}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_second_run_elsewhere_and_later_gives_the_same_digests(
    made: Path, source: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "clone"
    git(source, "clone", "-q", str(source), str(elsewhere))
    for each in (elsewhere / "charts").rglob("*"):
        os.utime(each, (1, 1))
    monkeypatch.setattr(images, "missing_builder", lambda: NO_BUILDER)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")

    again = make(elsewhere, VERSION, tmp_path / "out", key)

    assert digests(again) == digests(made)


def test_a_release_has_every_part_and_lists_what_it_has_not(made: Path) -> None:
    listing = read(made / LISTING)

    assert {each.name for each in made.iterdir()} == {
        "postroad-0.1.0-py3-none-any.whl",
        "postroad-0.1.0.tgz",
        "postroad-crds-0.1.0.yaml",
        "postroad-0.1.0.yaml",
        "postroad-0.1.0.spdx.json",
        "postroad-0.1.0.intoto.json",
        "postroad-0.1.0.intoto.jsonl",
        "release.json",
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "postroad.pub",
    }
    assert listing["date"] == "2026-01-02T03:04:05Z"
    assert listing["skipped"] == {
        "image linux/amd64": NO_BUILDER,
        "image linux/arm64": NO_BUILDER,
    }


def test_without_a_key_the_listing_has_that_nothing_is_signed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "missing_builder", lambda: NO_BUILDER)

    folder = make(source, VERSION, tmp_path)

    assert read(folder / LISTING)["skipped"]["signatures"] == "no key was named: KEY=key.pem"
    assert not list(folder.glob("*.sig"))


def test_checksums_are_those_that_sha256sum_reads(made: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", NAME], cwd=made, check=True)

    listed = {line.split("  ")[1] for line in (made / NAME).read_text().splitlines()}
    unlisted = {each.name for each in made.iterdir()} - listed
    assert unlisted == {
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "postroad.pub",
        "postroad-0.1.0.intoto.jsonl",
    }


def test_openssl_verifies_the_signatures_and_refuses_another_file(made: Path) -> None:
    envelope = read(made / "postroad-0.1.0.intoto.jsonl")
    (signature,) = envelope["signatures"]
    payload = base64.b64decode(envelope["payload"])
    signed = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} ".encode() + payload

    def verifies(content: bytes, signature: str | bytes) -> bool:
        file = made.parent / "signature.der"
        file.write_bytes(base64.b64decode(signature))
        command = ["openssl", "dgst", "-sha256", "-verify", f"{made / 'postroad.pub'}"]
        command += ["-signature", str(file)]
        return subprocess.run(command, input=content, capture_output=True).returncode == 0

    assert payload == (made / "postroad-0.1.0.intoto.json").read_bytes()
    assert verifies((made / NAME).read_bytes(), (made / f"{NAME}.sig").read_bytes())
    assert verifies(signed, signature["sig"])
    assert not verifies((made / LISTING).read_bytes(), (made / f"{NAME}.sig").read_bytes())
    assert not verifies(payload, signature["sig"])


def test_the_provenance_names_every_file_the_commit_and_the_locks(made: Path, source: Path) -> None:
    statement = read(made / "postroad-0.1.0.intoto.json")
    build = statement["predicate"]["buildDefinition"]
    commit = subprocess.run(
        ["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()

    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        each.name: sha256(each) for each in made.glob("postroad-*") if ".intoto." not in each.name
    }
    assert build["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    assert build["resolvedDependencies"][1] == {
        "uri": "file:locks/run.txt",
        "digest": {"sha256": sha256(ROOT / "locks" / "run.txt")},
    }
    assert len(build["resolvedDependencies"]) == 3  # without an image no base


@pytest.mark.parametrize("builder", ["buildx", "buildah"])
def test_the_provenance_names_the_base_of_the_image(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: str
) -> None:
    pinned = f"docker.io/library/python@sha256:{'a' * 64}"
    monkeypatch.setattr(images, "missing_builder", lambda: "")
    for name in ("build", "build_here"):
        monkeypatch.setattr(images, name, lambda *_: {})

    folder = make(source, VERSION, tmp_path, base=pinned if builder == "buildah" else "")

    statement = read(folder / "postroad-0.1.0.intoto.json")
    *_, named = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert named == (
        {"uri": f"docker://{pinned}", "digest": {"sha256": "a" * 64}}
        if builder == "buildah"
        else {"uri": "docker://python:3.11-slim-bookworm"}
    )


def test_the_bill_of_materials_has_each_library_of_the_lock_once(made: Path) -> None:
    document = read(made / "postroad-0.1.0.spdx.json")
    packages = {each["SPDXID"]: each for each in document["packages"]}
    lock = (ROOT / "locks" / "run.txt").read_text()
    wanted = {line.split("==")[0] for line in lock.splitlines() if "==" in line}

    assert len(packages) == len(document["packages"])
    assert {each["name"] for each in packages.values()} == wanted | {"postroad"}
    assert {each["relatedSpdxElement"] for each in document["relationships"]} == set(packages)
    (kopf,) = (each for each in packages.values() if each["name"] == "kopf")
    assert kopf["externalRefs"][0]["referenceLocator"] == f"pkg:pypi/kopf@{kopf['versionInfo']}"


def test_a_library_of_two_versions_is_two_packages() -> None:
    lock = "a==1 ; python_version < '3.12' \\\n    --hash=sha256:" + "0" * 64 + "\na==2 \\\n"

    found = sbom._of_the_lock(lock)

    assert [(each["versionInfo"], each.get("summary")) for each in found] == [
        ("1", "where python_version < '3.12'"),
        ("2", None),
    ]
    assert found[0]["comment"].endswith("0" * 64)
    assert found[0]["SPDXID"] != found[1]["SPDXID"]


def test_the_wheel_has_the_date_of_the_commit(made: Path) -> None:
    with zipfile.ZipFile(made / "postroad-0.1.0-py3-none-any.whl") as wheel:
        dates = {each.date_time[:3] for each in wheel.infolist()}
        names = wheel.namelist()

    assert dates == {(2026, 1, 2)}
    assert "postroad/cli/__init__.py" in names
    assert "postroad-0.1.0.dist-info/METADATA" in names


def test_the_chart_has_all_its_files_with_the_date_of_the_commit(made: Path) -> None:
    with tarfile.open(made / "postroad-0.1.0.tgz") as chart:
        entries = chart.getmembers()
    files = (ROOT / "charts" / "postroad").rglob("*")

    assert entries[0].name == "postroad/Chart.yaml"
    assert {each.mtime for each in entries} == {EPOCH}
    assert {each.name for each in entries} == {
        str(each.relative_to(ROOT / "charts")) for each in files if each.is_file()
    }
    with gzip.open(made / "postroad-0.1.0.tgz") as packed:
        packed.read()
        assert packed.mtime == EPOCH


@pytest.mark.needs("helm")
def test_helm_installs_the_packed_chart_as_the_folder(made: Path) -> None:
    image = ("--set", "image.repository=postroad")

    assert template(*image, chart=made / "postroad-0.1.0.tgz") == template(*image)


def test_the_manifest_has_what_kubectl_installs_from_the_source(made: Path) -> None:
    wanted = [*manifests(ROOT / "crds"), *manifests(ROOT / "manifests" / "install.yaml")]

    assert documents_in((made / "postroad-0.1.0.yaml").read_text()) == wanted
    assert documents_in((made / "postroad-crds-0.1.0.yaml").read_text()) == manifests(ROOT / "crds")


@pytest.mark.parametrize(
    "version",
    ["", "1", "1.2", "v1.2.3", "1.02.3", "1.2.3rc1", "1.2.3-rc", "1.2.3-dev.1", "../1.2.3"],
)
def test_a_version_without_both_forms_is_refused(version: str) -> None:
    with pytest.raises(ReleaseRefused, match=r"make release VERSION=1\.2\.3"):
        parse(version)


@pytest.mark.parametrize(
    ("semantic", "python"),
    [("1.2.3-alpha.4", "1.2.3a4"), ("1.2.3-beta.0", "1.2.3b0"), ("10.0.0-rc.12", "10.0.0rc12")],
)
def test_a_version_before_a_release_has_its_form_of_python(semantic: str, python: str) -> None:
    assert parse(semantic).python == python


def test_another_version_than_the_source_has_is_refused_with_the_places(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ReleaseRefused) as refused:
        make(source, "0.2.0-rc.1", tmp_path / "out")

    assert str(refused.value).splitlines() == [
        "the source has another version; set and commit it first:",
        "  pyproject.toml: version is 0.1.0, not 0.2.0rc1",
        "  charts/postroad/Chart.yaml: version is 0.1.0, not 0.2.0-rc.1",
        "  charts/postroad/Chart.yaml: appVersion is 0.1.0, not 0.2.0-rc.1",
        "  manifests/install.yaml does not name image: postroad:0.2.0-rc.1: run make manifests",
    ]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_release_that_is_there_is_refused(made: Path, source: Path) -> None:
    before = digests(made)

    with pytest.raises(ReleaseRefused, match="a version is released once"):
        make(source, VERSION, made.parent)

    assert digests(made) == before


def test_a_release_that_another_run_made_meanwhile_is_refused_and_stays(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_by_another(*_: object) -> dict[str, str]:
        (tmp_path / VERSION).mkdir()
        (tmp_path / VERSION / "its").touch()
        return {}

    monkeypatch.setattr(making, "_fill", made_by_another)
    with pytest.raises(ReleaseRefused, match="cannot be made"):
        make(source, VERSION, tmp_path)
    assert [each.name for each in tmp_path.rglob("*")] == [VERSION, "its"]


@pytest.mark.parametrize("name", ["README.md", "new.txt"])
def test_a_tree_with_changes_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    changed = tmp_path / "clone"
    git(source, "clone", "-q", str(source), str(changed))
    (changed / name).write_text("changed")

    with pytest.raises(ReleaseRefused, match=f"commit or remove .*\n.* {name}"):
        make(changed, VERSION, tmp_path / "out")


def test_a_folder_without_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(ReleaseRefused, match="is no clone of git"):
        make(tmp_path, VERSION, tmp_path / "out")


@pytest.mark.parametrize("content", ["no key", "rsa", None])
def test_a_key_that_cannot_sign_is_refused_before_anything_is_made(
    source: Path, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "key.pem"
    if content == "rsa":
        command = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(path)]
        subprocess.run(command, check=True, capture_output=True)
    elif content is not None:
        path.write_text(content)

    with pytest.raises(ReleaseRefused, match=r"key\.pem is no (private key|key of P-256)"):
        make(source, VERSION, tmp_path / "out", path)

    assert not (tmp_path / "out").exists()


def test_without_a_docker_engine_images_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert images.missing_builder() == "no Docker engine answers"


@pytest.mark.parametrize(
    ("buildx", "reason"),
    [
        ("exit 1", "docker has no buildx"),
        ("echo Platforms: linux/amd64", "buildx has no builder for linux/arm64"),
        ("echo Platforms: linux/amd64, linux/arm64", ""),
    ],
)
def test_a_builder_has_to_make_images_for_both_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buildx: str, reason: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$1" = info ] && exit 0\n{buildx}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert images.missing_builder() == reason


@pytest.mark.needs("buildah")
def test_buildah_gives_the_same_archive_of_the_same_files_and_lists_what_it_lacks(
    tmp_path: Path,
) -> None:
    digests = []
    for at in (1, 2**30):
        folder, out = tmp_path / f"source{at}", tmp_path / f"out{at}"
        folder.mkdir()
        out.mkdir()
        (folder / "Dockerfile").write_text(
            "ARG BASE=none\nFROM $BASE\nCOPY file /\nARG REVISION\nLABEL revision=$REVISION\n"
        )
        (folder / "file").write_text("content")
        os.utime(folder / "file", (at, at))
        commit = Commit("0" * 40, EPOCH)
        skipped = images.build_here(folder, out, parse(VERSION), commit, "scratch")
        (archive,) = out.iterdir()
        digests.append(sha256(archive))

    assert archive.name == "postroad-0.1.0.oci.tar"
    assert digests[0] == digests[1]
    assert len(skipped) == 1
    with tarfile.open(archive) as files:
        names = files.getnames()
    assert {"index.json", "oci-layout"} < set(names)


def test_a_base_without_buildah_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_BUILDAH", str(tmp_path / "buildah"))

    with pytest.raises(ReleaseRefused, match="buildah, which is not installed"):
        make(source, VERSION, tmp_path / "out", base="python:3.11")

    assert not list((tmp_path / "out").iterdir())
