"""The archive of a queue: what a run reads, and what it has already."""
