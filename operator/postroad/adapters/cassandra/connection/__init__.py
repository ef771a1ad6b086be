"""The session with Cassandra, its clocks, and the errors of the driver."""
