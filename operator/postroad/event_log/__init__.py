"""Events of processes and operations, until they are durable where they wait."""
