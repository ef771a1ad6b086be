"""Rounds that finish, clean up and audit what other processes left."""
