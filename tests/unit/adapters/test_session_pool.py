"""A pool lends what was used last, and dismisses what was not used for long."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from postroad.adapters.network.exchange import SessionRefused
from postroad.adapters.network.pools import PoolLimits, SessionPool
from postroad.adapters.network.sessions import Session

BRIEF, LONG = timedelta(milliseconds=20), timedelta(hours=1)


class Played:
    """A session that notes how it ended."""

    def __init__(self) -> None:
        self.is_reusable = True
        self.transactions = 0
        self.said_goodbye = asyncio.Event()
        self.was_aborted = False

    async def quit(self) -> None:
        self.said_goodbye.set()

    def abort(self) -> None:
        self.was_aborted = True


class Opener:
    def __init__(self) -> None:
        self.opened: list[Played] = []
        self.problem: Exception | None = None

    async def __call__(self) -> Session:
        if self.problem is not None:
            raise self.problem
        self.opened.append(Played())
        return cast("Session", self.opened[-1])


async def test_the_session_used_last_is_lent_first_and_the_others_go() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(idle=BRIEF))
    async with pool.session() as first, pool.session():
        pass
    async with pool.session() as again:
        assert again is first
        await opener.opened[1].said_goodbye.wait()

        assert not opener.opened[0].said_goodbye.is_set()

    await opener.opened[0].said_goodbye.wait()
    assert len(opener.opened) == 2


async def test_a_session_that_is_lent_outlives_the_time_at_which_it_would_have_gone() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(idle=BRIEF))
    async with pool.session():
        pass
    async with pool.session():
        await asyncio.sleep(2 * BRIEF.total_seconds())

    assert not opener.opened[0].said_goodbye.is_set()
    await opener.opened[0].said_goodbye.wait()


async def test_a_block_that_fails_in_a_transaction_closes_its_session() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(sessions=1, idle=LONG))

    async def fail(*, in_transaction: bool) -> None:
        async with pool.session():
            opener.opened[-1].is_reusable = not in_transaction
            raise ValueError

    with pytest.raises(ValueError):
        await fail(in_transaction=True)
    with pytest.raises(ValueError):
        await fail(in_transaction=False)
    async with pool.session():
        pass

    assert opener.opened[0].was_aborted
    assert len(opener.opened) == 2
    await pool.close()


async def test_a_session_that_cannot_be_opened_takes_no_place() -> None:
    opener = Opener()
    opener.problem = SessionRefused("451 4.3.2 later")
    pool = SessionPool(opener, PoolLimits(sessions=1, idle=LONG))
    for _ in range(2):
        with pytest.raises(SessionRefused):
            async with pool.session():
                pass
    opener.problem = None
    async with pool.session():
        pass
    await pool.close()

    assert opener.opened[0].said_goodbye.is_set()


async def test_what_comes_back_after_the_end_is_dismissed() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(idle=LONG))
    async with pool.session():
        await pool.close()
    await opener.opened[0].said_goodbye.wait()

    assert opener.opened[0].said_goodbye.is_set()
