"""The CQL of the view."""
