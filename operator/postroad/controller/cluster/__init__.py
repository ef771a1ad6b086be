"""QueueClusters: their health, claims, users and tables."""
