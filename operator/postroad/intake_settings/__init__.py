"""The schema of what an administrator decides about mail that comes in."""
