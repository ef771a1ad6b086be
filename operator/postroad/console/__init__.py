"""Console of an administrator: queues read and changed over HTTP, by the port of either engine."""
