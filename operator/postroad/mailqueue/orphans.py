"""Upkeep gives mails without a message a new one, as `republish` does by hand.

A mail that has its message after all is only replaced: claims and marks keep it from coming twice.
"""

from __future__ import annotations

from postroad.domain.orphans import Look, Watch
from postroad.domain.turns import Change
from postroad.errors import ServerError
from postroad.mailqueue import protocol
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.troubles import Troubles
from postroad.telemetry import metrics


class Orphans:
    """Looks at what waits, from one round to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch = Watch()

    async def look(self) -> Look:
        """Begin a look. The broker is asked before any mail is seen. Raises: nothing."""
        engine = self._engine
        # By then an enqueue has published or withdrawn, and a replacement that stopped is in sight.
        before = engine.clock.now() - engine.timing.deadline - engine.timing.grace
        return Look(await self._messages(), before)

    async def heal(self, look: Look, troubles: Troubles) -> None:
        """Give new messages where some were missing for long. Raises: ServerError, ClockSkew,
        ConfigurationStale."""
        engine = self._engine
        turns = self._watch.judge(look)
        if turns:
            engine.log.warning(
                "the broker has fewer messages than mails wait: the oldest get new ones",
                missing=look.missing,
                count=len(turns),
            )
        for turn in turns:
            with troubles.of(turn.enqueue_id):
                if await protocol.replace(engine, turn, Change.nothing(turn)) is None:
                    metrics.REPUBLISHED.labels(engine.label).inc()

    async def _messages(self) -> int | None:
        try:
            depths = await self._engine.broker.depths()
        except ServerError as error:
            self._engine.log.debug("messages were not counted", error=type(error).__name__)
            return None
        if not depths.leased_included:
            return None
        return depths.work + depths.delayed + depths.dead
