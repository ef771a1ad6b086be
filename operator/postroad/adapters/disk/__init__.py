"""The machine's own file system and threads behind `ports.files`."""
