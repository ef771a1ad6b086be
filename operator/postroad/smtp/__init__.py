"""SMTP on the wire: the server of the intake, the client of the worker."""
