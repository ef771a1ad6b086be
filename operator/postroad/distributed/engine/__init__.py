"""Parts that all operations share: ports, timing, limits, ownership."""
