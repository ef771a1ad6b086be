"""One queue under load, in a process of its own: `python library_peer.py NAME PLACE COUNT`, with
the Python that has its library. Prints JSON: what was measured of COUNT payloads of 2 kB."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

PAYLOAD = "Subject: hi\r\n\r\n" + ("x" * 76 + "\r\n") * 25
CONCURRENCY = 10
SINGLE = 50
"""Payloads whose way from the call to the handler is timed, one at a time."""


class Handled:
    """Payloads that the handler got."""

    def __init__(self) -> None:
        self.count, self.wanted = 0, 0
        self._lock, self.done = threading.Lock(), threading.Event()

    def await_more(self, count: int) -> None:
        with self._lock:
            self.wanted = self.count + count
            self.done.clear()

    def note(self, *_: object, **__: object) -> None:
        with self._lock:
            self.count += 1
            if self.count >= self.wanted:
                self.done.set()


HANDLED = Handled()


class Peer:
    """What is measured: `one` and `many` queue payloads, `consume` begins to handle them."""

    def __init__(self, one: Callable[[], Any], consume: Callable[[], Any] | None) -> None:
        self.one, self.consume = one, consume
        self.many: Callable[[int], Any] | None = None


def postroad(place: str) -> Peer:
    from postroad import HandedMail, Mail
    from postroad.sync import open_queue

    queue = open_queue(f"embedded://{place}/postroad", create=True)

    async def handle(mail: HandedMail) -> None:
        HANDLED.note()

    def mail() -> Mail:
        return Mail("a@example.org", ["b@example.net"], PAYLOAD.encode())

    peer = Peer(
        lambda: queue.enqueue(mail()),
        lambda: _in_thread(lambda: queue.consume(handle, concurrency=CONCURRENCY)),
    )
    peer.many = lambda count: queue.enqueue_all(mail() for _ in range(count))
    return peer


def dramatiq(place: str) -> Peer:
    library: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=place)
    library.set_broker(broker)
    actor = library.actor(HANDLED.note)
    worker = library.Worker(broker, worker_threads=CONCURRENCY)
    return Peer(lambda: actor.send(PAYLOAD), worker.start)


def huey(place: str) -> Peer:
    library: Any = import_module("huey")
    if "://" in place:
        queue = library.RedisHuey("bench", url=place, results=False)
    else:
        path = f"{place}/huey.sqlite"
        queue = library.SqliteHuey("bench", filename=path, fsync=True, results=False)
    task = queue.task()(HANDLED.note)
    consumer = queue.create_consumer(workers=CONCURRENCY, initial_delay=0.01, max_delay=0.1)
    return Peer(lambda: task(PAYLOAD), consumer.start)


def procrastinate(place: str) -> Peer:
    library: Any = import_module("procrastinate")
    app = library.App(connector=library.PsycopgConnector(conninfo=place))
    app.task(HANDLED.note, name="handle")
    sync = library.App(connector=library.SyncPsycopgConnector(conninfo=place))
    sync.open()
    sync.connector.get_sync_connector().execute_query(
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    )
    sync.schema_manager.apply_schema()
    deferred = sync.configure_task("handle", allow_unknown=True)

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(
                concurrency=CONCURRENCY, install_signal_handlers=False, delete_jobs="successful"
            )

    peer = Peer(
        lambda: deferred.defer(payload=PAYLOAD), lambda: _in_thread(lambda: asyncio.run(work()))
    )
    peer.many = lambda count: deferred.batch_defer(*({"payload": PAYLOAD} for _ in range(count)))
    return peer


def file(place: str) -> Peer:
    """Appends to a file, with a sync for each payload or for a hundred, as a bound of what a queue
    can do; nothing is handled."""
    descriptor = os.open(f"{place}/payloads", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    data = PAYLOAD.encode()

    def append(count: int) -> None:
        for _ in range(count):
            os.write(descriptor, data)
        os.fdatasync(descriptor)

    def many(count: int) -> None:
        for _ in range(0, count, 100):
            append(100)

    peer = Peer(lambda: append(1), None)
    peer.many = many
    return peer


def _in_thread(work: Callable[[], Any]) -> None:
    threading.Thread(target=work, daemon=True).start()


def measure(peer: Peer, count: int) -> dict[str, float]:
    began = time.perf_counter()
    for _ in range(count):
        peer.one()
    found = {"enqueue": count / (time.perf_counter() - began)}
    if peer.many is not None:
        began = time.perf_counter()
        peer.many(count)
        found["import"] = count / (time.perf_counter() - began)
    if peer.consume is None:
        return found
    HANDLED.await_more(count * len(found))
    began = time.perf_counter()
    peer.consume()
    HANDLED.done.wait()
    found["consume"] = HANDLED.count / (time.perf_counter() - began)
    times = []
    for _ in range(SINGLE):
        HANDLED.await_more(1)
        began = time.perf_counter()
        peer.one()
        HANDLED.done.wait()
        times.append(1000 * (time.perf_counter() - began))
    found["latency"], found["latency_most"] = sorted(times)[SINGLE // 2], sorted(times)[-1]
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


PEERS = {each.__name__: each for each in (postroad, file, dramatiq, huey, procrastinate)}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    name, place, count = sys.argv[1:]
    print(json.dumps(measure(PEERS[name](place), int(count))), flush=True)
    os._exit(0)  # workers of the libraries are threads that would be waited for
