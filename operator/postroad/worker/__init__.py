"""Dequeue, deliver, record, end; and stop without losing any."""
