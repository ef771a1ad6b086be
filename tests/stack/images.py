"""Container images from Dockerfiles, with no engine and no registry: buildah in a plain chroot.

The stack makes the one base image that a Dockerfile may name from Debian's packages, under the name
of the real one, with `python` and `pip` in /usr/local as there. So a container engine can use the
same Dockerfile. A build mounts the machine's certificates and pip settings; they do not stay in the
image. An image whose context has not changed is not built again.
"""

import configparser
import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stack import cache, contexts, folders, locks, packages
from stack.cache import Entry
from stack.errors import StackError
from stack.progress import Progress

BASE = "docker.io/library/python:3.11-slim-bookworm"
BASE_NAME = "python:3.11-slim-bookworm"
"""The same, as a Dockerfile has it."""

RECIPE = "2"
"""Counts the changes of the way in which the base is made; old images are then built anew."""
DEBIAN = ("buildah", "debootstrap", "ca-certificates")
INCLUDED = "python3,python3-venv,ca-certificates,netbase,tzdata"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
KEPT_ARCHIVES = 6
"""Archives of images that are kept, those used last; some 400 MB each."""
KEPT_LAYERS = 40
"""Layers that are kept for the next build; when there are more, all but the base are dropped. Some
100 MB each."""
UNNEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "var/log")


def build(
    context: Path,
    name: str,
    progress: Progress,
    dockerfile: Path | None = None,
    target: str | None = None,
    more: Mapping[str, Path] | None = None,
) -> Path:
    """Build an image; returns its archive, at once when the context has not changed. `target`: a
    stage of the Dockerfile, the last one by default. `more`: further contexts by their names, whose
    content follows from the first one's.

    Raises:
        StepFailed: the build failed; its log has the reason.
        MissingRequirement: this machine cannot build images.
    """
    packages.ensure(DEBIAN, progress)
    entry = _entry(context, name, progress, dockerfile, target, more)
    archive = entry.ensure(progress) / "image.tar"
    os.utime(entry.path)
    _forget_old(folders.cache_directory() / "images")
    return archive


def missing(context: Path, name: str) -> list[str]:
    """Return what a build would make first: `image`, and `base image` before the first of all."""
    if _entry(context, name, Progress(quiet=True)).path.is_dir():
        return []
    return ["image"] if _base_mark().exists() else ["base image", "image"]


def _entry(
    context: Path,
    name: str,
    progress: Progress,
    dockerfile: Path | None = None,
    target: str | None = None,
    more: Mapping[str, Path] | None = None,
) -> Entry:
    dockerfile = dockerfile or context / "Dockerfile"
    chosen = contexts.options(target, more)
    if not dockerfile.is_file():
        raise StackError(f"there is no {dockerfile}")
    name = full_name(name)

    def make(folder: Path, log: Path) -> None:
        # One build at a time: two at once would not be faster, and one could use layers that the
        # other drops.
        with locks.held(_store() / "lock", lambda: progress.say("another image is built, waiting")):
            _ensure_base(log)
            _drop_layers(log)
            with machine_settings() as mounts:
                command = _buildah(
                    *("build", "--layers", "--isolation", "chroot", "--pull-never"),
                    *("--network", "host", *mounts, *chosen),
                    *("--file", dockerfile, "--tag", name, context),
                )
                cache.run(command, log)
            target = f"docker-archive:{folder}/image.tar:{name}"
            cache.run(_buildah("push", "-q", name, target), log)

    digest = contexts.digest(context)
    key = cache.key_of(name, RECIPE, target or "", dockerfile.read_bytes(), digest)
    safe = name.replace("/", "_").replace(":", "_")
    return Entry(f"images/{safe}", key, f"image {name}: build", make)


def save_base(archive: Path, progress: Progress) -> None:
    """Write the base image that is made here to an archive. Errors as `build`."""
    packages.ensure(DEBIAN, progress)
    log = folders.log("base-image")
    if not _base_mark().exists():
        waiting = "another image is built, waiting"
        with (
            locks.held(_store() / "lock", lambda: progress.say(waiting)),
            progress.step("base image"),
        ):
            _ensure_base(log)
    # Builds beside this one add layers, and drop any but those of the base.
    cache.run(_buildah("push", "-q", BASE, f"docker-archive:{archive}:{BASE}"), log)


def full_name(name: str) -> str:
    """Return an image's name as Kubernetes completes it.

    >>> full_name("postroad:1"), full_name("postroad/worker:1"), full_name("localhost/a:1")
    ('docker.io/library/postroad:1', 'docker.io/postroad/worker:1', 'localhost/a:1')
    """
    first, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    if "." in first or ":" in first or first == "localhost":
        return name
    return f"docker.io/{name}"


def _store() -> Path:
    folder = folders.cache_directory() / "images" / "store"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _buildah(*arguments: str | Path) -> list[str | Path]:
    root = _store()
    return [
        *("buildah", "--root", root / "root", "--runroot", root / "run"),
        *("--storage-driver", "overlay", *arguments),
    ]


def _base_mark() -> Path:
    return _store() / f"base-{RECIPE}"


def _ensure_base(log: Path) -> None:
    mark = _base_mark()
    if mark.exists():
        return
    with tempfile.TemporaryDirectory(dir=_store()) as temporary:
        root = Path(temporary) / "root"
        cache.run(
            ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", root], log
        )
        # As in the real image, Python and its packages are found in /usr/local.
        cache.run(["chroot", root, "python3", "-m", "venv", "/usr/local"], log)
        for unneeded in UNNEEDED:
            for path in (root / unneeded).iterdir():
                _remove(path)
        # A mount point for the machine's settings; without it, each build would leave one behind.
        (root / "etc/pip.conf").touch()
        container = "postroad-base"
        # Left by a build that was cut short.
        subprocess.run(_buildah("rm", container), capture_output=True, check=False)
        for command in (
            ("from", "--name", container, "scratch"),
            ("add", "-q", container, root, "/"),
            ("config", "--cmd", "python3", "--env", f"PATH={_PATH}", container),
            ("commit", "-q", "--rm", container, BASE),
        ):
            cache.run(_buildah(*command), log)
    mark.touch()


def _drop_layers(log: Path) -> None:
    """Drop the layers that earlier builds left for later ones, once there are many."""
    base = _listed("images", "--quiet", "--no-trunc", BASE)
    others = sorted(set(_listed("images", "--all", "--quiet", "--no-trunc")) - set(base))
    if len(others) <= KEPT_LAYERS:
        return
    # Builds that were cut short leave containers, which would keep their layers.
    cache.run(_buildah("rm", "--all"), log)
    cache.run(_buildah("rmi", "--force", *others), log)


def _listed(*arguments: str) -> list[str]:
    answer = subprocess.run(_buildah(*arguments), capture_output=True, text=True, check=True)
    return answer.stdout.split()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@contextlib.contextmanager
def machine_settings() -> Iterator[Sequence[str]]:
    """Yield mounts with the machine's certificates and pip settings, for a build only."""
    with tempfile.TemporaryDirectory() as temporary:
        settings = configparser.RawConfigParser()
        settings.add_section("global")
        for path in (
            Path("/etc/pip.conf"),
            Path.home() / ".pip" / "pip.conf",
            Path.home() / ".config" / "pip" / "pip.conf",
        ):
            settings.read(path)
        for name, value in os.environ.items():
            if name.startswith("PIP_") and name not in (
                "PIP_CONFIG_FILE",
                "PIP_REQUIRE_VIRTUALENV",
            ):
                settings.set("global", name.removeprefix("PIP_").lower().replace("_", "-"), value)
        settings.remove_option("global", "cert")
        mounts = []
        certificates = ssl.get_default_verify_paths().cafile or CERTIFICATES
        if Path(certificates).is_file():
            mounts += ["--volume", f"{certificates}:{CERTIFICATES}:ro"]
            settings.set("global", "cert", CERTIFICATES)
        wheels = settings.get("global", "find-links", fallback="")
        if wheels and Path(wheels).is_dir():
            mounts += ["--volume", f"{wheels}:/mnt:ro"]
            settings.set("global", "find-links", "/mnt")
        elif wheels.startswith("/"):
            settings.remove_option("global", "find-links")
        written = Path(temporary) / "pip.conf"
        with written.open("w") as file:
            settings.write(file)
        mounts += ["--volume", f"{written}:/etc/pip.conf:ro"]
        yield mounts


def _forget_old(folder: Path) -> None:
    """Remove the archives whose last use is longest ago."""
    entries = [archive.parent for archive in folder.glob("*/*/image.tar")]
    entries = [entry for entry in entries if ".partial-" not in entry.name]
    entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for old in entries[KEPT_ARCHIVES:]:
        cache.remove_tree(old)
        with contextlib.suppress(OSError):
            old.parent.rmdir()
