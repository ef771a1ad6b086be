"""The socket by which other processes use the store of its owner."""
