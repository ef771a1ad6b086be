"""The mail: envelope, shapes of content, documents."""
