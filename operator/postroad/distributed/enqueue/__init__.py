"""From a mail to its row, its bytes and its message."""
