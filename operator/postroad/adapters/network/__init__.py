"""The way out: SMTP to a next hop."""
