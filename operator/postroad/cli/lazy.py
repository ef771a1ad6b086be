"""Commands that are imported when they are called or listed, and how their errors are printed."""

import difflib
import errno
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from postroad.domain.error_codes import FAILED, codes_of
from postroad.errors import EXTRAS, NotInstalled, PostroadError, lacking_library

Load = Callable[[], click.Command]


def load(place: str) -> click.Command:
    """Return the command at `module:attribute`."""
    module, _, attribute = place.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use. It prints an error in one
    line, with what to do about it."""

    def __init__(self, *args: Any, lazy: Mapping[str, Load], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        try:
            return self._lazy[cmd_name]()
        except ImportError as error:
            if (missing := _missing(error, cmd_name)) is None:
                raise
            return _unusable(cmd_name, missing)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if ctx.resilient_parsing or name.startswith("-") or name in known:
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise click.UsageError(f"No such command {name!r}.{hint}", ctx)

    def invoke(self, ctx: click.Context) -> object:
        if os.environ.get("NO_COLOR"):  # no-color.org
            ctx.color = False
        try:
            return super().invoke(ctx)
        except PostroadError as error:
            _end_by(error)
        except ImportError as error:
            if (missing := _missing(error, ctx.invoked_subcommand)) is None:
                raise
            _end_by(missing)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has what it wanted: click ends quietly
                raise
            click.echo(f"postroad: {error}", err=True)
            sys.exit(FAILED)


def _end_by(error: PostroadError) -> NoReturn:
    click.echo(f"postroad: {error.explain()}", err=True)
    sys.exit(codes_of(error).exit)


_OWN_EXTRAS = ("console", "intake", "operator", "pipeline")
"""The commands with an extra of their name, which brings what others have by `smtp`."""


def _missing(error: ImportError, command: str | None) -> NotInstalled | None:
    """Return what a command lacks; None: the import failed otherwise."""
    if (library := lacking_library(error)) is None:
        return None
    is_shared = EXTRAS[library] == "smtp" and command in _OWN_EXTRAS
    return NotInstalled.lacking(library, command if is_shared else None)


def _unusable(name: str, missing: NotInstalled) -> click.Command:
    """Return a command that is listed with what it lacks, and ends by that."""

    def end(arguments: tuple[str, ...]) -> None:
        raise missing

    arguments = click.Argument(("arguments",), nargs=-1, type=click.UNPROCESSED)
    anything = {"ignore_unknown_options": True, "help_option_names": []}
    text = missing.explain()
    return click.Command(name, anything, end, [arguments], help=text, short_help=text)
