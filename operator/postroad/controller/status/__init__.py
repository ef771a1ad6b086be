"""Conditions, and the status that a reconcile writes."""
