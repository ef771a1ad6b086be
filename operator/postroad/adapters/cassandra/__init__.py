"""Cassandra, through cassandra-driver. Its errors die here."""
