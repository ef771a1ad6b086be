"""The keyspace and its tables: created, altered, claimed."""
