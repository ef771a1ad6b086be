"""Measurements, side by side with a peer in the same run: what counts is the ratio."""
