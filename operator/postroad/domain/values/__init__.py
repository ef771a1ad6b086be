"""Durations, instants, identifiers, JSON and networks."""
