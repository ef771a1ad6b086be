"""The Lease by which one operator leads, and the fence of its writes."""
