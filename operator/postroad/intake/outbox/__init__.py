"""A store on this process' own disk, before a queue whose servers may be away. ADR 0090."""
