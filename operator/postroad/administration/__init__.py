"""Facilities of administrators beside mail, for commands and the console alike."""
