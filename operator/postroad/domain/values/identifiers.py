"""Time-ordered identifiers: UUID version 7, so that a partition's clustering order is time order.

Cassandra compares `uuid` values of one version byte by byte, so ids made later sort later, within
one process strictly, between processes to the millisecond (clocks permitting).
Source: RFC 9562 5.7 and 6.2 (method 1, with the sub-millisecond part as counter)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = UUID(int=0)
"""Before every id. Source: RFC 9562 5.9 (Nil UUID)."""

LAST = UUID(int=(1 << 128) - 1)
"""After every id. Source: RFC 9562 5.10 (Max UUID)."""

_RANDOM_BITS = 62
_MILLISECOND = timedelta(milliseconds=1)
_LAST_MILLISECOND = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MILLISECOND


def id_at(moment: datetime, sequence: int, randomness: int) -> UUID:
    """Return the version 7 id of `moment`. `sequence` is the 12-bit counter that orders ids within
    a millisecond; `randomness` 62 bits."""
    return _id_of((moment - EPOCH) // _MILLISECOND, sequence, randomness)


def _id_of(milliseconds: int, sequence: int, randomness: int) -> UUID:
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80
    value |= 0x7000_0000_0000_0000_0000 | (sequence & 0xFFF) << 64
    value |= 0x8000_0000_0000_0000 | randomness & ((1 << _RANDOM_BITS) - 1)
    return UUID(int=value)


def moment_of(identifier: UUID) -> datetime:
    """Return the instant an id was made at, to the millisecond; of one that a client made up, the
    last instant there is."""
    return EPOCH + timedelta(milliseconds=min(identifier.int >> 80, _LAST_MILLISECOND))


class Identifiers:
    """Makes ids that grow strictly, also when the clock stands still or steps back. `now` returns
    the wall clock, `random_bits(n)` n random bits. Not thread-safe: one per event loop."""

    def __init__(self, now: Callable[[], datetime], random_bits: Callable[[int], int]) -> None:
        self._now = now
        self._random_bits = random_bits
        self._last = (-1, 0)

    def new(self, after: UUID | None = None) -> UUID:
        """Return the next id; one that is also greater than `after`."""
        millisecond = (self._now() - EPOCH) // _MILLISECOND
        if after is not None:
            millisecond = max(millisecond, (after.int >> 80) + 1)
        last_millisecond, last_sequence = self._last
        if millisecond > last_millisecond:
            self._last = (millisecond, 0)
        elif last_sequence < 0xFFF:
            self._last = (last_millisecond, last_sequence + 1)
        else:
            self._last = (last_millisecond + 1, 0)
        return _id_of(*self._last, self._random_bits(_RANDOM_BITS))
