"""Logins of clients that send: who they are, and how that is shown."""
