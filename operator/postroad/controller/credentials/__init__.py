"""Secrets that resources refer to, and the connections that they open."""
