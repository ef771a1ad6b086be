"""Java, its jars and key stores, and executors."""
