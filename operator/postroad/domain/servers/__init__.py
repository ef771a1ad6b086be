"""What servers must keep: copies, users, claims, policies."""
