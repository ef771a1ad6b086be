"""Images of the Docker leg: pulled where they can be, else equal ones made on this machine.

What is made here has the name of the real image and does what the stack asks of it: the same
RabbitMQ, Cassandra and versitygw as the native servers.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stack import cassandra, folders, images, packages, s3
from stack.cache import Entry
from stack.errors import StackError, StepFailed
from stack.progress import Progress
from stack.rabbitmq import RabbitMQ

SOURCES = folders.SOURCES / "stand_ins"
PULL_SECONDS = 900
RABBITMQ_BASE = "postroad-stack/debian-rabbitmq"


def is_here(image: str) -> bool:
    """Return whether the engine has an image."""
    command = ["docker", "image", "inspect", image]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def was_made_here(image: str) -> bool:
    """Return whether an image that the engine has did not come from a registry."""
    command = ["docker", "image", "inspect", "--format", "{{len .RepoDigests}}", image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "0"


def obtain(image: str, progress: Progress, make: Callable[[Progress], None]) -> None:
    """Pull an image unless it is here; where it cannot be pulled, make an equal one.

    Raises:
        StackError: it can neither be pulled nor made.
    """
    if is_here(image):
        return
    command = ["docker", "pull", "--quiet", image]
    try:
        with progress.step(f"pull {image}"):
            subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=PULL_SECONDS
            )
        return
    except subprocess.TimeoutExpired:
        reason = f"no answer in {PULL_SECONDS} s"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
    if not packages.may_install():
        raise StackError(f"docker pull {image}: {reason}")
    progress.say(f"{image} cannot be pulled ({reason}): an equal one is made from packages")
    make(progress)


def build(image: str, context: Path, log: Path, *options: str) -> None:
    """Build an image with the engine.

    Raises:
        StepFailed: it failed.
    """
    command = ["docker", "build", "--tag", image, *options, str(context)]
    with log.open("ab") as output:
        code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if code:
        raise StepFailed(f"docker build {image}", log)


def load(archive: Path) -> None:
    """Give the engine the images of an archive.

    Raises:
        StackError: it refused them.
    """
    with archive.open("rb") as content:
        done = subprocess.run(
            ["docker", "load", "--quiet"],
            stdin=content,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise StackError(f"docker load {archive}: {done.stderr.strip()}")


def ensure_base(progress: Progress) -> None:
    """Give the engine the base of all that is made here: Debian with Python, under its own name."""
    if not is_here(images.BASE_NAME):
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "base.tar"
            images.save_base(archive, progress)
            load(archive)


def ensure_release(progress: Progress) -> None:
    """Give the engine the release of Debian with RabbitMQ, the base of its image."""
    if not is_here(RABBITMQ_BASE):
        root = _made(RabbitMQ.release(), progress) / "root"
        command = ["docker", "import", "-", RABBITMQ_BASE]
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
            done = subprocess.run(
                command, stdin=packed.stdout, capture_output=True, text=True, check=False
            )
            # Waited for only where the engine has read all: else it would write for ever.
            is_whole = done.returncode == 0 and packed.wait() == 0
        if not is_whole:
            raise StackError(f"docker import {RABBITMQ_BASE}: {done.stderr.strip()}")


def server(name: str, image: str, progress: Progress) -> None:
    """Make the image of a server: `rabbitmq`, `cassandra` or `s3`."""
    ensure_release(progress) if name == "rabbitmq" else ensure_base(progress)
    with context(name, *_contents(name, progress)) as folder, progress.step(f"make {image}"):
        build(image, folder, folders.log(f"stand-in-{name}"))


def _contents(name: str, progress: Progress) -> list[tuple[Path, str]]:
    """Return the files of the cache that an image is made of, and their names in its context."""
    if name == "cassandra":
        return [
            (_made(cassandra.jars(cassandra.VERSION), progress), "jars"),
            (cassandra.OPTIONS, "jvm.options"),
        ]
    if name == "s3":
        return [(_made(s3.program(), progress) / "versitygw", "versitygw")]
    return []


def _made(entry: Entry, progress: Progress) -> Path:
    return entry.ensure(progress)


@contextmanager
def context(name: str, *contents: tuple[Path, str]) -> Iterator[Path]:
    """Yield a build context: the files of a folder of `stand_ins`, and more beside them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        shutil.copytree(SOURCES / name, folder)
        for source, target in contents:
            place = folder / target
            if source.is_dir():
                shutil.copytree(source, place)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)
        yield folder
