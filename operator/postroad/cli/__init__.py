"""`postroad …`: one command, a subcommand per task; heavy imports only when chosen.

Exit codes: 0 done, 1 refused or failed, 2 usage, 75 try again later (sysexits' EX_TEMPFAIL)."""

from functools import partial

import click
from click.shell_completion import ShellComplete

from postroad.cli.lazy import LazyGroup, Load, load
from postroad.ports.mail_queue import Operation


def _load_operation(operation: Operation) -> click.Command:
    from postroad.cli.mail.selected import changing

    return changing(operation)


def _load_remote(name: str) -> click.Command:
    """Return the command of that name for the queue of a resource, run in a pod of it."""
    from postroad.cli.kubectl.remote import remote

    return remote(COMMANDS[name]())


_PLACES = {
    "enqueue": "postroad.cli.mail.enqueue:enqueue",
    "browse": "postroad.cli.mail.selected:browse",
    "show": "postroad.cli.mail.selected:show",
    "size": "postroad.cli.mail.selected:size",
    "ages": "postroad.cli.mail.selected:ages",
    "dead-letters": "postroad.cli.mail.selected:dead_letters",
    "purge": "postroad.cli.mail.selected:purge",
    "republish": "postroad.cli.mail.selected:republish",
    "migrate": "postroad.cli.mail.migration:migrate",
    "task": "postroad.cli.mail.task:task",
    "sites": "postroad.cli.sites.sites:sites",
    "suspend": "postroad.cli.sites.sites:suspend",
    "resume": "postroad.cli.sites.sites:resume",
    "reroute": "postroad.cli.sites.sites:reroute",
    "route": "postroad.cli.sites.route:route",
    "suppression": "postroad.cli.sites.suppression:suppression",
    "bounce": "postroad.cli.sites.route:bounce",
    "trace": "postroad.cli.mail.tracing:trace",
    "signing": "postroad.cli.sites.route:signing",
    "worker": "postroad.cli.processes.worker:worker",
    "intake": "postroad.cli.processes.intake:intake",
    "users": "postroad.cli.processes.users:users",
    "mta": "postroad.cli.processes.mta:mta",
    "console": "postroad.cli.processes.console:console",
    "cluster-console": "postroad.cli.processes.cluster_console:cluster_console",
    "operator": "postroad.cli.processes.operator_command:operator",
    "maintain": "postroad.cli.mail.maintenance:maintain",
    "audit": "postroad.cli.mail.maintenance:audit",
    "erase": "postroad.cli.mail.maintenance:erase",
    "config": "postroad.cli.kubectl.configuration:config",
    "pipeline": "postroad.cli.pipeline:pipeline",
    "executor": "postroad.cli.pipeline.spark:executor",
    "verify": "postroad.cli.mail.maintenance:verify",
    "dump": "postroad.cli.mail.maintenance:dump",
    "rebuild": "postroad.cli.mail.maintenance:rebuild",
    "top": "postroad.cli.mail.top:top",
    "completion": "postroad.cli.completion:completion",
}

COMMANDS: dict[str, Load] = {
    **{name: partial(load, place) for name, place in _PLACES.items()},
    **{operation.value: partial(_load_operation, operation) for operation in Operation},
    Operation.FLUSH.value: partial(load, "postroad.cli.sites.sites:flush"),
}
"""Subcommands, each imported when it is called or listed."""

_REMOTE = (
    "browse", "show", "size", "ages", "dead-letters", "purge", "republish", "audit", "sites",
    "suspend", "resume", "reroute", "suppression",
)  # fmt: skip

_OVERVIEWS = ("status", "events", "top")


def _load_config() -> click.Command:
    """Return `kubectl mailqueue config`, whose commands read resources."""
    places = {"history": "overview:history", "plan": "resources:plan"}
    lazy = {name: partial(load, f"postroad.cli.kubectl.{at}") for name, at in places.items()}
    return LazyGroup("config", lazy=lazy, help="How queues are and were configured.")


KUBECTL_COMMANDS: dict[str, Load] = {
    **{each: partial(load, f"postroad.cli.kubectl.overview:{each}") for each in _OVERVIEWS},
    "config": _load_config,
    "console": partial(load, "postroad.cli.kubectl.console:console"),
    "plan": partial(load, "postroad.cli.kubectl.resources:plan"),
    "adopt": partial(load, "postroad.cli.kubectl.resources:adopt_resource"),
    "migrate": partial(load, "postroad.cli.kubectl.migration:migrate"),
    **{name: partial(_load_remote, name) for name in (*_REMOTE, *Operation)},
}
"""The same for `kubectl mailqueue`."""


HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=HELP)
@click.version_option(package_name="postroad")
def main() -> None:
    """Run and administer distributed mail queues."""


@click.group(cls=LazyGroup, lazy=KUBECTL_COMMANDS, context_settings=HELP)
def kubectl_mailqueue() -> None:
    """Administer the queues of MailQueue resources."""


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def complete_kubectl(words: tuple[str, ...]) -> None:
    """Print the completions of the last argument behind the others, as kubectl runs
    `kubectl_complete-mailqueue` for: one a line, and a directive, 4: no files.
    Source: Kubernetes documentation (Extend kubectl with plugins)."""
    *before, begun = words or ("",)
    completing = ShellComplete(kubectl_mailqueue, {}, "kubectl mailqueue", "")
    for each in completing.get_completions(before, begun):
        click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(":4")
