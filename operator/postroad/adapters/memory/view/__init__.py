"""A view in memory."""
