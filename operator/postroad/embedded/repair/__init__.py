"""Verification of a store, and a rebuild from its mails."""
