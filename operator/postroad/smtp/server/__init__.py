"""Listeners and connections of the intake."""
