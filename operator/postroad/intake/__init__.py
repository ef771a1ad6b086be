"""Mail in by SMTP. A positive reply to a mail means that the queue has it durably."""
