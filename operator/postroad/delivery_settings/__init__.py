"""What an administrator decides about delivery, as one schema for files and resources."""
