"""`postroad erase`: erases a queue on its servers, and finishes what a forced deletion left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta

import click

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.erasing import open_erasable
from postroad.cli.options import json_option, queue_option, say
from postroad.controller.kubernetes.api import FIELD_MANAGER
from postroad.controller.mailqueue.leftovers import Leftovers
from postroad.distributed.maintenance.erasure import SERVERS, Erasable, Erasure, Part
from postroad.errors import NotInstalled, PostroadError, QueueInUse

STEP = timedelta(seconds=5)
"""Interval of the lines about progress."""


@click.command()
@queue_option
@click.option("--confirm", metavar="NAMESPACE.NAME", help="The name of the queue, again.")
@click.option(
    "--part",
    "chosen",
    type=click.Choice([each.value for each in Part if each is not Part.HISTORY]),
    multiple=True,
    help="Erase only this (repeatable), where the server of another is gone. Default: all, and "
    "the configuration history.",
)
@click.option(
    "--listed-in",
    "namespace",
    help="Then take it off ConfigMap postroad-leftovers in this namespace, by the rights of the "
    "kubeconfig or of the pod.",
)
@json_option
def erase(
    url: str, confirm: str | None, chosen: tuple[str, ...], namespace: str | None, as_json: bool
) -> None:
    """Erase a queue: its messages, its bytes, its rows with dead letters and history.

    For what a deletion left behind, by the entry of ConfigMap postroad-leftovers. It may be stopped
    and called again; the exit code is 75 while a server does not answer.
    """
    asyncio.run(_run(url, confirm, chosen, namespace, as_json=as_json))


async def _run(
    url: str,
    confirm: str | None,
    chosen: tuple[str, ...],
    namespace: str | None,
    *,
    as_json: bool,
) -> None:
    queue = await _erase(url, confirm, chosen, as_json=as_json)
    if namespace:
        left = await _take_off(namespace, queue, chosen or tuple(Part))
        if left:
            click.echo(f"still listed of {queue}: {', '.join(left)}", err=True)


async def _take_off(namespace: str, queue: str, erased: Collection[str]) -> Collection[str]:
    """Raises: KubernetesError, NotInstalled."""
    try:
        from postroad.adapters.kubernetes.access import load_access
        from postroad.adapters.kubernetes.api_server import ApiServer
    except ModuleNotFoundError as error:
        raise NotInstalled(f"the list cannot be changed without {error.name}") from error
    api = ApiServer(load_access(), FIELD_MANAGER)
    try:
        return await Leftovers(api, namespace).take_off(queue, erased)
    finally:
        await api.close()


async def _erase(url: str, confirm: str | None, chosen: tuple[str, ...], *, as_json: bool) -> str:
    """Return the name of the queue, which is erased then."""
    async with open_erasable(url) as queue:
        if confirm != str(queue.name):
            raise click.UsageError(
                f"this deletes all mail of the queue: add --confirm {queue.name}"
            )
        await _require_unused(queue, chosen)
        done = {each for each in Part if chosen and each.value not in chosen}
        objects, rows = 0, 0
        erasure = Erasure(queue, MachineClock())
        while len(done) < len(Part):
            steps = await erasure.proceed(done, STEP)
            done |= {part for part, each in steps.items() if each.is_done}
            objects += steps[Part.BYTES].count if Part.BYTES in steps else 0
            rows += steps[Part.ROWS].count if Part.ROWS in steps else 0
            values = {"objects": objects, "rows": rows, "done": sorted(done)}
            say(values, as_json=as_json, text=f"{objects} objects and {rows} rows are deleted")
            errors = {part: each.error for part, each in steps.items() if each.error is not None}
            if errors and all(part in errors or each.is_done for part, each in steps.items()):
                raise _first(errors)
        return str(queue.name)


async def _require_unused(queue: Erasable, chosen: tuple[str, ...]) -> None:
    """Raises: QueueInUse while consumers read the queue."""
    if chosen and Part.MESSAGES.value not in chosen:
        return
    if await queue.broker.exists() and (await queue.broker.depths()).consumers:
        raise QueueInUse(
            f"consumers read the queue {queue.name}: a MailQueue of this name took it over",
            hint="stop its workers if it is to be erased all the same",
        )


def _first(errors: dict[Part, PostroadError]) -> PostroadError:
    """Return the error to end with; one that time alone can mend last."""
    for part, error in errors.items():
        click.echo(f"{SERVERS[part]} holds up the {part}: {error.explain()}", err=True)
    lasting = [each for each in errors.values() if not each.transient]
    return next(iter(lasting or errors.values()))
