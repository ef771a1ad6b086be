"""`postroad …`: one command, a subcommand per task; heavy imports only when chosen.

Exit codes: 0 done, 1 refused or failed, 2 usage, 75 try again later (sysexits' EX_TEMPFAIL).
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from postroad.errors import InvalidQueueName, InvalidQueueURL, PostroadError

COMMANDS: dict[str, str] = {
    "enqueue": "postroad.cli.enqueue:enqueue",
    "browse": "postroad.cli.inspection:browse",
    "show": "postroad.cli.inspection:show",
    "size": "postroad.cli.inspection:size",
    "ages": "postroad.cli.inspection:ages",
    "dead-letters": "postroad.cli.inspection:dead_letters",
    "remove": "postroad.cli.administration:remove",
    "purge": "postroad.cli.administration:purge",
    "flush": "postroad.cli.administration:flush",
    "hold": "postroad.cli.administration:hold",
    "release": "postroad.cli.administration:release",
    "requeue": "postroad.cli.administration:requeue",
    "discard": "postroad.cli.administration:discard",
    "republish": "postroad.cli.administration:republish",
    "worker": "postroad.cli.worker:worker",
    "intake": "postroad.cli.intake:intake",
    "mta": "postroad.cli.mta:mta",
    "operator": "postroad.cli.operator_command:operator",
    "maintain": "postroad.cli.maintenance:maintain",
    "audit": "postroad.cli.maintenance:audit",
    "config": "postroad.cli.configuration:config",
    "verify": "postroad.cli.directories:verify",
    "dump": "postroad.cli.directories:dump",
    "rebuild": "postroad.cli.directories:rebuild",
}
"""Subcommand → `module:attribute` of the click command; imported when it is called or listed."""

KUBECTL_COMMANDS: dict[str, str] = {
    "plan": "postroad.cli.configuration:plan",
    "adopt": "postroad.cli.configuration:adopt_resource",
    "browse": "postroad.cli.remote:browse",
    "show": "postroad.cli.remote:show",
    "size": "postroad.cli.remote:size",
    "ages": "postroad.cli.remote:ages",
    "dead-letters": "postroad.cli.remote:dead_letters",
    "remove": "postroad.cli.remote:remove",
    "purge": "postroad.cli.remote:purge",
    "flush": "postroad.cli.remote:flush",
    "hold": "postroad.cli.remote:hold",
    "release": "postroad.cli.remote:release",
    "requeue": "postroad.cli.remote:requeue",
    "discard": "postroad.cli.remote:discard",
    "republish": "postroad.cli.remote:republish",
    "audit": "postroad.cli.remote:audit",
}
"""The same for `kubectl mailqueue`."""

FAILED, USAGE, TRY_AGAIN = 1, 2, 75


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use, and whose errors are said
    in one line with what to do about them."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PostroadError as error:
            click.echo(f"postroad: {error.explain()}", err=True)
            sys.exit(_code_of(error))
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has what it wanted: click ends quietly
                raise
            click.echo(f"postroad: {error}", err=True)
            sys.exit(FAILED)


def _code_of(error: PostroadError) -> int:
    if isinstance(error, InvalidQueueURL | InvalidQueueName):
        return USAGE
    return TRY_AGAIN if error.transient else FAILED


HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=HELP)
@click.version_option(package_name="postroad")
def main() -> None:
    """Run and administer distributed mail queues."""


@click.group(cls=LazyGroup, lazy=KUBECTL_COMMANDS, context_settings=HELP)
def kubectl_mailqueue() -> None:
    """Administer the queues of MailQueue resources."""
