"""Page of the console: documents rendered here, which work without scripts."""
