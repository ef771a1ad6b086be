"""The machine's clocks and random numbers."""
