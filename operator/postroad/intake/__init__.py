"""Mail in: SMTP and HTTP. A positive answer means that the queue has it."""
