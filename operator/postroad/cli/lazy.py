"""Commands that are imported when they are called or listed, and how their errors are printed."""

import errno
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from postroad.domain.error_codes import FAILED, codes_of
from postroad.errors import PostroadError

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
        return self._lazy[cmd_name]()

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PostroadError as error:
            click.echo(f"postroad: {error.explain()}", err=True)
            sys.exit(codes_of(error).exit)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has what it wanted: click ends quietly
                raise
            click.echo(f"postroad: {error}", err=True)
            sys.exit(FAILED)
