"""Brokers are asked about MailQueues without workers, each at its own pace."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from postroad.controller.kubernetes.api import MAIL_QUEUE, Key
from postroad.controller.mailqueue.autoscaling import PROBE, Autoscalers, Wakening
from support.manual_loop import move, run
from support.running_controller import LoopClock


@dataclass
class Broker:
    """A broker that answers after some seconds, and the instants at which it was asked."""

    seconds: float
    asked: list[float] = field(default_factory=list)

    async def ready(self) -> int:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        return 0


def plan_for(broker: Broker, name: str) -> Any:
    queue = SimpleNamespace(uid=name, key=Key(MAIL_QUEUE.name, "mail", name))
    place = SimpleNamespace(servers=broker, broker=lambda: broker)
    return SimpleNamespace(queue=queue, place=place)


def test_a_slow_broker_holds_up_no_other_one_and_is_asked_once_at_a_time() -> None:
    slow, quick = Broker(3.9), Broker(0)
    plans = [plan_for(slow, f"slow-{each}") for each in range(10)] + [plan_for(quick, "quick")]
    scalers = cast("Autoscalers", SimpleNamespace(at_zero=lambda: iter(plans)))
    woken: list[Key] = []

    async def scene() -> None:
        asking = asyncio.create_task(Wakening(scalers, LoopClock(), woken.append).run())
        await move(10 * PROBE.total_seconds() + 1.5)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    run(scene())

    assert len(quick.asked) == 10
    assert all(later - one >= 3.9 for one, later in itertools.pairwise(slow.asked))
    assert woken == []
