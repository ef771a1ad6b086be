"""`postroad users`: the users of a file, who send by logging in."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from postroad.errors import InvalidInput, InvalidSettings
from postroad.intake.logins.passwords import record_of
from postroad.intake_settings.user_file import UserFile, UserRecord, new_secret, read_users, written

MAX_PASSWORD = 1024

_file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file of users, which `users.file` of a file of intake names.",
)
_tenant_option = click.option("--tenant", help="The tenant of the user's mail.")


@click.group()
def users() -> None:
    """Users of a file, who send by logging in. An intake that runs reads the file again."""


@users.command("add")
@click.argument("name")
@_file_option
@_tenant_option
def add(name: str, file: Path, tenant: str | None) -> None:
    """Add a user, with the password that standard input has. Creates a missing file."""
    record = record_of(name, _password(), tenant)
    with _changed(file) as (known, keep):
        if any(each.name == name for each in known.users):
            raise InvalidInput(f"{file} has this user", hint="change the password: users passwd")
        keep((*known.users, record))
    click.echo("added")


@users.command("passwd")
@click.argument("name")
@_file_option
def passwd(name: str, file: Path) -> None:
    """Give a user the password that standard input has."""
    password = _password()
    with _changed(file) as (known, keep):
        before = _found(known, name, file)
        record = record_of(name, password, before.tenant)
        keep(tuple(record if each is before else each for each in known.users))
    click.echo("changed")


@users.command("remove")
@click.argument("name")
@_file_option
def remove(name: str, file: Path) -> None:
    """Remove a user, who can log in no more. Sessions that are open go on for an hour at most."""
    with _changed(file) as (known, keep):
        before = _found(known, name, file)
        keep(tuple(each for each in known.users if each is not before))
    click.echo("removed")


@users.command("list")
@_file_option
def list_users(file: Path) -> None:
    """List users, each with its tenant."""
    for each in read_users(file).users:
        click.echo(each.name if each.tenant is None else f"{each.name}\t{each.tenant}")


def _found(known: UserFile, name: str, file: Path) -> UserRecord:
    for each in known.users:
        if each.name == name:
            return each
    raise InvalidInput(f"{file} has no such user", hint="list them: users list")


def _password() -> str:
    """Return the password: asked for at a terminal, else the first line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    text = sys.stdin.read(MAX_PASSWORD + 1)
    if len(text) > MAX_PASSWORD:
        raise InvalidInput(f"a password has at most {MAX_PASSWORD} characters")
    return text.partition("\n")[0].rstrip("\r")


Keep = Callable[[tuple[UserRecord, ...]], None]


@contextmanager
def _changed(file: Path) -> Iterator[tuple[UserFile, Keep]]:
    """Give the users of a file, and what writes them; other commands wait meanwhile. The file is
    replaced whole, readable by its owner and group alone."""
    kept: list[tuple[UserRecord, ...]] = []
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidSettings(f"{file.parent} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = read_users(file) if file.exists() else UserFile(secret=new_secret())
        yield known, kept.append
        _replace(file, UserFile(secret=known.secret, users=kept[-1]))
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(file: Path, users: UserFile) -> None:
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".users-", delete=False) as new:
        try:
            if file.exists():
                its = file.stat()
                os.fchmod(new.fileno(), its.st_mode & 0o7777)
                os.fchown(new.fileno(), its.st_uid, its.st_gid)
            new.write(written(users))
            new.flush()
            os.fsync(new.fileno())
            Path(new.name).replace(file)
        except BaseException:
            Path(new.name).unlink(missing_ok=True)
            raise
