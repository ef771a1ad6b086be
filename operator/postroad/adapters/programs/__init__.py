"""Hands mail to a program of the administrator: over HTTP, or as a function in Python."""
