"""Runs over servers in memory: the harness itself, and that it finds what it is for."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from chaos import history, memory, nemesis, orderly, report
from chaos.bites import BITES, undone
from chaos.checker import check
from chaos.history import Phase
from chaos.pace import PRODUCTION
from contract.queue_harness import VirtualTime


def test_a_run_without_faults_ends_well_and_does_something() -> None:
    events = memory.run(1, (), seconds=900)

    assert check(events) == []
    done = Counter(each.op for each in events if each.phase is Phase.OK)
    assert done["enqueue"] > 100
    assert min(done[op] for op in ("done", "retry", "reject", "record", "hold", "remove")) > 0


def test_a_seed_repeats_a_run() -> None:
    schedule = nemesis.draw(5, 600, memory.menu(), PRODUCTION)

    assert memory.run(5, schedule, 600) == memory.run(5, schedule, 600)


@pytest.mark.parametrize("name", BITES)
def test_a_bite_undoes_code_that_is_there(name: str) -> None:
    with undone(name):
        pass


def test_a_schedule_has_every_kind_of_fault_in_time() -> None:
    menu = memory.menu()
    faults = [fault for seed in range(5) for fault in nemesis.draw(seed, 7200, menu, PRODUCTION)]

    assert {each.kind for each in faults} == {*menu, nemesis.BIRTH}
    assert all(each.at + each.lasts <= 7200.1 for each in faults)


def test_a_process_that_starts_while_its_predecessors_machine_is_paused_has_right_clocks() -> None:
    faults = (
        nemesis.Fault(0, 100, 200, "vm pause", "producer-1"),
        nemesis.Fault(1, 150, 20, "kill", "producer-1"),
    )

    async def lag_after_the_run() -> timedelta:
        town = memory.Town(1)
        running = asyncio.ensure_future(town.run(faults, 400))
        assert await VirtualTime(town.clock).outcome(running, timedelta(days=1))
        return town.actors["producer-1"].clock.lag

    assert orderly.run(lag_after_the_run()) == timedelta(0)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = memory.run(2, nemesis.draw(2, 300, memory.menu(), PRODUCTION), 300)
    history.write(tmp_path, events)
    with (tmp_path / f"all{history.SUFFIX}").open("a") as file:
        file.write('{"at": 1, "by": "cut sho')

    read = history.read(tmp_path)

    assert [each.line() for each in read] == [each.line() for each in events]
    assert check(read) == check(events)


def test_interruptions_are_counted_for_the_faults_that_overlap_them() -> None:
    events = memory.run(3, (nemesis.Fault(0, 100, 300, "away", "all"),), 900)

    (cost,) = report.costs(events)

    assert (cost.kind, cost.count) == ("away", 1)
    assert cost.enqueue >= 300
    assert cost.deliveries >= 300
