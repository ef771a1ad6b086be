"""A whole release with its image: made twice, verified by cosign, and its bill of materials beside
what syft finds in the image and in an installation of the wheel."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from release import programs
from release.checksums import NAME, sha256
from release.making import LISTING, make
from release.signatures import PUBLIC_KEY
from stack import images
from stack.progress import Progress
from support.release_source import committed, git, signing_key
from support.repository import ROOT, needs_a_clone

VERSION = "0.1.0"
PAGE = ROOT / "docs" / "contributing" / "release.md"
COMMANDS = re.compile(r"^\$ ((?:sha256sum|base64|cosign) .*)$", re.MULTILINE)

OFFLINE = {"SIGSTORE_ROOT_FILE": "none"}
"""With it cosign does not look for the public services of Sigstore, which no key of ours is in."""

pytestmark = [
    needs_a_clone,
    pytest.mark.needs("release", "buildah"),
    pytest.mark.timeout(1800, func_only=True),
]


class Package(NamedTuple):
    """A package as syft tells it, by a name that is the same in all spellings of it."""

    kind: str
    name: str
    version: str


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive of a base image, which buildah has, too, as long as the module runs."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    images.save_base(archive, Progress())
    is_there = (
        subprocess.run(["buildah", "inspect", "--type", "image", images.BASE]).returncode == 0
    )
    if not is_there:
        subprocess.run(["buildah", "pull", "-q", f"docker-archive:{archive}"], check=True)
    yield archive
    if not is_there:
        subprocess.run(["buildah", "rmi", "--force", images.BASE], check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return committed(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signing_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def made(source: Path, key: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release with the image of this machine's processor."""
    return make(source, VERSION, tmp_path_factory.mktemp("out"), key, images.BASE)


def told(*command: str | Path, **environment: str) -> str:
    answered = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return answered.stdout


def told_by_syft(*command: str | Path) -> set[Package]:
    """Return the packages that a command of syft lists."""
    output = told(
        *(programs.syft(), *command, "-q", "-o", "syft-json"), SYFT_CHECK_FOR_APP_UPDATE="false"
    )
    return {
        Package(each["type"], canonicalize_name(each["name"]), each["version"])
        for each in json.loads(output)["artifacts"]
    }


def of_kind(packages: set[Package], kind: str) -> set[Package]:
    return {each for each in packages if each.kind == kind}


def bill_of(made: Path) -> Path:
    return made / f"postroad-{VERSION}.spdx.json"


def listed(made: Path) -> tuple[set[Package], set[Package]]:
    """Return the packages of the bill that are for this machine, and those that are for others."""
    here: set[Package] = set()
    elsewhere: set[Package] = set()
    for each in json.loads(bill_of(made).read_text())["packages"]:
        package = Package("python", canonicalize_name(each["name"]), each["versionInfo"])
        marker = each.get("summary", "").removeprefix("where ")
        (here if not marker or Marker(marker).evaluate() else elsewhere).add(package)
    return here, elsewhere


def test_a_second_release_elsewhere_has_the_same_digests_image_included(
    made: Path, source: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "clone"
    git(source, "clone", "-q", str(source), str(elsewhere))
    monkeypatch.setenv("TZ", "Asia/Kathmandu")

    again = make(elsewhere, VERSION, tmp_path / "out", key, images.BASE)

    assert f"postroad-{VERSION}.oci.tar" in json.loads((made / LISTING).read_text())["files"]
    assert {each.name: sha256(each) for each in again.iterdir()} == {
        each.name: sha256(each) for each in made.iterdir()
    }


def test_the_image_has_no_day_of_its_build(made: Path) -> None:
    users = [each.split(":") for each in last_lines(made, "etc/shadow")]

    assert [changed for name, _, changed, *_ in users if name == "postroad"] == [""]


def last_lines(made: Path, name: str) -> list[str]:
    """Return the lines of a file of the image, from the last layer that has it."""
    with tarfile.open(made / f"postroad-{VERSION}.oci.tar") as archive:

        def blob(descriptor: Mapping[str, str]) -> IO[bytes]:
            content = archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
            assert content is not None
            return content

        index = archive.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
        for layer in reversed(json.load(blob(manifest))["layers"]):
            with tarfile.open(fileobj=blob(layer)) as files:
                if name in files.getnames() and (found := files.extractfile(name)):
                    return found.read().decode().splitlines()
    return []


def test_the_commands_of_the_page_verify_a_release_and_refuse_a_changed_one(
    made: Path, key: Path, tmp_path: Path
) -> None:
    commands = [each.replace("1.2.3", VERSION) for each in COMMANDS.findall(PAGE.read_text())]
    path = f"{programs.cosign().parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | OFFLINE

    def verifies(command: str, folder: Path) -> bool:
        shell = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.run(shell, cwd=folder, env=environment).returncode == 0

    changed = tmp_path / "changed"
    changed.mkdir()
    for each in made.iterdir():
        content = each.read_bytes()
        is_kept = each.suffix in (".sig", ".jsonl") or each.name == PUBLIC_KEY
        (changed / each.name).write_bytes(content if is_kept else content + b"\n")

    assert [shlex.split(each)[0] for each in commands].count("cosign") == 2
    assert [each for each in commands if not verifies(each, made)] == []
    assert [each for each in commands if verifies(each, changed)] == []


def test_cosign_refuses_the_signatures_of_another_key(made: Path, tmp_path: Path) -> None:
    another = signing_key(tmp_path)
    public = tmp_path / PUBLIC_KEY
    told("openssl", "pkey", "-in", another, "-pubout", "-out", public)
    options = ["--key", str(public), "--insecure-ignore-tlog=true"]
    command = [str(programs.cosign()), "verify-blob", *options]
    command += ["--signature", str(made / f"{NAME}.sig"), str(made / NAME)]

    assert subprocess.run(command, env=os.environ | OFFLINE).returncode != 0


def test_the_image_has_the_packages_of_the_bill_and_debian_s_of_its_base(
    made: Path, base: Path
) -> None:
    found = told_by_syft("scan", f"oci-archive:{made / f'postroad-{VERSION}.oci.tar'}")
    of_base = told_by_syft("scan", f"docker-archive:{base}")
    here, _ = listed(made)

    assert found == here | of_kind(of_base, "deb")
    assert len(of_kind(of_base, "deb")) > 50


def test_an_installation_of_the_wheel_has_the_packages_of_the_bill(
    made: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    told(sys.executable, "-m", "venv", "--without-pip", environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "-q")
    told(*pip, "--require-hashes", "-r", ROOT / "locks" / "run.txt")
    told(*pip, "--no-deps", made / f"postroad-{VERSION}-py3-none-any.whl")

    here, _ = listed(made)
    assert of_kind(told_by_syft("scan", f"dir:{environment}"), "python") == here


def test_the_bill_is_valid_and_one_without_its_licence_is_not(made: Path, tmp_path: Path) -> None:
    bill = json.loads(bill_of(made).read_text())
    wrong = tmp_path / "wrong.spdx.json"
    wrong.write_text(json.dumps(bill | {"dataLicense": "MIT"}))

    assert subprocess.run([*programs.validator(), "-i", bill_of(made)]).returncode == 0
    assert subprocess.run([*programs.validator(), "-i", wrong]).returncode != 0


def test_syft_reads_every_package_of_the_bill(made: Path) -> None:
    here, elsewhere = listed(made)

    assert told_by_syft("convert", bill_of(made)) == here | elsewhere
