"""One reconcile of a MailQueue, step by step, and its deletion."""
