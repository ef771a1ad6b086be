"""Kinds, metadata, drift and merges of Kubernetes objects."""
