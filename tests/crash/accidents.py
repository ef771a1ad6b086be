"""A store with a bit of everything, and what may happen to its files while no process owns it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from contract.queue_harness import plain_mail
from postroad import Outcome, Selector, open_queue
from postroad.embedded.log import frames
from postroad.embedded.log.envelopes import ENVELOPE_BYTES
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.records import DELIVERY, ENVELOPE
from postroad.embedded.log.segments import HEADER_BLOCK, read_header

HOUR = timedelta(hours=1)
LEFT = {"partly", "held", "waits", "late", "newest"}


async def fill(root: Path) -> Path:
    """Make a store with a bit of everything, and close it."""
    async with open_queue(f"embedded://{root}", create=True) as queue:
        for name in ("done", "partly", "dead", "held", "waits", "late"):
            recipients = (f"{name}-a@x.example", f"{name}-b@y.example")
            delay = HOUR if name == "late" else timedelta(0)
            await queue.enqueue(plain_mail(name, recipients=recipients), delay)
        await queue.hold(Selector(name="held"))
        items = queue.dequeue()
        await (await anext(items)).done()
        item = await anext(items)
        await item.record({"partly-a@x.example": Outcome.delivered()})
        await item.retry(HOUR)
        await (await anext(items)).reject("given up")
        await queue.maintain()
        await queue.enqueue(plain_mail("newest"))
    return root


def rewrite_first_segment(
    root: Path, change: Callable[[bytearray, int], None], lane: str = "new"
) -> None:
    """Let `change` write into a lane's first segment, of which it gets the seed of checksums."""
    segment = min((root / "log").glob(f"{lane}.*"))
    data = bytearray(segment.read_bytes())
    header = read_header(bytes(data[:HEADER_BLOCK]))
    assert header is not None
    change(data, frames.checksum(header.encode()))
    segment.write_bytes(data)


def rewrite_record(
    root: Path,
    wanted: Callable[[Frame], bool],
    payload: Callable[[bytes], bytes],
    lane: str = "new",
) -> None:
    """Change a lane's first record that is wanted: with the right checksum, as long as before."""

    def change(data: bytearray, seed: int) -> None:
        frame = next(each for each in frames.stray_frames(bytes(data), seed, 0) if wanted(each))
        changed = payload(frame.payload)
        assert len(changed) == len(frame.payload)
        data[frame.offset : frame.end] = frames.encode(
            seed, frame.type, frame.ordinal, frame.durable, changed
        )

    rewrite_first_segment(root, change, lane)


def envelope_of(name: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.type == ENVELOPE and f"{name}-a@".encode() in frame.payload


def log_deleted(root: Path) -> None:
    for segment in (root / "log").iterdir():
        segment.unlink()


def checkpoint_deleted(root: Path) -> None:
    (root / "checkpoint").unlink()


def checkpoint_zeroed(root: Path) -> None:
    (root / "checkpoint").write_bytes(bytes(4096))


def every_segment_zeroed(root: Path) -> None:
    for segment in (root / "log").iterdir():
        segment.write_bytes(bytes(segment.stat().st_size))


def bit_flipped_in_the_first_record(root: Path) -> None:
    segment = min((root / "log").glob("new.*"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"PRf1") + 30] ^= 1
    segment.write_bytes(data)


def unparsable(payload: bytes) -> bytes:
    """Return an ENVELOPE whose JSON is none, as long as before."""
    return payload.replace(b'{"sender', b'["sender')


def unreadable_envelope(root: Path) -> None:
    rewrite_record(root, envelope_of("waits"), unparsable)


def envelope_with_a_recipient_without_number(root: Path) -> None:
    def payload(old: bytes) -> bytes:
        start = old.index(b'{"sender')
        wrong = b'{"sender":null,"to":["a@x.example","b@y.example"],"numbers":[1]}'
        return old[:start] + wrong.ljust(len(old) - start)

    rewrite_record(root, envelope_of("waits"), payload)


def envelope_with_unreadable_domains(root: Path) -> None:
    def payload(old: bytes) -> bytes:
        return old[:ENVELOPE_BYTES] + b"\xff" + old[ENVELOPE_BYTES + 1 :]

    rewrite_record(root, envelope_of("waits"), payload)


def _last_record(root: Path, record_type: int) -> None:
    def change(data: bytearray, seed: int) -> None:
        *_, last = frames.stray_frames(bytes(data), seed, 0)
        data[last.end :] = frames.encode(seed, record_type, 0, last.durable, b"?")

    rewrite_first_segment(root, change)


def unreadable_record(root: Path) -> None:
    _last_record(root, DELIVERY)


def record_of_a_later_release(root: Path) -> None:
    _last_record(root, 200)


def envelope_that_is_too_short(root: Path) -> None:
    _last_record(root, ENVELOPE)
