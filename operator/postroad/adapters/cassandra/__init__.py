"""Cassandra, through cassandra-driver, whose errors this folder translates."""
