"""What a worker delivers by, from settings and files."""
