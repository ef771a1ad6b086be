"""Parts that a worker delivers with, from settings and files."""
