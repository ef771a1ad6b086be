"""Keeps answers for as long as they hold, and asks each question once at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta

from postroad.ports.clock import Clock
from postroad.ports.delivery.resolver import Resolver
from postroad.routing.answers import NOT_KEPT, Answer, AnswerKind, Question

LONGEST = {
    AnswerKind.RECORDS: timedelta(days=1),
    AnswerKind.NO_NAME: timedelta(hours=3),
    AnswerKind.NO_DATA: timedelta(hours=3),
    AnswerKind.UNAVAILABLE: timedelta(minutes=5),
}
"""How long an answer is kept at most. Source: RFC 2308 5, 7; RFC 9520 3.2."""

MOST_ANSWERS = 100_000
"""Answers that are kept; those go first that were read longest ago."""


class CachingResolver:
    """A resolver with a cache. Needs a running event loop."""

    def __init__(self, resolver: Resolver, clock: Clock, most_answers: int = MOST_ANSWERS) -> None:
        self._resolver = resolver
        self._clock = clock
        self._most = most_answers
        self._kept: OrderedDict[Question, tuple[timedelta, Answer]] = OrderedDict()
        """Question → when its answer ends, by the clock's elapsed time, and the answer."""
        self._asked: dict[Question, asyncio.Task[Answer]] = {}

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return the answers (see the port), each with the time that is left of it."""
        kept = [self._read(each) for each in questions]
        missing = [each for each, answer in zip(questions, kept, strict=True) if answer is None]
        if not missing:
            return tuple(answer for answer in kept if answer is not None)
        # A caller that is cancelled leaves the others the answers for which they wait too.
        asked = iter(await asyncio.gather(*(asyncio.shield(self._ask(each)) for each in missing)))
        return tuple(next(asked) if answer is None else answer for answer in kept)

    def _read(self, question: Question) -> Answer | None:
        kept = self._kept.get(question)
        if kept is None:
            return None
        left = kept[0] - self._clock.elapsed()
        if left <= NOT_KEPT:
            del self._kept[question]
            return None
        self._kept.move_to_end(question)
        return replace(kept[1], ttl=left)

    def _ask(self, question: Question) -> asyncio.Task[Answer]:
        """Return the task that asks a question, the same for all that wait for it."""
        task = self._asked.get(question)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._answer(question))
            self._asked[question] = task
        return task

    async def _answer(self, question: Question) -> Answer:
        try:
            (answer,) = await self._resolver.look_up(question)
        finally:
            del self._asked[question]
        answer = replace(answer, ttl=min(answer.ttl, LONGEST[answer.kind]))
        if answer.ttl > NOT_KEPT:
            self._kept[question] = (self._clock.elapsed() + answer.ttl, answer)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return answer
