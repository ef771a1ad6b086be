"""Replies, their classes, next hops, and SASL of the client."""
