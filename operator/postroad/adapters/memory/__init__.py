"""Servers, clocks and random numbers in memory: for tests, for `memory://`, as the ports'
reference.

Several `MemoryServers` over one `MemoryWorld` stand for several processes. Each call of a port goes
through a fault injector, by which a test fails it, loses its answer, stops the process or runs
other processes first.
"""
