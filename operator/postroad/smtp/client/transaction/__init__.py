"""One mail on a connection: content, commands, replies."""
