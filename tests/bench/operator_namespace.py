"""A namespace with `QUEUES` retained MailQueues, each with workers and an intake, is deleted while
no operator runs: seconds until it is gone.
"""

from __future__ import annotations

import asyncio
import os
import time

from bench.operator_process import operator_on
from bench.operator_scale import apply_queues, names, patience
from bench.operator_setup import THREE, Site, fresh_site
from bench.operator_watch import watching
from bench.results import Result, compared
from postroad.controller.kubernetes.api import NAMESPACE, QUEUE_CLUSTER
from support.resources import intake, workers

QUEUES = int(os.environ.get("QUEUES", "20"))
GOAL_SECONDS, PATIENCE_SECONDS = 60.0, 600.0


async def measure() -> list[Result]:
    """Measure one namespace."""
    async with fresh_site(*THREE) as site:
        async with operator_on(site), watching(site.api, site.namespace) as watch:
            await site.apply_cluster()
            await site.until_ready(QUEUE_CLUSTER, "main")
            queues = names(QUEUES, site)
            await apply_queues(site, queues, workers=workers(), intake=intake())
            await watch.until_ready([each.name for each in queues], patience(QUEUES))
        seconds = await _deleted(site)
    case = f"{QUEUES} retained queues, no operator"
    return [
        compared("a namespace is gone", case, "s", [seconds], "goal", [GOAL_SECONDS],
                 less_is_better=True)
    ]  # fmt: skip


async def _deleted(site: Site) -> float:
    """Delete the namespace; return the seconds until it is gone."""
    found = await site.api.get(NAMESPACE, None, site.namespace)
    assert found is not None
    began = time.monotonic()
    await site.api.delete(NAMESPACE, found)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await site.api.get(NAMESPACE, None, site.namespace) is not None:
            await asyncio.sleep(0.2)
    return time.monotonic() - began
