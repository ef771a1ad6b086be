"""Outcomes of workers, followed by the console's API as they happen: with as much of addresses as
the attempt log has, by one reader for all, until the right or the session is over."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

import servers
from postroad.adapters.clocks import MachineClock
from postroad.console import outcomes as feeds
from postroad.console.api import streams
from postroad.console.rights import ConsoleUser
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.shown import MAX_LINES, SeenOutcomes
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.errors import ViewUnavailable
from postroad.ports.delivery import SharedState, Topic
from postroad.worker.sites.shown_outcomes import ShownOutcomes
from support.consoles import RunningConsole, a_console
from support.workers import running

NOW = datetime(2026, 1, 2, 10, tzinfo=UTC)
REFUSED = Outcome(OutcomeKind.FAILED, "550 5.1.1 <b@example.net> no such user", site="mx.example")


@dataclass
class Rights:
    """Rights that a test takes away."""

    gone: set[str] = field(default_factory=set)
    are_away: bool = False

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        if self.are_away:
            raise ViewUnavailable("the reviews are away")
        return resource not in self.gone


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    short = timedelta(milliseconds=5)
    monkeypatch.setattr(feeds, "LOOK_EVERY", short)
    monkeypatch.setattr(streams, "CHECK_EVERY", short)
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.01)
    monkeypatch.setattr("postroad.worker.sites.shown_outcomes.PUBLISH_EVERY", short)


@dataclass
class Followed:
    """A console with one queue, and its rights."""

    console: RunningConsole
    rights: Rights
    events: str

    @property
    def shared_state(self) -> SharedState:
        found = self.console.queue.shared_state
        assert found is not None
        return found

    async def watchers(self) -> Mapping[str, str]:
        return await self.shared_state.published(Topic.WATCHERS)

    @asynccontextmanager
    async def worker(
        self, name: str = "w", *, with_addresses: bool = False
    ) -> AsyncIterator[ShownOutcomes]:
        made = ShownOutcomes(self.shared_state, MachineClock(), name, with_addresses=with_addresses)
        await made.obey(await self.watchers())
        async with running(made.run()):
            yield made

    async def follow(self) -> asyncio.Task[Any]:
        """Begin to follow, and wait until workers are asked for their outcomes."""
        before = self.console_followers()
        following = asyncio.create_task(self.console.client.get(self.events))
        await until(lambda: self.console_followers() > before)
        while not await self.watchers():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # the first reading shows where workers are
        return following

    def feed(self) -> feeds.OutcomeFeed:
        ((feed, _),) = self.console.console.outcomes._feeds.values()
        return feed

    def feed_place(self) -> feeds.FeedPlace:
        return self.feed().place

    def console_followers(self) -> int:
        found = self.console.console.outcomes._feeds.values()
        return sum(feed.followers for feed, _ in found)


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    rights = Rights()
    name = servers.fresh()  # what workers published stays for a while
    async with a_console(f"memory://{name}", rights=rights) as console:
        yield Followed(console, rights, f"/api/v1/queues/memory/{name}/events")


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


def an_attempt(number: int = 1) -> Attempted:
    ids = (UUID(int=7), UUID(int=number))
    return Attempted("memory.followed", *ids, number, "a@example.org", 10, NOW, NOW, 0.5)


def events(text: str) -> list[tuple[str, Any]]:
    found = [each.splitlines() for each in text.split("\n\n") if each.startswith("event: ")]
    return [(kind[7:], json.loads(data[6:])) for kind, data in found]


async def ended(followed: Followed, following: asyncio.Task[Any]) -> list[tuple[str, Any]]:
    """End a stream by the right to it; return its events."""
    followed.rights.gone.add("mailqueues/mails")
    async with asyncio.timeout(30):
        answer = await following
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text)


async def test_client_that_reads_slowly_and_goes_is_followed_no_more(followed: Followed) -> None:
    sent, goes = list[Any](), asyncio.Event()
    client = followed.console.client
    request = client.build_request("GET", followed.events)
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "query_string": b"",
        "method": "GET",
        "path": followed.events,
        "headers": headers,
    }

    async def receive() -> dict[str, Any]:
        await goes.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        await asyncio.sleep(0 if len(sent) < 3 else 60)

    app = cast("Any", client._transport).app
    gc.disable()  # it would close the stream, at some time
    try:
        answering = asyncio.create_task(app(scope, receive, send))
        await until(lambda: len(sent) == 3)
        goes.set()
        await answering

        assert followed.console.console.outcomes._feeds == {}
    finally:
        gc.enable()


@pytest.mark.parametrize("with_addresses", [False, True])
async def test_outcomes_are_followed_with_the_addresses_that_the_attempt_log_has(
    followed: Followed, with_addresses: bool
) -> None:
    following = await followed.follow()
    async with followed.worker(with_addresses=with_addresses) as worker:
        worker.note(an_attempt(), {"b@example.net": REFUSED}, given_up=True)
        await until(lambda: followed.feed_place() == (1, 0))

    ((kind, line),) = await ended(followed, following)

    assert (kind, line["outcome"], line["domain"]) == ("outcome", "failed", "example.net")
    assert (line["site"], line["attempt"], line["given_up"]) == ("mx.example", 1, True)
    assert ("b@example.net" in json.dumps(line)) is with_addresses
    assert line.get("sender") == ("a@example.org" if with_addresses else None)


async def test_followers_share_one_reader_which_ends_with_the_last(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = [await followed.follow() for _ in range(3)]
    assert len(await followed.watchers()) == 1
    async with followed.worker() as one, followed.worker("v") as other:
        one.note(an_attempt(), {"b@example.net": REFUSED})
        other.note(an_attempt(2), {"b@example.net": REFUSED})
        await until(lambda: followed.feed_place() == (2, 0))

    found = [await ended(followed, each) for each in following]

    assert [Counter(line["attempt"] for _, line in each) for each in found] == [{1: 1, 2: 1}] * 3
    assert (followed.console_followers(), await followed.watchers()) == (0, {})


async def test_outcomes_from_before_and_those_too_many_to_show_are_no_events(
    followed: Followed,
) -> None:
    following = await followed.follow()
    async with followed.worker() as worker:
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        await until(lambda: followed.feed_place() == (1, 0))
        second = await followed.follow()
        for number in range(MAX_LINES + 3):
            worker.note(an_attempt(number + 2), {"b@example.net": REFUSED})
        await until(lambda: followed.feed_place() == (MAX_LINES + 1, 3))

    first, second_events = [await ended(followed, each) for each in (following, second)]

    assert [kind for kind, _ in first] == ["outcome", "missed", *["outcome"] * MAX_LINES]
    assert second_events[0] == ("missed", {"number": 3})
    assert len(second_events) == MAX_LINES + 1


async def test_a_follower_that_reads_slowly_is_shown_how_much_it_missed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = await followed.follow()
    feed = followed.feed()
    for _ in range(3):
        await feed._take([{"n": n} for n in range(500)], 0)

    assert [len(each) if isinstance(each, list) else each for each in feed.since((0, 0))] == [
        feeds.MAX_KEPT, 500,
    ]  # fmt: skip
    assert feed.since((1499, 0))[0] == [{"n": 499}]
    await ended(followed, following)


@pytest.mark.parametrize("end", ["session", "reviews", "queue"])
async def test_a_stream_ends_with_its_session_and_where_rights_cannot_be_found_out(
    followed: Followed, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = await followed.follow()
    if end == "session":
        followed.console.sessions.end(followed.console.client.cookies["postroad-console"])
    elif end == "reviews":
        followed.rights.are_away = True
    else:
        monkeypatch.setattr(followed.console.console.queues, "names", list)

    async with asyncio.timeout(30):
        answer = await following

    assert (answer.status_code, events(answer.text)) == (200, [])
    await until(lambda: followed.console_followers() == 0)


async def test_a_stream_keeps_no_session_from_ending(followed: Followed) -> None:
    secret = followed.console.client.cookies["postroad-console"]
    following = await followed.follow()
    used = followed.console.sessions._sessions
    before = [each.used for each in used.values()]
    await asyncio.sleep(0.1)

    assert [each.used for each in used.values()] == before
    followed.console.sessions.end(secret)
    await following


async def test_a_worker_without_watchers_publishes_nothing(followed: Followed) -> None:
    async with followed.worker() as worker:
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        await asyncio.sleep(0.05)
        assert await followed.shared_state.published(Topic.OUTCOMES) == {}
        await worker.obey({"console": ""})
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        await worker.obey(None)  # away
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        while not (entries := await followed.shared_state.published(Topic.OUTCOMES)):
            await asyncio.sleep(0.005)
    assert json.loads(entries["w"])["last"] == 2


async def test_an_outcome_that_could_not_be_published_is_so_later_though_no_other_comes(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type(followed.shared_state)
    publish, answers = made.publish, iter((ViewUnavailable("away"), ViewUnavailable("still")))

    async def sometimes(self: SharedState, topic: Topic, *entry: Any) -> None:
        if topic is Topic.OUTCOMES and (error := next(answers, None)):
            raise error
        await publish(self, topic, *entry)

    monkeypatch.setattr(made, "publish", sometimes)
    following = await followed.follow()
    async with followed.worker() as worker:
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        await until(lambda: followed.feed_place() == (1, 0))
    assert len(await ended(followed, following)) == 1


async def test_entries_that_cannot_be_read_are_passed_over(followed: Followed) -> None:
    following = await followed.follow()
    for name, text in (("x", "{"), ("y", '{"last": "?"}'), ("z", '{"last": 1, "lines": [7]}')):
        await followed.shared_state.publish(Topic.OUTCOMES, name, text, timedelta(minutes=1))
    async with followed.worker() as worker:
        worker.note(an_attempt(), {"b@example.net": REFUSED})
        await until(lambda: followed.feed_place() == (1, 0))
    assert len(await ended(followed, following)) == 1


async def test_streams_end_where_outcomes_cannot_be_read_and_begin_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, is_broken = SeenOutcomes.take, False

    def maybe(seen: SeenOutcomes, published: Mapping[str, str]) -> Any:
        if is_broken:
            raise ValueError("an error of no server")
        return take(seen, published)

    monkeypatch.setattr(SeenOutcomes, "take", maybe)
    following = await followed.follow()
    is_broken = True
    async with asyncio.timeout(10):
        await following
    assert followed.console.console.outcomes._feeds == {}

    is_broken = False
    following = await followed.follow()
    assert not following.done()
    followed.rights.gone.add("mailqueues/mails")
    async with asyncio.timeout(10):
        await following


async def test_followers_of_a_feed_that_ended_leave_the_next_one_alone(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise ValueError("an error of no server")

    console = followed.console.console
    (queue,) = console.queues._queues.values()  # type: ignore[attr-defined]
    follow = console.outcomes.follow
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        with monkeypatch.context() as patched:
            patched.setattr(SeenOutcomes, "take", broken)
            before = await first.enter_async_context(follow(queue))
            await second.enter_async_context(follow(queue))
            await until(lambda: before.has_ended)
        async with follow(queue) as after:
            assert after is not before
            await first.aclose()
            async with follow(queue) as again:
                assert again is after
            await second.aclose()
            async with follow(queue) as again:
                assert again is after
            assert not after.has_ended
        assert console.outcomes._feeds == {}


async def test_a_feed_that_ended_is_left_after_the_next_one(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = followed.console.console
    (queue,) = console.queues._queues.values()  # type: ignore[attr-defined]
    async with console.outcomes.follow(queue) as before:
        before.has_ended = True
        async with console.outcomes.follow(queue) as after:
            assert after is not before
        assert console.outcomes._feeds == {}
