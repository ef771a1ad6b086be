"""A queue that is closed leaves no connection open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from support.in_memory_cluster import InMemoryCluster


async def test_a_queue_that_is_closed_closes_what_it_reaches_its_servers_by() -> None:
    cluster, closed = InMemoryCluster(), list[str]()
    process = await cluster.start()
    engine = process.queue._engine

    def noting(server: str) -> Callable[[], Coroutine[None, None, None]]:
        async def close() -> None:
            closed.append(server)

        return close

    engine.broker.close = noting("broker")  # type: ignore[method-assign]
    engine.blobs.close = noting("blobs")  # type: ignore[method-assign]

    await process.queue.close()
    await process.queue.close()

    assert closed == ["broker", "blobs"]
