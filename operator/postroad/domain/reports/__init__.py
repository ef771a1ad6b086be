"""Reports to senders about what became of their mail (RFC 3461 to 3464): who gets one, and what is
in it. Pure. Source: ADR 0052."""
