"""Rate at which Events about an object are posted: pure.

Repetitions are counted here and posted together, once a minute at most; of all Events about an
object, a burst is posted and then few. What flaps for a day costs the API server no more. The
numbers are those of client-go's recorder: a burst of 25, then one in five minutes.
"""

from dataclasses import dataclass, field
from datetime import timedelta

BURST = 25
"""Posts about one object before they are fewer."""

REFILL = timedelta(minutes=5)
"""After so long one more is posted."""

TOGETHER = timedelta(minutes=1)
"""Within so long the repetitions of an Event are posted together."""

MAX_NAMES = 100
"""Events about an object that are counted; a further one begins the counts anew."""


@dataclass(slots=True)
class _Posts:
    """Posts that an object has left, and since when; the Events about it: when each was posted last
    (None: never), and how often it happened since."""

    left: float
    at: timedelta
    events: dict[str, tuple[timedelta | None, int]] = field(default_factory=dict)


class EventPace:
    """Paces the Events of each object, by its uid."""

    def __init__(self) -> None:
        self._objects: dict[str, _Posts] = {}

    def due(self, uid: str, name: str, now: timedelta) -> int:
        """Count an Event; return how often it happened since it was posted, 0 where it is not to be
        posted now."""
        posts = self._objects.setdefault(uid, _Posts(BURST, now))
        if len(posts.events) > MAX_NAMES:
            posts.events.clear()
        posted_at, times = posts.events.get(name, (None, 0))
        posts.left, posts.at = min(BURST, posts.left + (now - posts.at) / REFILL), now
        is_soon = posted_at is not None and now - posted_at < TOGETHER
        if is_soon or posts.left < 1:
            posts.events[name] = posted_at, times + 1
            return 0
        posts.left -= 1
        posts.events[name] = now, 0
        return times + 1

    def forget(self, uid: str) -> None:
        """Forget an object that is gone. Idempotent."""
        self._objects.pop(uid, None)
