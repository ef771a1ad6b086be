"""Names of images, and the machine's settings that only a build sees."""

import configparser
import json
import os
import tarfile
from pathlib import Path

import pytest

from stack import archives, images
from stack.errors import StackError
from stack.progress import Progress


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("postroad:1", "docker.io/library/postroad:1"),
        ("postroad/worker:1", "docker.io/postroad/worker:1"),
        ("store.example.org/worker:1", "store.example.org/worker:1"),
        ("localhost:5000/worker:1", "localhost:5000/worker:1"),
    ],
)
def test_a_name_is_completed_as_kubernetes_does(name: str, full: str) -> None:
    assert images.full_name(name) == full


def test_a_folder_without_a_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="Dockerfile"):
        images.build(tmp_path, "a:1", Progress(quiet=True))


def test_pip_settings_of_the_machine_are_given_to_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")

    with images.machine_settings() as mounts:
        written = Path(next(m for m in mounts if "/etc/pip.conf" in m).split(":")[0])
        settings = configparser.RawConfigParser()
        settings.read(written)

    assert settings["global"]["find-links"] == "/mnt"
    assert settings["global"]["default-timeout"] == "180"
    assert f"{wheels}:/mnt:ro" in mounts
    assert not written.exists()


def test_an_archive_names_its_image_and_holds_its_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "pause").write_text("#!")

    archives.write_archive(tmp_path / "a.tar", "postroad.local/pause:1", root, ["/pause"])

    with tarfile.open(tmp_path / "a.tar") as archive:
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        manifest = index["manifests"][0]
        digest = manifest["digest"].removeprefix("sha256:")
        layers = json.load(archive.extractfile(f"blobs/sha256/{digest}"))["layers"]  # type: ignore[arg-type]
        content = archive.extractfile(f"blobs/sha256/{layers[0]['digest'].removeprefix('sha256:')}")
        with tarfile.open(fileobj=content) as layer:
            names = layer.getnames()
    assert manifest["annotations"]["io.containerd.image.name"] == "postroad.local/pause:1"
    assert "./pause" in names


def test_the_archives_used_last_are_kept(tmp_path: Path) -> None:
    for number in range(images.KEPT_ARCHIVES + 2):
        archive = tmp_path / f"image-{number % 3}" / f"key-{number}" / "image.tar"
        archive.parent.mkdir(parents=True)
        archive.touch()
        os.utime(archive.parent, (number, number))
    (tmp_path / "store" / "root").mkdir(parents=True)

    images._forget_old(tmp_path)

    kept = {path.parent.name for path in tmp_path.glob("*/*/image.tar")}
    assert kept == {f"key-{number}" for number in range(2, images.KEPT_ARCHIVES + 2)}
    assert (tmp_path / "store" / "root").is_dir()
