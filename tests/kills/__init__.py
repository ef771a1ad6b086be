"""Kills of a worker, again and again, amid mail for many sites: docs/chaos/kills.md."""
