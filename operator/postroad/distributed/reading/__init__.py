"""Browsing, counting and ages."""
