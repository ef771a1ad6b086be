"""Ports in memory that tests alone use: a clock, connections of delivery, an API server."""
