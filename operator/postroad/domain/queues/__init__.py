"""Entries, slices, references and their messages."""
