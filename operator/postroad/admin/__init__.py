"""Reserved for the REST API for people who run queues; empty."""
