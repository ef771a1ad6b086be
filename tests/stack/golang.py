"""Programs built from Go modules, versions pinned, each with a build cache of its own.

A Go in PATH that is new enough builds them. Otherwise an older Go (Debian's, when there is no
other) fetches a newer toolchain, which is a Go module and verified like any other.

The build cache of Kubernetes takes some 4 GB, so it is removed once the program exists. An
interrupted build leaves it, which makes the next build short. The stack uses a GOCACHE or
GOMODCACHE that the user chose, and removes nothing from it.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from stack import cache, folders, packages
from stack.cache import Entry
from stack.errors import MissingRequirement
from stack.progress import Progress

OLDEST = (1, 26)
"""The oldest Go that builds all programs: Helm's go.mod requires it."""

TOOLCHAIN = "go1.26.8"
"""The toolchain that is fetched where no such Go is installed."""

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def go_version() -> str:
    """Return the version of the Go that builds here, or that will once it is fetched.

    Raises:
        MissingRequirement: there is none, and none can be had.
    """
    present = _version_in_path()
    if present is not None and _is_new_enough(present):
        return present
    if present is None and not packages.may_install():
        oldest = ".".join(map(str, OLDEST))
        raise MissingRequirement(
            f"building the stack's servers needs Go {oldest} or newer in PATH"
            " (on Debian, root gets one by itself)"
        )
    return TOOLCHAIN


def toolchain() -> Sequence[Entry]:
    """Return the cache entry of a newer Go, if one is needed: make it before the programs."""
    present = _version_in_path()
    if present is not None and _is_new_enough(present):
        return ()
    return (_fetched(),)


def _fetched() -> Entry:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    module = f"golang.org/toolchain@v0.0.1-{TOOLCHAIN}.linux-{machine}"

    def make(folder: Path, log: Path) -> None:
        packages.ensure(["golang-go"], Progress(quiet=True))
        modules = folder / "modules"
        environment = {"GOFLAGS": _flags("-modcacherw"), "GOMODCACHE": str(modules)}
        cache.run(["go", "mod", "download", module], log, environment=environment, directory=folder)
        (modules / module).rename(folder / "go")
        cache.remove_tree(modules)
        # Modules hold no modes: these files are its programs.
        for program in [*folder.glob("go/bin/*"), *folder.glob("go/pkg/tool/*/*")]:
            program.chmod(0o755)

    return Entry("go", cache.key_of(module), f"{TOOLCHAIN}: download", make)


def _version_in_path() -> str | None:
    program = shutil.which("go")
    return None if program is None else _version_of(program)


@functools.cache
def _version_of(program: str) -> str:
    answer = subprocess.run(
        [program, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",  # a go.mod in a folder above would be used
    )
    return answer.stdout.strip()


def _is_new_enough(version: str) -> bool:
    found = re.match(r"go(\d+)\.(\d+)", version)
    # No number: a development version.
    return found is None or (int(found[1]), int(found[2])) >= OLDEST


def _flags(*more: str) -> str:
    return " ".join([os.environ.get("GOFLAGS", ""), *more]).strip()


def build(
    name: str,
    command: list[str],
    folder: Path,
    log: Path,
    directory: Path | None = None,
    newer: str | None = None,
) -> None:
    """Run a `go` command that leaves its program in `folder`, by a newer toolchain if one is given
    (`go1.27.4`), which Go fetches by itself."""
    _go(name, command, folder, log, directory or folder, newer)
    cache.remove_tree(_own(name))


def _own(name: str) -> Path:
    return folders.cache_directory() / "go" / name


def _modules(name: str) -> Path:
    return Path(os.environ.get("GOMODCACHE") or _own(name) / "modules")


def _go(
    name: str,
    command: list[str],
    folder: Path,
    log: Path,
    directory: Path,
    newer: str | None = None,
) -> None:
    environment = {
        "CGO_ENABLED": "0",
        "GOBIN": str(folder),
        "GOFLAGS": _flags("-modcacherw", "-buildvcs=false"),
        "GOCACHE": os.environ.get("GOCACHE") or str(_own(name) / "build"),
        "GOMODCACHE": str(_modules(name)),
        # A published module has its go.work, and not the folders that this names.
        "GOWORK": "off",
    }
    program = "go"
    for fetched in toolchain():
        program = str(fetched.path / "go" / "bin" / "go")
        environment |= {"GOROOT": str(fetched.path / "go"), "GOTOOLCHAIN": "local"}
    if newer is not None:
        environment["GOTOOLCHAIN"] = newer
    cache.run([program, *command], log, environment=environment, directory=directory)


def installed(name: str, package: str, version: str, expectation: str) -> Entry:
    """Return the cache entry of a program that `go install` builds."""

    def make(folder: Path, log: Path) -> None:
        build(name, ["install", "-trimpath", f"{package}@{version}"], folder, log)

    return Entry(
        name, cache.key_of(package, version, go_version()), f"{name}: build ({expectation})", make
    )


def installed_from_inside(
    name: str, module: str, package: str, version: str, expectation: str, nested: Sequence[str] = ()
) -> Entry:
    """Return the cache entry of a program of a module that replaces modules it requires. It is
    built in the module's own folder, because `go install` refuses replacements from outside.

    `nested`: modules that its repository replaces by folders, which a published module lacks. They
    are taken as published, verified by Go's checksum database.
    """

    def make(folder: Path, log: Path) -> None:
        directory = downloaded(name, f"{module}@{version}", folder, log)
        for each in nested:
            _go(name, ["mod", "edit", f"-dropreplace={each}"], folder, log, directory)
        mode = ["-mod=mod"] if nested else []
        command = ["build", "-trimpath", *mode, "-o", str(folder / name), package]
        build(name, command, folder, log, directory)

    return Entry(
        name,
        cache.key_of(module, package, version, *nested, go_version()),
        f"{name}: build ({expectation})",
        make,
    )


def made_from(
    name: str, module: str, version: str, recipe: str, convert: Callable[[Path, Path], None]
) -> Entry:
    """Return the cache entry of what a function makes of a module's files: it gets the module's
    folder and the entry's. `recipe` counts the function's changes."""

    def make(folder: Path, log: Path) -> None:
        convert(downloaded(name, f"{module}@{version}", folder, log), folder)
        cache.remove_tree(_own(name))

    return Entry(name, cache.key_of(module, version, recipe), f"{name}: download", make)


def made(entry: Entry) -> Path:
    """Return the folder of a program that Go builds, which this makes where it is not there."""
    progress = Progress()
    for each in (*toolchain(), entry):
        each.ensure(progress)
    return entry.path


def downloaded(name: str, module: str, folder: Path, log: Path) -> Path:
    """Download a module (`path@version`), without those that it requires; return its folder."""
    _go(name, ["mod", "download", module], folder, log, folder)
    return _modules(name) / module
