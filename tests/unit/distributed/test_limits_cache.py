"""How long a reading of the limits and of the view's time is used, and what follows from it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import cast

import pytest

from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Timing
from postroad.domain.values.instants import HostTime, Readings
from postroad.errors import ClockSkew, CredentialsRefused, ServerError, ViewUnavailable
from postroad.ports.view import Limits, View
from support.memory.clock import START, ManualClock

SECOND, US = timedelta(seconds=1), timedelta(microseconds=1)
TIMING = Timing(read_lease=30 * SECOND, skew=5 * SECOND)


class Hosts:
    """A view whose hosts show these times, relative to the true one, and may be away."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.apart = [timedelta(0)]
        self.doubt = timedelta(0)
        self.takes = timedelta(0)
        self.error: ServerError | None = None
        self.hangs: asyncio.Event | None = None
        self.read = 0

    async def limits(self) -> Limits:
        self.read += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.error is not None:
            raise self.error
        self.clock.jump(self.takes)
        return Limits(START + self.read * SECOND, None)

    async def server_times(self) -> Readings:
        now = START + self.clock.elapsed()
        times = (HostTime(str(n), now + each, self.doubt) for n, each in enumerate(self.apart))
        return Readings(tuple(times), len(self.apart))


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hosts(clock: ManualClock) -> Hosts:
    return Hosts(clock)


@pytest.fixture
async def cache(hosts: Hosts, clock: ManualClock) -> LimitsCache:
    return LimitsCache(cast("View", hosts), clock, TIMING)


async def test_a_reading_serves_for_a_third_of_a_lease(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    first = await cache.limits()
    clock.jump(10 * SECOND - US)
    assert await cache.limits() == first
    assert hosts.read == 1

    clock.jump(US)

    assert await cache.limits() != first
    assert hosts.read == 2
    await cache.refresh()
    assert hosts.read == 3


async def test_callers_at_the_same_time_share_a_reading(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    clock.jump(SECOND)
    hosts.hangs = asyncio.Event()
    waiting = [asyncio.ensure_future(cache.limits()) for _ in range(5)]
    await asyncio.sleep(0)
    hosts.hangs.set()
    found = await asyncio.gather(*waiting)

    assert hosts.read == 1
    assert len({each.browse_start for each in found}) == 1


async def test_the_old_reading_serves_for_half_a_lease_while_the_view_is_away(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    first = await cache.limits()
    hosts.error = ViewUnavailable("away")
    clock.jump(15 * SECOND - US)
    assert await cache.limits() == first

    clock.jump(US)

    with pytest.raises(ViewUnavailable):
        await cache.limits()


async def test_a_refusal_is_no_absence(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    await cache.limits()
    hosts.error = CredentialsRefused("no")
    clock.jump(11 * SECOND)

    with pytest.raises(CredentialsRefused):
        await cache.limits()


async def test_callers_behind_a_reading_that_failed_fail_with_it_and_later_ones_read_again(
    cache: LimitsCache, hosts: Hosts
) -> None:
    hosts.error, hosts.hangs = ViewUnavailable("away"), asyncio.Event()
    waiting = [asyncio.ensure_future(cache.limits()) for _ in range(5)]
    await asyncio.sleep(0)
    hosts.hangs.set()

    failed = await asyncio.gather(*waiting, return_exceptions=True)

    assert {type(each) for each in failed} == {ViewUnavailable}
    assert hosts.read == 1
    hosts.error = None
    assert await cache.limits()
    assert hosts.read == 2


async def test_a_reading_is_as_old_as_its_begin_and_good_for_less_than_a_lease(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    hosts.takes = 10 * SECOND
    snapshot = await cache.snapshot()
    assert snapshot.at == timedelta(0)

    clock.jump(20 * SECOND - US)
    assert cache.is_good(snapshot)
    cache.check(snapshot)
    clock.jump(US)

    assert not cache.is_good(snapshot)
    with pytest.raises(ViewUnavailable, match="older than a lease"):
        cache.check(snapshot)


@pytest.mark.parametrize("sign", [1, -1])
async def test_the_local_clock_may_be_off_by_the_skew_and_the_doubt(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock, sign: int
) -> None:
    hosts.doubt = SECOND
    clock.skew = sign * 6 * SECOND
    await cache.check_clock()
    assert cache.now() == clock.now()

    clock.skew += sign * US

    with pytest.raises(ClockSkew, match=r"0:00:06\.000001"):
        await cache.check_clock()
    assert cache.now() == clock.now() - clock.skew


async def test_the_views_time_goes_on_and_is_the_earliest_it_may_be(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    assert cache.now() == START
    hosts.doubt = SECOND
    clock.jump(7 * SECOND)
    await cache.limits()
    clock.jump(2 * SECOND)

    assert await cache.view_now() == START + 8 * SECOND
    assert await cache.earliest_now() == START + 8 * SECOND
    clock.skew = -3 * SECOND
    assert await cache.earliest_now() == START + 6 * SECOND


async def test_hosts_that_disagree_leave_the_last_time_for_a_lease(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    await cache.refresh()
    hosts.apart = [timedelta(0), timedelta(hours=1)]
    clock.jump(30 * SECOND - US)
    await cache.refresh()
    assert await at(cache) == clock.now()

    clock.jump(US)
    await cache.refresh()

    with pytest.raises(ClockSkew, match="do not agree"):
        await cache.view_now()
    assert cache.now() == clock.now()


async def test_hosts_that_never_agreed_leave_no_time(cache: LimitsCache, hosts: Hosts) -> None:
    hosts.apart = [timedelta(0), timedelta(hours=1)]

    with pytest.raises(ClockSkew) as refused:
        await cache.check_clock()

    assert "NTP" in str(refused.value.hint)


async def at(cache: LimitsCache) -> datetime:
    return await cache.view_now()


async def test_an_operation_begins_by_a_new_reading_and_covers_every_tolerated_clock(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    await cache.limits()
    hosts.doubt = SECOND
    clock.skew = -6 * SECOND

    began = await cache.begin()

    assert began.browse_start == START + 2 * SECOND
    assert began.at == clock.now()
    assert began.latest == START + hosts.doubt + 2 * TIMING.skew


async def test_an_operation_begins_by_the_local_clock_where_hosts_disagree(
    cache: LimitsCache, hosts: Hosts, clock: ManualClock
) -> None:
    hosts.apart = [timedelta(0), timedelta(hours=1)]

    began = await cache.begin()

    assert (began.at, began.latest) == (clock.now(), clock.now() + 2 * TIMING.skew)
