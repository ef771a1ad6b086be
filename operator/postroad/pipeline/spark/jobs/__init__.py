"""The jobs: archive, audit, results, forgetting."""
