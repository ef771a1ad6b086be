"""What several test tiers use: a mail sink, and mails of many shapes."""
