"""Mail to a next hop by SMTP or LMTP."""
