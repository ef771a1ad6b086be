"""`View` over Cassandra: rows, marks, dead letters, and their statements."""
