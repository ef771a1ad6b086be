"""Decisions of an administrator about delivery, as one schema for files and resources."""
