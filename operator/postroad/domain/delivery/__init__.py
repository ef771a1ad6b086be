"""Attempts, retries, and what administrators decide about sites."""
