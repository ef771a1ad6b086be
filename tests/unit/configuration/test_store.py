"""A wanted configuration meets the history: recorded once, never forked, never begun anew."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from postroad.adapters.memory.servers import MemoryHistory, Records
from postroad.configuration import LeasedConfiguration, Settled, adopt, settle
from postroad.domain.configuration.documents import effective_document, from_document
from postroad.domain.configuration.history import (
    MAX_READ_LEASE,
    ConfigurationCreated,
    ConfigurationEvent,
    ConfigurationRefused,
    replay,
)
from postroad.domain.configuration.rules import Refusal, ViewConfiguration
from postroad.errors import (
    ConfigurationConflict,
    HistoryMissing,
    QueueNotFound,
    ViewUnavailable,
)
from postroad.ports.view import Effective, History
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import Fault, FaultInjector, Step, Stopped, at

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, HALF, ODD = (
    ViewConfiguration(timedelta(minutes=60)),
    ViewConfiguration(timedelta(minutes=30), 4),
    ViewConfiguration(timedelta(minutes=25), 4),
)


async def settled(history: History, wanted: ViewConfiguration | None, **more: object) -> Settled:
    return await settle(history, wanted, at=NOON, by="test", **more)  # type: ignore[arg-type]


def reason(result: Settled) -> str | None:
    return result.refusal.reason if result.refusal else None


async def test_what_is_unfit_begins_no_history_and_has_no_bearing_on_one_that_has_begun() -> None:
    history = MemoryHistory()
    unfit = Refusal("SliceWindowTooLong", "too long", {})

    refused = await settled(history, HOUR, unfit=unfit)
    assert (refused.state, refused.refusal) == (None, unfit)
    assert (await history.load()).events == ()

    await settled(history, HOUR)
    again = await settled(history, HALF, unfit=unfit)
    assert again.refusal is None
    assert again.state is not None
    assert again.state.version == 2


async def test_the_first_configuration_is_created_and_the_next_changes_it() -> None:
    history = MemoryHistory()

    first = await settled(history, HOUR)
    second = await settled(history, HALF)

    assert isinstance(first.appended, ConfigurationCreated)
    assert first.state is not None
    assert second.state is not None
    assert (first.state.version, second.state.version) == (1, 2)
    assert second.refusal is None
    assert [each["type"] for each in second.entries()] == [
        "ConfigurationCreated",
        "ConfigurationChanged",
    ]
    effective_from = second.state.at + MAX_READ_LEASE
    assert effective_document(second.state, effective_from) == {
        "version": 2,
        "sliceWindow": "30m",
        "bucketCount": 4,
        "updateBrowseStartPace": 1000,
        "effectiveFrom": (NOON + MAX_READ_LEASE).isoformat().replace("+00:00", "Z"),
    }


async def test_settling_again_appends_nothing() -> None:
    history = MemoryHistory()
    await settled(history, HOUR)

    again = await settled(history, HOUR)

    assert again.appended is None
    assert len(again.history) == 1


async def test_a_refused_configuration_leaves_the_accepted_one_and_says_why() -> None:
    history = MemoryHistory()
    await settled(history, HOUR)

    first, resync = await settled(history, ODD), await settled(history, ODD)

    assert first.state is not None
    assert first.state.configuration == HOUR
    assert first.refusal is not None
    assert first.refusal == resync.refusal
    assert first.refusal.reason == "SliceWindowDoesNotDivide"
    assert first.refusal.allowed == {"sliceWindow": ("20m", "30m")}
    assert isinstance(first.appended, ConfigurationRefused)
    assert resync.appended is None
    assert (await settled(history, HOUR)).refusal is None


async def test_without_a_wanted_configuration_whatever_holds_is_taken() -> None:
    history = MemoryHistory()

    assert (await settled(history, None)).state == replay((await history.load()).events)
    await settled(history, HALF)
    state = (await settled(history, None)).state

    assert state is not None
    assert state.configuration == HALF


async def test_a_wiped_status_is_rebuilt_from_the_history() -> None:
    """Recreation, `kubectl replace --force`, a restore, another cluster: the data's rules hold."""
    history = MemoryHistory()
    await settled(history, HOUR)
    before = await settled(history, HALF)

    rebuilt = await settled(history, HOUR, status=[])

    assert reason(rebuilt) == "SliceWindowGrows"
    assert rebuilt.entries()[:2] == before.entries()


async def test_a_history_that_is_gone_while_the_status_remembers_it_is_not_begun_anew() -> None:
    status = (await settled(MemoryHistory(), HOUR)).entries()
    empty = MemoryHistory()

    stalled = await settled(empty, HOUR, status=status)

    assert stalled.state is None
    assert stalled.entries() == []
    assert reason(stalled) == "HistoryConflict"
    assert stalled.refusal is not None
    assert "postroad config adopt" in stalled.refusal.message
    assert (await empty.load()).events == ()


async def test_a_history_that_is_gone_while_rows_exist_is_not_begun_anew() -> None:
    async def rows_exist() -> bool:
        return True

    empty = MemoryHistory()

    stalled = await settled(empty, HOUR, has_data=rows_exist)

    assert reason(stalled) == "HistoryConflict"
    assert (await empty.load()).events == ()


async def test_a_restored_history_behind_the_status_is_not_continued() -> None:
    history, restored = MemoryHistory(), MemoryHistory()
    await settled(history, HOUR)
    status = (await settled(history, HALF)).entries()
    await settled(restored, HOUR)

    stalled = await settled(restored, HALF, status=status)

    assert reason(stalled) == "HistoryConflict"
    assert len((await restored.load()).events) == 1


class Process:
    """A process that reconciles a resource: history, then effects, then status. `faults` counts its
    writes, of all three kinds, and kills it at one of them."""

    def __init__(self, records: Records, faults: FaultInjector | None = None) -> None:
        self.faults = faults or FaultInjector()
        self.history = MemoryHistory(records, self.faults)

    async def reconcile(self, resource: Resource, wanted: ViewConfiguration) -> None:
        result = await settled(self.history, wanted, status=resource.status)
        state = result.state
        assert state is not None
        if resource.applied[-1:] != [state.version]:
            await self.faults("view", "effect", lambda: resource.applied.append(state.version))
        await self.faults("view", "status", lambda: resource.write(result.entries()))


@dataclass
class Resource:
    """What outlives the process beside the history."""

    status: list[dict[str, object]] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)

    def write(self, status: list[dict[str, object]]) -> None:
        self.status = status


async def transition(faults: FaultInjector, wanted: ViewConfiguration) -> tuple[Records, Resource]:
    """Accept an hour, then let a process with this faults want something else."""
    records, resource = Records(), Resource()
    await Process(records).reconcile(resource, HOUR)
    try:
        await Process(records, faults).reconcile(resource, wanted)
    except Stopped:
        pass
    return records, resource


@pytest.mark.parametrize("wanted", [HALF, ODD], ids=["accepted", "refused"])
async def test_a_kill_at_any_step_of_a_transition_leaves_a_complete_history(
    wanted: ViewConfiguration,
) -> None:
    undisturbed = FaultInjector()
    await transition(undisturbed, wanted)
    assert [each.operation for each in undisturbed.steps] == [
        *("load", "append"),
        *(["effect"] if wanted is HALF else []),
        "status",
    ]

    for number in range(len(undisturbed.steps)):
        for fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER):
            records, resource = await transition(FaultInjector(at(number, fault)), wanted)
            await Process(records).reconcile(resource, wanted)

            events = records.recorded.events
            assert [each.sequence for each in events] == [1, 2]
            assert [from_document(each) for each in resource.status] == list(events)
            assert resource.applied == ([1, 2] if wanted is HALF else [1])


async def test_the_history_is_written_before_anything_that_follows_from_it() -> None:
    """A process that finds an effect or a status finds the event in the history."""
    for number in range(4):
        records, resource = await transition(FaultInjector(at(number, Fault.STOP_AFTER)), HALF)

        assert len(resource.status) <= len(records.recorded.events)
        assert max(resource.applied) <= len(records.recorded.events)


def hostile(seed: int) -> FaultInjector:
    """Lets others go on at every step, and loses a seventh of the answers."""
    randomness = random.Random(seed)
    faults = FaultInjector(lambda step: Fault.ANSWER_LOST if randomness.random() < 1 / 7 else None)

    async def let_others_go_on(step: Step) -> None:
        for _ in range(randomness.randrange(3)):
            await asyncio.sleep(0)

    faults.before = let_others_go_on
    return faults


def test_the_transitions_below_differ() -> None:
    assert len(TRANSITIONS) == 200
    assert len(set(TRANSITIONS)) == 200


TRANSITIONS = [
    ViewConfiguration(timedelta(seconds=2 ** (12 - index // 16)), 1 + index) for index in range(200)
]


@pytest.mark.parametrize("writers", [2, 4])
async def test_writers_fed_the_same_transitions_make_one_history(writers: int) -> None:
    records = Records()

    async def write(seed: int) -> None:
        history = MemoryHistory(records, hostile(seed))
        for wanted in TRANSITIONS:
            while True:
                try:
                    await settled(history, wanted)
                    break
                except ViewUnavailable:
                    continue

    await asyncio.gather(*(write(seed) for seed in range(writers)))

    events = records.recorded.events
    accepted = [each for each in events if not isinstance(each, ConfigurationRefused)]
    assert [each.sequence for each in events] == list(range(1, len(events) + 1))
    assert [each.configuration for each in accepted] == TRANSITIONS
    assert [each.version for each in accepted] == list(range(1, 201))


async def test_a_history_that_others_always_reach_first_is_a_conflict_in_the_end() -> None:
    class Contended(MemoryHistory):
        async def append(self, event: ConfigurationEvent) -> None:
            raise ConfigurationConflict

    with pytest.raises(ConfigurationConflict):
        await settled(Contended(), HOUR)


async def test_an_adopted_queue_goes_on_where_its_status_was() -> None:
    before = MemoryHistory()
    await settled(before, HOUR)
    status = (await settled(before, HALF)).entries()
    lost = MemoryHistory()
    assert reason(await settled(lost, HALF, status=status)) == "HistoryConflict"

    await adopt(lost, None, at=NOON, by="test", reason="the keyspace was lost", status=status)
    result = await settled(lost, HALF, status=status)

    assert result.refusal is None
    assert [each["type"] for each in result.entries()] == [
        "ConfigurationCreated",
        "ConfigurationChanged",
        "ConfigurationAdopted",
    ]


async def test_an_adoption_that_is_killed_at_any_step_is_never_written_under_an_early_version() -> (
    None
):
    """Browse start has passed what an hour's slice would need long ago."""
    before = MemoryHistory()
    for wanted in (HOUR, HALF):
        status = (await settled(before, wanted)).entries()

    for number in range(5):
        records = Records()
        faults = FaultInjector(at(number, Fault.STOP_AFTER))
        try:
            await adopt(
                MemoryHistory(records, faults), None, at=NOON, by="test", reason="", status=status
            )
        except Stopped:
            pass
        source = LeasedConfiguration(
            MemoryHistory(records), ManualClock(), SeededRandomness(0), grace=timedelta(seconds=60)
        )
        try:
            await source.refresh()
            assert source.effective().writing == HALF
        except (QueueNotFound, HistoryMissing):
            assert len(records.recorded.events) < 2
        if len(records.recorded.events) < 2:
            await adopt(MemoryHistory(records), None, at=NOON, by="test", reason="", status=status)
        await source.refresh()
        assert source.effective().writing == HALF


async def test_after_an_adoption_the_configuration_before_it_is_still_written_and_read() -> None:
    """A process with a lease on the lost history may still write under it: without the version
    before the adopted one, readers would close slices that it still fills."""
    before = MemoryHistory()
    for wanted in (HOUR, HALF):
        status = (await settled(before, wanted)).entries()
    tenth = ViewConfiguration(timedelta(minutes=6), 4)
    lost = MemoryHistory()

    await adopt(lost, tenth, at=NOON, by="test", reason="lost", status=status)
    source = LeasedConfiguration(lost, ManualClock(), SeededRandomness(0))
    await source.refresh()

    assert source.effective() == Effective(HALF, (tenth, HALF))
