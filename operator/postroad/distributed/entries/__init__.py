"""Entries and their replacements, endings and dead letters."""
