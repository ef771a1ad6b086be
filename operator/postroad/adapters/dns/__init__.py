"""DNS, over dnspython."""
