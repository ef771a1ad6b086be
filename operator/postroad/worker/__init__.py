"""The worker: dequeues items, delivers them, records the outcomes, ends the items."""
