"""Sites under control of administrators: suspended ones, which a site's replies add to, and those
that are to be tried now; and what the shared state has of this worker's sites, read for all that a
worker obeys there in one request.

Shared state that is away is warned of once, and changes nothing: the suspensions that were read
last hold until they are over. Source: ADR 0062, 0067, 0069."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from postroad.domain.delivery.sites import (
    MAX_DEFERRAL,
    MAX_DOMAINS,
    READ_EVERY,
    FlushAck,
    ReplyCounts,
    ReplyRule,
    SiteState,
    SiteView,
    Suspension,
    published_views,
)
from postroad.domain.mail.mail import Outcome
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput, PostroadError
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


Obey = Callable[[Mapping[str, str] | None], Awaitable[None]]
"""Takes the entries of one topic by name; None: the shared state is away, so that what was read
last holds, and time has passed."""


class SharedStateReader:
    """Lets a worker obey entries: each function of `obeyed` gets its topic's, in order."""

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


PUBLISH_EVERY = timedelta(seconds=15)
PUBLISHED_FOR = timedelta(seconds=60)
"""A worker that is killed is shown for so long."""

MAX_SUSPENDED = 1000
"""Sites at a time, beyond which replies suspend no more: each worker reads all of them every five
seconds, and it is senders who choose the domains that mail goes to."""


class SiteControl:
    """Sites that get no mail now. `name`: this worker's on the shared state. `watches_replies`:
    whether replies suspend sites, which those of a relay do not, since they are about sites behind
    it. `rules`: the names of the rules of routing, which are published, too, as are whether all
    mail goes to a program (`has_program`), and how many mails `left` the queue by this worker."""

    def __init__(
        self,
        shared_state: SharedState,
        clock: Clock,
        name: str,
        *,
        watches_replies: bool,
        rules: Callable[[], Iterable[str]] = tuple,
        has_program: bool = False,
        left: Callable[[], int] = lambda: 0,
    ) -> None:
        self._rules, self._has_program, self._left = rules, has_program, left
        self._shared, self._clock, self._name = shared_state, clock, name
        self._counts = ReplyCounts() if watches_replies else None
        self._suspended: dict[str, Suspension] = {}
        self._own: dict[str, Suspension] = {}
        """Those that replies led to, until they are on the shared state."""
        self._new: list[str] = []
        self._use = SharedStateUse()

    def use(self, rules: Sequence[ReplyRule]) -> None:
        """Let replies suspend sites by an administrator's rules first."""
        if self._counts is not None:
            self._counts.rules = rules

    def suspended(self, site: str) -> Suspension | None:
        if site not in self._own and site not in self._suspended:
            return None
        known = [each[site] for each in (self._own, self._suspended) if site in each]
        latest = max(known, key=lambda each: each.until)
        return latest if latest.until > self._clock.now() else None

    def deferral_for(self, suspension: Suspension) -> timedelta:
        """Return for how long mail for a suspended site is deferred."""
        return min(suspension.until - self._clock.now(), MAX_DEFERRAL)

    def new(self) -> list[str]:
        """Return the sites that were suspended since this was called last."""
        new, self._new = self._new, []
        return new

    def on_outcomes(self, site: str, outcomes: Iterable[Outcome]) -> None:
        """Look at what a transmission came to."""
        if self._counts is None or self.suspended(site) is not None:
            return
        if len(self._own) + len(self._suspended) >= MAX_SUSPENDED:
            return
        found = self._counts.on_outcomes(site, outcomes, self._clock.now())
        if found is not None:
            _log.warning(
                "a site is suspended by its replies",
                site=site,
                reason=found.reason,
                until=rfc3339(found.until),
            )
            self._own[site] = found
            self._new.append(site)

    async def run(self, sites: Callable[[], Iterable[SiteView]]) -> None:
        """Publish what is known of the sites, until cancelled."""
        while True:
            await self._publish(sites())
            await self._clock.sleep(PUBLISH_EVERY)

    async def obey(self, published: Mapping[str, str] | None) -> None:
        """Take the suspensions of all, and publish those of this worker, but none that would
        shorten one. None: the shared state is away. Raises: ServerError."""
        now = self._clock.now()
        self._own = {site: each for site, each in self._own.items() if each.until > now}
        if published is None:
            return
        read = dict[str, Suspension]()
        for site, text in published.items():
            with suppress(InvalidInput):
                read[site] = Suspension.of(site, text)
        self._new += [site for site, each in read.items() if self._suspended.get(site) != each]
        self._suspended = read  # before what may fail: others are obeyed all the same
        for site, each in list(self._own.items()):
            known = read.get(site)
            if known is None or known.until < each.until:
                left = each.until - self._clock.now()
                await self._shared.publish(Topic.SUSPENSIONS, site, each.text(), left)
                read[site] = each
            del self._own[site]  # behind the publishing: one that failed is published the next time

    async def _publish(self, views: Iterable[SiteView]) -> None:
        with self._use.unless_away():
            shown = map(self._with_suspension, views)
            text = published_views(
                shown, self._rules(), has_program=self._has_program, left=self._left()
            )
            await self._shared.publish(Topic.WORKERS, self._name, text, PUBLISHED_FOR)

    def _with_suspension(self, view: SiteView) -> SiteView:
        found = self.suspended(view.site)
        if found is None:
            return view
        return replace(
            view, state=SiteState.SUSPENDED, until=rfc3339(found.until), reason=found.reason
        )

    async def close(self) -> None:
        """Take this worker's entry down."""
        with self._use.unless_away():
            await self._shared.take_down(Topic.WORKERS, self._name)


ANSWERED_FOR = timedelta(seconds=60)
"""An administrator waits for seconds."""


class FlushAcks:
    """Tries sites now that administrators ask for. `name`: this worker's on the shared state.
    `relay`: the site that all its mail goes to, but what is rerouted; None: there is none."""

    def __init__(
        self, shared_state: SharedState, name: str, *, relay: Callable[[], str | None]
    ) -> None:
        self._shared, self._name, self._relay = shared_state, name, relay
        self._known: dict[str, str] = {}
        """The number of the last request by site."""

    async def acknowledge(
        self, try_now: Callable[[str], Sequence[str]], asked: Mapping[str, str] | None
    ) -> None:
        """Acknowledge each request once. `try_now` tries a site, and returns the domains whose mail
        goes there. None: the shared state is away. Raises: ServerError."""
        if asked is None:
            return
        for site, number in asked.items():
            if self._known.get(site) == number:
                continue
            domains = try_now(site)
            shown = tuple(domains[-MAX_DOMAINS:])
            more = len(domains) - len(shown)
            is_all = site == self._relay() and bool(domains)
            made = FlushAck(self._name, site, number, shown, more, is_all)
            await self._shared.publish(Topic.FLUSHED, made.name, made.text(), ANSWERED_FOR)
            self._known[site] = number  # behind the publishing: one that failed is repeated
        self._known = {site: each for site, each in self._known.items() if site in asked}
