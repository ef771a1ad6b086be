"""QueueClusters: their health, claims, users, tables and quotas."""
