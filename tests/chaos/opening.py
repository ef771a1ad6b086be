"""How a process of a run opens its queues: as `open_queue` does, with the run's durations and with
ports that record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from chaos.history import Recorder
from chaos.observed import ObservedLog, observed_broker, observed_view
from chaos.pace import Pace
from postroad.configuration import LeasedConfiguration, settle
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.errors import ConfigurationRefused
from postroad.ports.broker import Broker
from postroad.ports.clock import Clock, Randomness
from postroad.ports.servers import Servers

NAMESPACE = "chaos"


@dataclass(frozen=True)
class Opening:
    """The values with which one process opens its queues. `running` is the argument of
    `observed_view`; `broker` may wrap that port."""

    servers: Servers
    bucket: Callable[[QueueName], str]
    clock: Clock
    randomness: Randomness
    recorder: Recorder
    pace: Pace
    running: Callable[[], Awaitable[object]] | None = None
    broker: Callable[[Broker], Broker] = lambda port: port

    async def open(self, queue: str, *, create: bool = False) -> DistributedQueue:
        """Open a queue by its short name. Raises: QueueNotFound, ServerError, ClockSkew."""
        name, timing = QueueName(NAMESPACE, queue), self.pace.timing
        if create:
            await self.configure(queue, self.pace.view)
        history = self.servers.history(name)
        configuration = LeasedConfiguration(
            history,
            self.clock,
            self.randomness,
            lease=timing.read_lease,
            longest_read_lease=timing.longest_read_lease,
            grace=timing.grace,
        )
        await configuration.start()
        view = self.servers.views().view(str(name))
        running = {} if self.running is None else {"running": self.running}
        parts = Parts(
            name=name,
            broker=observed_broker(self.broker(self.servers.broker(name)), self.recorder),
            view=observed_view(view, self.recorder, **running),
            blobs=self.servers.blobs(self.bucket(name)),
            configuration=configuration,
            clock=self.clock,
            randomness=self.randomness,
            timing=timing,
            row_lifetime=self.servers.views().row_lifetime,
            owned=(configuration,),
        )
        try:
            opened = await DistributedQueue.open(parts, create_missing=create)
        except BaseException:
            await configuration.close()
            raise
        opened._engine.log = ObservedLog(opened._engine.log, self.recorder)  # type: ignore[assignment]
        return opened

    async def configure(self, queue: str, wanted: ViewConfiguration) -> None:
        """Record a configuration. Raises: ConfigurationRefused, ViewError."""
        history = self.servers.history(QueueName(NAMESPACE, queue))
        settled = await settle(history, wanted, at=self.clock.now(), by="chaos")
        if settled.refusal is not None:
            raise ConfigurationRefused(settled.refusal.message)

    async def cut_anew(self, queue: str, draw: float) -> None:
        """Change the configuration of the view, as the rules allow: half the window, or a bucket
        more."""
        history = self.servers.history(QueueName(NAMESPACE, queue))
        settled = await settle(history, None, at=self.clock.now(), by="chaos")
        assert settled.state is not None
        now = settled.state.configuration
        shortest = self.pace.window / 4
        if draw < 0.5 and now.slice_window / 2 >= shortest:
            wanted = ViewConfiguration(
                timedelta(seconds=now.slice_window.total_seconds() // 2),
                now.bucket_count,
                now.update_browse_start_pace,
            )
        else:
            wanted = ViewConfiguration(
                now.slice_window, min(now.bucket_count + 1, 5), now.update_browse_start_pace
            )
        await self.configure(queue, wanted)
