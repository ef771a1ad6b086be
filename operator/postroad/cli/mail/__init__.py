"""Commands on the mail of a queue."""
