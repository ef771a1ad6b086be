"""`View` over Cassandra: rows, marks, letters, and their statements."""
