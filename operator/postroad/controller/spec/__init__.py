"""Specs of the resources as typed values."""
