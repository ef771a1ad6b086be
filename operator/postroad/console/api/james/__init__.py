"""The paths on mail queues of Apache James' WebAdmin, over the console's queues."""
