"""From a message of the broker to an item, and to its ack."""
