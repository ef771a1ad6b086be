"""The shared state of a queue, read for all that a worker obeys there, in one request; one that is
away is warned of once.

Source: ADR 0062, 0067, 0069.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.telemetry.logs import logger

_log = logger("worker")


class SharedStateUse:
    """Access of one task to a shared state."""

    def __init__(self) -> None:
        self._is_away = False

    @contextmanager
    def unless_away(self) -> Iterator[None]:
        """Go on without the shared state while it is away."""
        try:
            yield
        except Exception as error:  # a driver's bug must not end the loop
            if not self._is_away:
                text = error.explain() if isinstance(error, PostroadError) else repr(error)
                _log.warning("the shared state of the queue cannot be used", error=text)
            self._is_away = True
        else:
            self._is_away = False


READ_EVERY = timedelta(seconds=5)
"""After which every worker obeys what an administrator publishes."""

Obey = Callable[[Mapping[str, str] | None], Awaitable[None]]
"""Takes the entries of one topic by name; None: the shared state is away, so that what was read
last holds, and time has passed."""


class SharedStateReader:
    """Lets a worker obey entries: each function of `obeyed` gets those of its topic, in their
    order."""

    def __init__(
        self, shared_state: SharedState, clock: Clock, obeyed: Mapping[Topic, Obey]
    ) -> None:
        self._shared, self._clock, self._obeyed = shared_state, clock, obeyed
        self._reading = SharedStateUse()
        self._obeying = {topic: SharedStateUse() for topic in obeyed}

    async def run(self) -> None:
        """Read, until cancelled; the first time after a pause."""
        while True:
            await self._clock.sleep(READ_EVERY)
            await self.read()

    async def read(self) -> None:
        """Read once. What one topic leads to may fail alone."""
        found: Mapping[Topic, Mapping[str, str]] = {}
        with self._reading.unless_away():
            found = await self._shared.published_about(tuple(self._obeyed))
        for topic, obey in self._obeyed.items():
            with self._obeying[topic].unless_away():
                await obey(found.get(topic))
