"""`postroad …` that kills itself at the N-th of the steps between which a migration may stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from postroad.adapters.rabbitmq.transfers import Transfers
from postroad.cli import main
from postroad.james.blobs import JamesBlobs
from postroad.james.migration import Migration
from postroad.james.tables import JamesTables

STEPS = (
    (Transfers, "get"),
    (Transfers, "move"),
    (Transfers, "ack"),
    (JamesTables, "mark"),
    (JamesBlobs, "content"),
    (Migration, "_move"),
)
"""Calls of which beginning and end are steps; the end of `content` is the beginning of enqueue."""

_left = int(sys.argv.pop(1))


def _step() -> None:
    global _left
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _counted(call: Callable[..., Any]) -> Callable[..., Any]:
    async def counted(*values: Any, **named: Any) -> Any:
        _step()
        result = await call(*values, **named)
        _step()
        return result

    return counted


for its_class, name in STEPS:
    setattr(its_class, name, _counted(getattr(its_class, name)))
main()
