"""Servers in memory: for `memory://`, for tests, as the reference of the ports.

Several `MemoryServers` over one `MemoryWorld` stand for several processes. Each call of a port goes
through a fault injector, by which a test fails it, loses its answer, stops the process or runs
other processes first."""
