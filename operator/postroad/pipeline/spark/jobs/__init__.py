"""The jobs: archive, audit, answers, forgetting."""
