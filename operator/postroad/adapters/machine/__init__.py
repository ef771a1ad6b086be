"""This machine's clocks and chance."""
