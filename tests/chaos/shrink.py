"""Makes a failing schedule smaller: delta debugging over its faults.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (2002), ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[Sequence[T]], bool], attempts: int) -> Sequence[T]:
    """Return a part of `items` that still fails, after at most `attempts` tries. With enough tries,
    no element can be left out of that part. The caller knows that `items` as a whole fails."""
    parts = 2
    while len(items) >= 2 and attempts > 0:
        size = -(-len(items) // parts)
        chunks = [items[each : each + size] for each in range(0, len(items), size)]
        rests = [
            [each for other in chunks if other is not chunk for each in other] for chunk in chunks
        ]
        for candidate in [*chunks, *rests] if parts == 2 else [*rests]:
            if len(candidate) == len(items) or not attempts:
                continue
            attempts -= 1
            if fails(candidate):
                parts = max(parts - 1, 2) if len(candidate) > size else 2
                items = candidate
                break
        else:
            if parts >= len(items):
                break
            parts = min(parts * 2, len(items))
    if len(items) == 1 and attempts and fails(items[:0]):
        return items[:0]
    return items
