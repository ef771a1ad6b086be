"""From an item to its end: jobs, connections, outcomes."""
