"""Health and the REST API for people who run queues."""
