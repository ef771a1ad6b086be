"""A pool lends what was used last, and dismisses what was not used for long."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from postroad.adapters.network import pools
from postroad.adapters.network.exchange import ServiceUnavailable, SessionRefused
from postroad.adapters.network.pools import PoolLimits, SessionPool
from postroad.adapters.network.sessions import ClientSession

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

    async def __call__(self) -> ClientSession:
        if self.problem is not None:
            raise self.problem
        self.opened.append(Played())
        return cast("ClientSession", self.opened[-1])


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


async def test_sessions_that_came_back_one_after_another_go_so_too() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(idle=BRIEF))
    async with pool.session():
        async with pool.session():
            pass
        await asyncio.sleep(BRIEF.total_seconds() / 2)

    await opener.opened[1].said_goodbye.wait()
    assert not opener.opened[0].said_goodbye.is_set()
    await asyncio.wait_for(opener.opened[0].said_goodbye.wait(), 5)


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


class Limited(Opener):
    """A next hop that accepts few sessions at the same time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.refused = 0

    async def __call__(self) -> ClientSession:
        opened = [
            each for each in self.opened if not (each.was_aborted or each.said_goodbye.is_set())
        ]
        if len(opened) < self.most:
            self.opened.append(Played())
            await asyncio.sleep(0)  # a refusal comes sooner than the replies to EHLO
            return cast("ClientSession", self.opened[-1])
        self.refused += 1
        raise ServiceUnavailable("421 4.7.0 too many connections")


async def use(pool: SessionPool, *, breaks: bool = False) -> str:
    try:
        async with pool.session() as session:
            await asyncio.sleep(0)
            if breaks:
                cast("Played", session).is_reusable = False
                raise ValueError
    except (SessionRefused, ValueError) as error:
        return type(error).__name__
    return "used"


async def test_where_a_next_hop_accepts_few_sessions_all_mails_go_over_these() -> None:
    hop = Limited(3)
    pool = SessionPool(hop, PoolLimits(sessions=50, idle=LONG))

    results = await asyncio.gather(*(use(pool) for _ in range(200)))

    assert set(results) == {"used"}
    assert len(hop.opened) == 3
    assert hop.refused <= 50, "a borrower that finds others waiting tries no session of its own"
    await pool.close()


async def test_a_session_that_breaks_makes_room_for_one_that_waits() -> None:
    hop = Limited(1)
    pool = SessionPool(hop, PoolLimits(idle=LONG))

    results = await asyncio.gather(*(use(pool, breaks=True) for _ in range(20)))

    assert results == ["ValueError"] * 20
    assert len(hop.opened) == 20
    await pool.close()


async def test_those_that_wait_are_refused_when_no_session_can_come_back() -> None:
    hop = Limited(1)
    pool = SessionPool(hop, PoolLimits(idle=LONG))
    async with pool.session() as session:
        waiting = [asyncio.create_task(use(pool)) for _ in range(20)]
        await asyncio.sleep(0.01)
        hop.most = 0
        cast("Played", session).is_reusable = False
        assert not any(each.done() for each in waiting)

    assert await asyncio.gather(*waiting) == ["ServiceUnavailable"] * 20
    assert hop.refused <= 2


async def test_a_session_that_does_not_come_back_is_not_waited_for_longer_than_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "LONGEST_WAIT", BRIEF)
    hop = Limited(1)
    pool = SessionPool(hop, PoolLimits(idle=LONG))
    async with pool.session():
        results = await asyncio.gather(use(pool), use(pool))
        assert set(results) == {"ServiceUnavailable"}
    assert await use(pool) == "used"
    await pool.close()


async def test_a_cancelled_borrower_leaves_the_session_to_the_next_one() -> None:
    hop = Limited(1)
    pool = SessionPool(hop, PoolLimits(idle=LONG))
    lent = await pool.borrow()
    first, second, third = (asyncio.create_task(use(pool)) for _ in range(3))
    await asyncio.sleep(0.01)
    second.cancel()
    pool.give_back(lent, failed=False)  # wakes the first
    first.cancel()

    assert await third == "used"
    assert await use(pool) == "used"
    await pool.close()


async def test_no_more_sessions_are_lent_than_the_limit() -> None:
    opener = Opener()
    pool = SessionPool(opener, PoolLimits(sessions=2, idle=LONG))
    first, _ = await pool.borrow(), await pool.borrow()
    third = asyncio.create_task(pool.borrow())
    await asyncio.sleep(0.01)
    assert (third.done(), len(opener.opened)) == (False, 2)

    pool.give_back(first, failed=False)

    assert await asyncio.wait_for(third, 5) is first
    await pool.close()


async def test_a_borrower_that_was_woken_and_cancelled_at_once_wakes_the_next() -> None:
    hop = Limited(1)
    pool = SessionPool(hop, PoolLimits(idle=LONG))
    lent = await pool.borrow()
    first, second = (asyncio.create_task(use(pool)) for _ in range(2))
    await asyncio.sleep(0.01)

    pool.give_back(lent, failed=False)
    first.cancel()

    assert await asyncio.wait_for(second, 5) == "used"
    await pool.close()
