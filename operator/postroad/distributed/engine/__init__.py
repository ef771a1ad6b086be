"""What all operations share: ports, timing, limits, ownership."""
