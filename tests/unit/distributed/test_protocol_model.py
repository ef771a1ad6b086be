"""Every interleaving of a few processes over one mail, with crashes between any two steps.

Nothing is lost, nothing is transmitted by a process that read its removal, and a mail is
transmitted more than once only where a crash fell between a transmission and its record.
"""

from __future__ import annotations

import pytest

from postroad.domain.queues.entries import Mark
from unit.distributed.protocol_model import Message, Model, Process, State

MAX_STATES = 400_000


FIRST = Message(0)
REPETITION = Message(0, claim=True, repeats=True)
"""The message that an enqueue publishes again when the confirm of the first is lost."""


def initial(kinds: tuple[str, ...], messages: tuple[Message, ...]) -> State:
    processes = tuple(Process(kind) for kind in kinds)
    return State(processes, rows=((0, (False, ())),), messages=messages)


def explore(state: State, model: Model) -> list[State]:
    """Return the states in which no process can go on; check all others on the way."""
    seen, stack, final = {state}, [state], []
    while stack:
        state = stack.pop()
        check_always(state)
        after = list(model.successors(state))
        if not after:
            final.append(state)
        for each in after:
            known = len(seen)
            seen.add(each)
            if len(seen) > known:  # a look before would hash the state twice, which takes longest
                stack.append(each)
        assert len(seen) < MAX_STATES, "the model is too large to be searched"
    return final


def check_always(state: State) -> None:
    assert not state.resurrected, state
    assert state.transmitted <= 1 + state.interrupted, state
    assert dict(state.marks).keys() <= dict(state.rows).keys(), state
    assert sum(state.mark(entry) is None for entry in state.present()) <= 1, state


def recover(state: State) -> State:
    """Return how the story ends once everything that crashed was noticed (claims have lapsed) and
    a healthy consumer, maintenance, and for what is held or lost an administrator have done their
    part, one after the other."""
    state = state._replace(claims=())
    for _ in range(state.entries + 2):
        for entry, mark in state.marks:
            if mark.is_unfinished_replacement and entry not in state.cleaned:
                state = run_alone(state, Process("maintenance", "finish", entry))
        for entry in state.live():
            held = state.row(entry)[0]
            if held or not state.messages:
                kind = "release" if held else "republish"
                state = run_alone(state, Process(kind, "act", entry))
        state = run_alone(state, Process("consumer"))
    return state


def run_alone(state: State, process: Process) -> State:
    """Let one process do what it can while no other process does anything."""
    model, index = Model(crashes=0), len(state.processes)
    state = state._replace(processes=(*state.processes, process))
    while after := model.first_step(state, index):
        state = after
        check_always(state)
    return state._replace(processes=state.processes[:index], claims=())


@pytest.mark.parametrize(
    ("kinds", "crashes", "retries"),
    [
        pytest.param(("consumer", "consumer"), 2, 0, id="two consumers, two crashes"),
        pytest.param(("consumer", "consumer"), 1, 1, id="a retry, two consumers, a crash"),
        pytest.param(("consumer", "remove"), 1, 1, id="removal, a retry, a crash"),
        pytest.param(("consumer", "republish"), 1, 0, id="republish while in flight, a crash"),
        pytest.param(("consumer", "consumer", "republish"), 0, 1, id="republish, no crash"),
        pytest.param(("consumer", "hold", "release"), 0, 0, id="hold and release while in flight"),
        pytest.param(("consumer", "hold", "release"), 1, 0, id="hold and release, a crash"),
        pytest.param(("consumer", "hold", "remove"), 1, 0, id="hold against remove, a crash"),
        pytest.param(("consumer", "republish", "remove"), 0, 1, id="republish against remove"),
        pytest.param(("consumer", "republish", "republish"), 0, 0, id="two republish"),
        pytest.param(("consumer", "hold", "release", "cleaner"), 0, 2, id="cleaned, held"),
        pytest.param(("consumer", "republish", "cleaner"), 1, 2, id="cleaned in flight, a crash"),
    ],
)
def test_no_interleaving_loses_resurrects_or_repeats(
    kinds: tuple[str, ...], crashes: int, retries: int
) -> None:
    found = search(kinds, Model(crashes, retries))

    assert any(state.transmitted for state in found)
    assert max(state.crashes for state in found) == crashes
    assert any(state.removed for state in found) == ("remove" in kinds)


@pytest.mark.parametrize(
    ("mistake", "kinds", "crashes", "retries"),
    [
        ("ack before mark", ("consumer",), 0, 1),
        ("no claims", ("consumer", "consumer", "republish"), 1, 1),
        ("predecessors forgotten", ("consumer", "consumer", "republish"), 0, 1),
        ("no redelivery delay", ("consumer", "consumer", "republish"), 0, 1),
        ("browse start not asked", ("consumer", "republish", "cleaner"), 0, 2),
        ("delivery not handed down", ("consumer", "republish", "cleaner"), 0, 2),
    ],
)
def test_search_notices_when_a_safeguard_is_left_out(
    mistake: str, kinds: tuple[str, ...], crashes: int, retries: int
) -> None:
    with pytest.raises(AssertionError):
        search(kinds, Model(crashes, retries, mistake=mistake))


@pytest.mark.parametrize(
    "messages", [(FIRST, REPETITION), (REPETITION,)], ids=["both", "the first was lost"]
)
@pytest.mark.parametrize(
    ("kinds", "model"),
    [
        pytest.param(("consumer", "consumer"), Model(1, retries=1), id="a retry, a crash"),
        pytest.param(("consumer", "consumer", "consumer"), Model(0, retries=1), id="three"),
        pytest.param(("consumer", "consumer", "remove"), Model(0, retries=1), id="removal"),
        pytest.param(("consumer", "consumer", "republish"), Model(0), id="republish"),
        pytest.param(("consumer", "consumer", "cleaner"), Model(0, retries=1), id="cleaned"),
        pytest.param(("consumer", "consumer"), Model(0, 1, losses=1), id="a lost connection"),
    ],
)
def test_no_repetition_of_an_unconfirmed_publish_repeats_the_mail(
    kinds: tuple[str, ...], model: Model, messages: tuple[Message, ...]
) -> None:
    found = search(kinds, model, messages)

    assert any(state.transmitted for state in found)


def test_no_lost_connection_repeats_what_its_consumer_still_has() -> None:
    found = search(("consumer", "consumer"), Model(0, retries=1, losses=2))

    assert max(state.losses for state in found) == 2


def test_search_notices_a_repetition_that_is_attempted_under_a_claim() -> None:
    """The first message needs no claim, so a claim on its entry keeps no consumer from it."""
    model = Model(0, mistake="repetition as any claim")

    with pytest.raises(AssertionError):
        search(("consumer", "consumer"), model, (FIRST, REPETITION))


def search(
    kinds: tuple[str, ...], model: Model, messages: tuple[Message, ...] = (FIRST,)
) -> list[State]:
    """Return the states in which every interleaving ends, after it was asserted of each that the
    mail's story ends well from there."""
    found = explore(initial(kinds, messages), model)
    for state in found:
        if not is_over(state):
            end = recover(state)
            assert is_over(end), (state, end)
    return found


def is_over(state: State) -> bool:
    """Whether the mail was transmitted or removed, and nothing of it waits."""
    marks = dict(state.marks)
    final = all(marks.get(entry, Mark()).is_final for entry in state.present())
    return final and (state.transmitted > 0 or state.removed) and not state.messages
