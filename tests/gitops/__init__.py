"""Real Flux and Argo CD, built from their sources, and the git repository that they read."""
