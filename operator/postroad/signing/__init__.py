"""DKIM: which keys sign a mail, over what, and the field that carries a signature. Pure: octets and
the time in, fields out. Source: RFC 6376; RFC 8301; RFC 8463; ADR 0051."""
