"""Carries out MailQueueTasks: by a Job, or by what the operator itself does."""
