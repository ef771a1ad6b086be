"""Policies of MTA-STS: fetched from the domains' web servers, and kept in a folder."""
