"""Real Flux, Argo CD and metrics-server, built from their sources, and the git repository that the
first reads."""
