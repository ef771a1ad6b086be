"""Filters: programs of the administrator that look at a mail before it is accepted."""
