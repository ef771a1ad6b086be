"""Servers, clocks and chance in memory: for tests, for `memory://`, and as the ports' reference.

Several processes are played by several `MemoryServers` over one `MemoryWorld`; each call of a port
passes a gate, where a test can fail it, lose its answer, stop the process or let others go first.
"""
